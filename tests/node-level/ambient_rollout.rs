//! A new ztunnel takes over and the old one ends, without effect on traffic.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kit::{
    Daemon, Echo, Live, LiveConnections, Netns, NodeOptions, TempDir, UplinkWatch, Ztunnel, ZtunnelOptions,
};

use crate::fixtures::ambient::{Ambient, MESH, PLAIN, PORT, Peer};

const OUTSIDE: u16 = 9000;

/// Long-lived connections of every kind, in both families.
struct Crowd {
    clients: Vec<LiveConnections>,
}

impl Crowd {
    fn open(fixture: &Ambient, mesh: &[&Peer], plain: &Peer, each: usize) -> Self {
        let live = Live { every: Duration::from_millis(20), stall: Duration::from_secs(5) };
        let [first, second] = mesh else { panic!("two pods of the mesh") };
        let outside = |v6| SocketAddr::new(fixture.node.outside_ip(v6), OUTSIDE);
        let ways: [(&Netns, Vec<SocketAddr>); 4] = [
            (
                &first.sandbox.netns,
                [false, true].into_iter().flat_map(|v6| [second.at(v6), outside(v6), plain.at(v6)]).collect(),
            ),
            (fixture.node.outside(), [false, true].map(|v6| second.at(v6)).to_vec()),
            (fixture.node.netns(), [false, true].map(|v6| second.at(v6)).to_vec()),
            (
                &plain.sandbox.netns,
                [false, true].into_iter().flat_map(|v6| [second.at(v6), outside(v6)]).collect(),
            ),
        ];
        let clients = ways.into_iter().map(|(netns, targets)| {
            let mut client = LiveConnections::start(netns, live);
            for target in targets {
                client.open(target, each);
            }
            client
        });
        Self { clients: clients.collect() }
    }

    fn wait_round(&mut self) {
        self.clients.iter_mut().for_each(LiveConnections::wait_round);
    }

    fn finish(self) -> (usize, u64, Duration) {
        let reports: Vec<_> = self.clients.into_iter().map(LiveConnections::finish).collect();
        for report in &reports {
            report.assert_unbroken();
        }
        let connections = reports.iter().map(|report| report.connections).sum();
        let slowest = reports.iter().map(|report| report.slowest).max().unwrap();
        (connections, reports.iter().map(|report| report.exchanges).sum(), slowest)
    }
}

#[test]
fn twenty_switches_break_nothing_and_let_nothing_out() {
    let mut fixture = Ambient::new(&[]);
    let ztunnels = [fixture.ztunnel("ztunnel-a"), fixture.ztunnel("ztunnel-b")];
    let (first, second, plain) =
        (fixture.pod(MESH, "first"), fixture.pod(MESH, "second"), fixture.pod(PLAIN, "plain"));
    let _outside = Echo::tcp(fixture.node.outside(), OUTSIDE);
    let addresses: Vec<_> = [&first, &second].into_iter().flat_map(|peer| peer.sandbox.ips()).collect();
    let node = Arc::clone(&fixture.node);
    let watch = UplinkWatch::start(&node, &addresses);
    let mut crowd = Crowd::open(&fixture, &[&first, &second], &plain, 8);
    // One is reported a moment after its client has it: all except those of the node, and of the plain pod to the outside.
    let _ = ztunnels[1].wait_seen_count(8 * 10);
    for round in 0..20 {
        let (new, old) = (&ztunnels[round % 2], &ztunnels[(round + 1) % 2]);
        fixture.announce(new, true);
        fixture.wait_switches(round + 1);
        let (before, known) = (old.seen().len(), new.seen().len());
        for v6 in [false, true] {
            let outside = SocketAddr::new(fixture.node.outside_ip(v6), OUTSIDE);
            let local = first.tcp(outside).unwrap().peer.ip();
            assert_eq!(local, first.ip(v6));
            new.wait_seen_after(known, |relayed| relayed.dst == outside && relayed.src.ip() == local);
        }
        crowd.wait_round();
        assert_eq!(old.seen().len(), before, "no new connection on the old one");
    }
    let (connections, exchanges, slowest) = crowd.finish();
    println!("{connections} connections, {exchanges} exchanges, slowest {slowest:?}");
    assert!(connections >= 100);
    let counts = watch.total();
    assert_eq!(counts.direct, 0, "{counts:?}");
}

/// All slow steps are complete before it is ready: only routes are left for the switch.
#[test]
fn a_ztunnel_that_is_coming_finds_its_slot_made() {
    let made = |daemon: &Daemon, kind: &str| {
        let sample = format!("istio_cni_ambient_plan_steps_total{{kind=\"{kind}\",result=\"success\"}}");
        daemon.metric(&sample).unwrap_or(0.0)
    };
    let mut fixture = Ambient::new(&[]);
    let first = fixture.ztunnel("ztunnel-a");
    let pod = fixture.pod(MESH, "first");
    let _outside = Echo::tcp(fixture.node.outside(), OUTSIDE);
    let outside = SocketAddr::new(fixture.node.outside_ip(false), OUTSIDE);
    let coming = Ztunnel::start(&fixture.node, "ztunnel-b", ZtunnelOptions::default());
    fixture.announce(&coming, false);
    // For each of the two: two pairs of links, rules in its namespace and on the node.
    let all_made = |daemon: &Daemon| made(daemon, "create-links") == 4.0 && made(daemon, "firewall") == 4.0;
    fixture.daemon().wait_for("its slot is made", all_made);
    pod.tcp(outside).unwrap();
    first.wait_seen(|relayed| relayed.dst == outside);
    assert_eq!(coming.seen(), [], "it is not ready yet");
    fixture.announce(&coming, true);
    fixture.wait_active(&coming);
    pod.tcp(outside).unwrap();
    coming.wait_seen(|relayed| relayed.dst == outside);
    assert!(all_made(fixture.daemon()), "nothing more was made");
}

/// Restore tools that fail while the file `broken` is beside them, in every namespace except this node's.
fn breakable_tools(node: &Netns) -> TempDir {
    let tools = TempDir::new().unwrap();
    let own = node.sh("readlink /proc/self/ns/net");
    for tool in ["iptables-legacy-restore", "ip6tables-legacy-restore"] {
        let path = tools.path().join(tool);
        let script = format!(
            "#!/bin/sh\nif [ -e /tools/broken ] && [ \"$(readlink /proc/self/ns/net)\" != \"{}\" ]; then\n\
             echo it is broken >&2; exit 4; fi\nPATH=${{PATH#*:}} exec {tool} \"$@\"\n",
            own.trim()
        );
        kit::write_script(&path, &script);
    }
    tools
}

/// The new ztunnel's rules are applied while other steps run, and are part of the plan nevertheless.
#[test]
fn a_ztunnel_that_refuses_its_rules_is_not_switched_to() {
    let path = format!("/tools:{}", std::env::var("PATH").unwrap());
    // Legacy tables: they are changed by tools, which can be made to fail.
    let env = [("PATH", path.as_str()), ("FORCE_IPTABLES_BINARY", "legacy")];
    let mut fixture = Ambient::stopped(NodeOptions::default(), &env);
    let tools = breakable_tools(fixture.node.netns());
    fixture.mount(tools.path(), "/tools");
    fixture.start();
    let first = fixture.ztunnel("ztunnel-a");
    let pod = fixture.pod(MESH, "first");
    let _outside = Echo::tcp(fixture.node.outside(), OUTSIDE);
    let outside = SocketAddr::new(fixture.node.outside_ip(false), OUTSIDE);
    std::fs::write(tools.path().join("broken"), "").unwrap();
    let next = Ztunnel::start(&fixture.node, "ztunnel-b", ZtunnelOptions::default());
    fixture.announce(&next, true);
    let missing = ["IPv4", "IPv6"].map(|family| {
        let chains =
            ["PREROUTING", "UPLINK"].map(|name| format!("{family}: mangle: chain ztunnel-{name} is missing"));
        [chains.join(", "), format!("{family}: mangle: PREROUTING does not jump to ztunnel-PREROUTING")]
            .join(", ")
    });
    let tool = "/tools/iptables-legacy-restore failed: resource problem (exit status 4): it is broken";
    let error = format!("ztunnel in slot 1: firewall: {}: {tool}", missing.join(", "));
    let refused = |daemon: &Daemon| daemon.has_logged("reconcile failed", &[("error", &error)]);
    fixture.daemon().wait_for("it is refused, with the tool's words", refused);
    pod.tcp(outside).unwrap();
    first.wait_seen(|relayed| relayed.dst == outside);
    let switched = format!("ztunnel={}", next.pod().pod.uid);
    assert_eq!(
        fixture.daemon().logged(crate::fixtures::ambient::SWITCHED, &switched),
        0,
        "{}",
        fixture.log()
    );
    assert_eq!(next.seen(), []);
    std::fs::remove_file(tools.path().join("broken")).unwrap();
    fixture.wait_active(&next);
    pod.tcp(outside).unwrap();
    next.wait_seen(|relayed| relayed.dst == outside);
}

/// A connection whose first packet went to a ztunnel that ended before answering belongs to the next one permanently: yet another
/// one in the dead one's slot does not get it.
#[test]
fn an_attempt_that_a_dead_ztunnel_got_belongs_to_its_successor() {
    let mut fixture = Ambient::new(&[]);
    let mut dead = fixture.ztunnel("ztunnel-a");
    let _outside = Echo::tcp(fixture.node.outside(), PORT);
    let pod = fixture.pod(MESH, "one");
    dead.kill();
    let node = Arc::clone(&fixture.node);
    let count = |family| format!("oifname \"istioout0\" meta nfproto {family} tcp flags syn counter\n");
    let counters = ["ipv4", "ipv6"].map(count).concat();
    let chain = format!("chain last {{\ntype filter hook postrouting priority 400\n{counters}}}");
    node.netns().pipe("nft -f -", &format!("table inet kit_sent {{\n{chain}\n}}\n"));
    let mut attempts = LiveConnections::start(&pod.sandbox.netns, Live::default());
    let outside = [false, true].map(|v6| SocketAddr::new(node.outside_ip(v6), PORT));
    let ids = outside.map(|target| attempts.begin(target, 1, Duration::from_secs(50))[0]);
    fixture.eventually("both attempts have reached the dead one's slot", |_| {
        !node.netns().packets("inet kit_sent").contains(&0)
    });
    let heir = fixture.ztunnel("ztunnel-b");
    dead.delete();
    fixture.manifests.remove_pod("istio-system", "ztunnel-a");
    for id in ids {
        attempts.outcome(id).unwrap_or_else(|error| panic!("{error}\n{}", fixture.log()));
    }
    for target in outside {
        let _ = heir.wait_seen(|relayed| relayed.dst == target); // it reports a connection a moment after it is established
    }
    assert_eq!(heir.seen().len(), 2, "{:?}", heir.seen());
    let next = fixture.ztunnel("ztunnel-c");
    assert!(fixture.is_captured(&pod));
    for v6 in [false, true] {
        let _ = next.wait_seen(|relayed| relayed.dst.is_ipv6() == v6); // as above
    }
    assert_eq!(next.seen().len(), 2, "{:?}", next.seen());
    attempts.wait_round();
    attempts.wait_round();
    attempts.finish().assert_unbroken();
}
