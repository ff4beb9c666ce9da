//! A node with one pod whose traffic is redirected as by Istio, with rules written here.

use std::fmt::Write as _;
use std::net::SocketAddr;

use kit::{InpodOptions, InpodZtunnel, Netns, Node, NodeOptions, Pod, PodSandbox};

use super::agent::{Agent, Connection, DONE, SNAPSHOT};

pub(super) struct Fixture {
    pub(super) connection: Connection,
    // Pods are dropped before their node.
    pub(super) ztunnel: InpodZtunnel,
    pub(super) pod: PodSandbox,
    pub(super) node: Node,
    pub(super) agent: Agent,
}

/// A port in the pod, and an external one.
pub(super) const INBOUND: u16 = 8080;
pub(super) const OUTBOUND: u16 = 80;

pub(super) fn fixture() -> Fixture {
    fixture_with(InpodOptions { dns_capture: true, ..InpodOptions::default() })
}

pub(super) fn fixture_with(options: InpodOptions) -> Fixture {
    let agent = Agent::listening();
    let node = Node::new(NodeOptions::default());
    let pod = node.pod(Pod::new("default", "app"), &[]);
    let ztunnel = InpodZtunnel::start(&node, "ztunnel-a", &agent.path(), options);
    let connection = agent.accept();
    assert_eq!(connection.add(&pod.pod.uid, &pod.netns), DONE);
    assert_eq!(connection.ask(&SNAPSHOT), DONE);
    capture(&pod.netns, false);
    capture(&pod.netns, true);
    Fixture { connection, ztunnel, pod, node, agent }
}

pub(super) fn outside(fixture: &Fixture, v6: bool, port: u16) -> SocketAddr {
    (fixture.node.outside_ip(v6), port).into()
}

/// Creates routes, then rules, in the pod.
fn capture(netns: &Netns, v6: bool) {
    let (ip, all, restore) = if v6 {
        ("ip -6", "::/0", "ip6tables-nft-restore")
    } else {
        ("ip", "0.0.0.0/0", "iptables-nft-restore")
    };
    netns.sh(&format!("{ip} route replace local {all} dev lo table 100"));
    netns.sh(&format!("{ip} rule add fwmark 0x111/0xfff pref 32764 lookup 100"));
    netns.pipe(restore, &rules(v6));
}

fn rules(v6: bool) -> String {
    let (lo, probe) = if v6 {
        ("::1/128", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff")
    } else {
        ("127.0.0.1/32", "169.254.7.127")
    };
    let ours = "-m mark --mark 0x539/0xfff";
    let theirs = "-m mark ! --mark 0x539/0xfff";
    let restore = "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff";
    let mangle = [
        format!("ISTIO_PRERT {ours} -j CONNMARK --set-xmark 0x111/0xfff"),
        format!("ISTIO_OUTPUT -m connmark --mark 0x111/0xfff {restore}"),
    ];
    let nat = [
        format!("ISTIO_PRERT -s {probe} -p tcp -m tcp -j ACCEPT"),
        format!("ISTIO_OUTPUT -d {probe} -p tcp -m tcp -j ACCEPT"),
        format!("ISTIO_PRERT ! -d {lo} -p tcp ! --dport 15008 {theirs} -j REDIRECT --to-ports 15006"),
        format!("ISTIO_OUTPUT ! -o lo -p udp {theirs} -m udp --dport 53 -j REDIRECT --to-port 15053"),
        format!("ISTIO_OUTPUT ! -d {lo} -p tcp --dport 53 {theirs} -j REDIRECT --to-ports 15053"),
        "ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT".to_owned(),
        format!("ISTIO_OUTPUT ! -d {lo} -o lo -j ACCEPT"),
        format!("ISTIO_OUTPUT ! -d {lo} -p tcp {theirs} -j REDIRECT --to-ports 15001"),
    ];
    let raw = [
        format!("ISTIO_OUTPUT -p udp {ours} -m udp --dport 53 -j CT --zone 1"),
        format!("ISTIO_PRERT -p udp {theirs} -m udp --sport 53 -j CT --zone 1"),
    ];
    [table("mangle", &mangle), table("nat", &nat), table("raw", &raw)].concat()
}

fn table(name: &str, rules: &[String]) -> String {
    let jumps = "-A PREROUTING -j ISTIO_PRERT\n-A OUTPUT -j ISTIO_OUTPUT";
    let mut text = format!("*{name}\n-N ISTIO_PRERT\n-N ISTIO_OUTPUT\n{jumps}\n");
    for rule in rules {
        writeln!(text, "-A {rule}").unwrap();
    }
    text + "COMMIT\n"
}
