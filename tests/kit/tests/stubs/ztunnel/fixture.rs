//! A node with one pod, of which external ports 80 to 99 and its own port 8080 are captured.

use std::net::SocketAddr;

use kit::{Node, NodeOptions, Pod, PodSandbox, Ztunnel, ZtunnelOptions};

pub(super) struct Fixture {
    // Pods are dropped before their node.
    pub(super) ztunnel: Ztunnel,
    pub(super) pod: PodSandbox,
    pub(super) node: Node,
}

/// Ports whose connections are captured, external and in the pod.
pub(super) const CAPTURED: u16 = 80;
pub(super) const INBOUND: u16 = 8080;
/// An external port that is not captured.
pub(super) const DIRECT: u16 = 8000;

pub(super) fn fixture() -> Fixture {
    fixture_with(ZtunnelOptions { dns_capture: true, ..ZtunnelOptions::default() })
}

pub(super) fn fixture_with(options: ZtunnelOptions) -> Fixture {
    let node = Node::new(NodeOptions::default());
    let pod = node.pod(Pod::new("default", "app"), &[]);
    let ztunnel = Ztunnel::start(&node, "ztunnel-a", options);
    let fixture = Fixture { ztunnel, pod, node };
    fixture.links();
    for v6 in [false, true] {
        fixture.steer(v6);
        fixture.take(v6);
    }
    fixture
}

pub(super) fn outside(fixture: &Fixture, v6: bool, port: u16) -> SocketAddr {
    (fixture.node.outside_ip(v6), port).into()
}

/// The node's end of a pod's link.
pub(super) fn link_of(pod: &PodSandbox) -> &str {
    let interfaces = pod.result["interfaces"].as_array().unwrap();
    let ours = interfaces.iter().find(|one| one.get("sandbox").is_none_or(|sandbox| sandbox == ""));
    ours.unwrap()["name"].as_str().unwrap()
}

impl Fixture {
    fn links(&self) {
        let (node, inside) = (self.node.netns(), &self.ztunnel.pod().netns);
        for (number, name) in ["pistioout", "pistioin"].iter().enumerate() {
            node.sh(&format!("ip link add {name} type veth peer name {name} netns {}", inside.name()));
            for (netns, host) in [(&**node, 1), (inside, 2)] {
                netns.sh(&format!("ip address add 192.168.{number}.{host}/30 dev {name}"));
                netns.sh(&format!("ip address add fd16:{number}::{host}/64 dev {name}"));
                netns.sh(&format!("ip link set {name} up"));
            }
            node.wait_until_running(name);
            inside.wait_until_running(name);
        }
    }

    /// Creates the node's rules: connections, and replies to ztunnel's onward connections, are routed to ztunnel.
    fn steer(&self, v6: bool) {
        let ip = if v6 { "ip -6" } else { "ip -4" };
        let (pod, ztunnel) = (link_of(&self.pod), link_of(self.ztunnel.pod()));
        let far = |number: u8| {
            if v6 { format!("fd16:{number}::2") } else { format!("192.168.{number}.2") }
        };
        for line in [
            format!("rule add pref 10 iif {pod} ipproto tcp dport {CAPTURED}-99 lookup 101"),
            format!("rule add pref 11 iif eth0 ipproto tcp sport {CAPTURED}-99 lookup 102"),
            format!("rule add pref 12 iif eth0 ipproto tcp dport {INBOUND} lookup 103"),
            format!("rule add pref 13 iif {pod} ipproto tcp sport {INBOUND} lookup 102"),
            format!("route add default via {} dev pistioout table 101", far(0)),
            format!("route add default via {} dev {ztunnel} onlink table 102", self.ztunnel.ip(v6)),
            format!("route add default via {} dev pistioin table 103", far(1)),
        ] {
            self.node.netns().sh(&format!("{ip} {line}"));
        }
    }

    /// Creates the rules in ztunnel's namespace: all packets are delivered locally.
    fn take(&self, v6: bool) {
        let (netns, own) = (&self.ztunnel.pod().netns, self.ztunnel.ip(v6));
        let (iptables, ip, all) =
            if v6 { ("ip6tables", "ip -6", "::/0") } else { ("iptables", "ip -4", "0.0.0.0/0") };
        netns.sh(&format!("{ip} rule add fwmark 0x400/0xfff lookup 100"));
        netns.sh(&format!("{ip} route add local {all} dev lo table 100"));
        for (link, port) in [("pistioout", 15001), ("pistioin", 15006)] {
            netns.sh(&format!(
                "{iptables} -t mangle -A PREROUTING -i {link} -p tcp -j TPROXY --on-port {port} --tproxy-mark 0x400/0xfff"
            ));
        }
        netns.sh(&format!(
            "{iptables} -t mangle -A PREROUTING -i eth0 -p tcp ! -d {own} -j MARK --set-xmark 0x400/0xfff"
        ));
    }
}
