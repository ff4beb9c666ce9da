//! Proof by a packet: the results of the packets that the agent sends in a pod, which no other host receives.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use kit::{Echo, InpodOptions, Pod, Proto};
use model::Family;
use proof::{InboundSpec, ProofSpec, ProxyIdentity};
use report::{Proof, ProofPath, ProofResult};
use rules::inpod::{InPodRulesConfig, PodOptions};
use socket2::{Domain, Socket, Type};

use crate::fixtures::ambient::{Ambient, MESH, PLAIN, PORT, Peer};
use crate::fixtures::inpod::{InPod, wait_relayed};
use crate::fixtures::tables::Tables;

/// Counts packets for documentation addresses and the probes' source that arrive at the node, and those that it would forward.
const COUNTERS: &str = "table inet proof {
    counter arrived {}
    counter forwarded {}
    chain in {
        type filter hook prerouting priority -450
        ip daddr 192.0.2.0/24 counter name arrived
        ip6 daddr 2001:db8::/32 counter name arrived
        ip daddr 169.254.7.127 counter name arrived
        ip6 daddr fd16:9254:7127:1337:ffff:ffff:ffff:ffff counter name arrived
    }
    chain on {
        type filter hook forward priority -450
        ip daddr 192.0.2.0/24 counter name forwarded
        ip6 daddr 2001:db8::/32 counter name forwarded
    }
}
";

/// Runs the proof of a pod by the command, and checks its exit status.
fn prove(fixture: &Ambient, pod: &str) -> Proof {
    kit::until("a proof in time", || {
        let output = fixture.container.exec(&["prove", pod, "-o", "json"]);
        let proof: Proof = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!(output.status.code(), Some(proof.exit_status().into()), "{proof:?}");
        is_in_time(&proof.paths).then_some(proof)
    })
}

/// Whether the machine did not stall for the second that all packets of a proof have.
fn is_in_time(paths: &[ProofPath]) -> bool {
    paths.iter().all(|path| path.message != "timed out")
}

/// Result of a path, which must be equal in both families.
fn result(paths: &[ProofPath], name: &str) -> ProofResult {
    let found = |family| paths.iter().find(|path| path.name == name && path.family == family);
    let [v4, v6] = [4, 6].map(|family| found(family).unwrap_or_else(|| panic!("no {name}: {paths:?}")));
    assert_eq!(v4.result, v6.result, "{paths:?}");
    v4.result
}

/// Paths of outbound packets.
fn sent(proof: &Proof) -> impl Iterator<Item = &ProofPath> {
    proof.paths.iter().filter(|path| !path.name.starts_with("inbound-"))
}

fn all_are(paths: &[ProofPath], expected: ProofResult) {
    assert!(!paths.is_empty() && paths.iter().all(|path| path.result == expected), "{paths:#?}");
}

/// Packet count of a counter.
fn count(fixture: &Ambient, counter: &str) -> u64 {
    let shown = fixture.node.netns().sh(&format!("nft list counter inet proof {counter}"));
    let words: Vec<&str> = shown.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "packets").unwrap();
    words[at + 1].parse().unwrap()
}

fn entries(pod: &Peer) -> String {
    ["ipv4", "ipv6"].map(|family| pod.sandbox.netns.sh(&format!("conntrack -L -f {family}"))).concat()
}

#[test]
fn a_captured_pod_is_proven_and_neither_the_proxy_nor_the_network_sees_a_packet() {
    let mut fixture = InPod::new(&[("AMBIENT_DNS_CAPTURE", "true")]);
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions { dns_capture: true, ..InpodOptions::default() });
    let peer = fixture.captured_pod("app");
    fixture.node.netns().pipe("nft -f -", COUNTERS);
    let proof = prove(&fixture, "mesh/app");
    all_are(&proof.paths, ProofResult::Proven);
    let names = [
        "application-tcp",
        "proxy-tcp",
        "application-dns-udp",
        "proxy-dns-udp",
        "application-dns-tcp",
        "proxy-dns-tcp",
        "inbound-tcp",
        "inbound-tunnel",
        "inbound-probe",
    ];
    let found: Vec<&str> = proof.paths.iter().map(|path| path.name.as_str()).collect();
    assert_eq!(found, [names, names].concat(), "{proof:#?}");
    assert_eq!(ztunnel.seen(), []);
    // The proxy's packets leave the pod, as intended, and end at the node. Those that arrived are not answered.
    assert_eq!((count(&fixture, "arrived"), count(&fixture, "forwarded")), (6, 0), "{proof:#?}");
    for documentation in ["192.0.2.", "2001:db8:", "169.254.7.127", "fd16:"] {
        assert!(!entries(&peer).contains(documentation), "{}", entries(&peer));
    }
    // The text output is for people.
    let shown = fixture.container.exec(&["prove", "mesh/app"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.starts_with("mesh/app: proven\n"), "{shown}");
    let message = "redirected to 127.0.0.1:15001, where a process receives it";
    let row = format!("application-tcp IPv4 192.0.2.1:80 proven {message}");
    let mut rows = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    assert!(rows.any(|one| one == row), "{shown}");
    // All pods of the node, and those of a namespace.
    for (arguments, pods) in [(&["prove", "--all"][..], 1), (&["prove", "--all", "-n", "other"], 0)] {
        let all = fixture.container.exec(&[arguments, &["-o", "json"]].concat());
        let all: (_, Vec<Proof>) = (all.status.code(), serde_json::from_slice(&all.stdout).unwrap());
        assert!(all.0 == Some(0) && all.1.len() == pods, "{all:?}");
    }
    assert_eq!(fixture.container.exec(&["prove", "--all", "mesh/app"]).status.code(), Some(2));
    // A repetition changes nothing.
    all_are(&prove(&fixture, "mesh/app").paths, ProofResult::Proven);
    assert_eq!(ztunnel.seen(), []);
}

#[test]
fn a_pod_whose_ztunnel_is_gone_is_held() {
    let (mut fixture, mut ztunnel) = InPod::with_ztunnel(&[]);
    let _peer = fixture.captured_pod("app");
    ztunnel.kill();
    let proof = prove(&fixture, "mesh/app");
    assert_eq!(result(&proof.paths, "application-tcp"), ProofResult::Held);
    assert_eq!(result(&proof.paths, "proxy-tcp"), ProofResult::Proven);
    assert_eq!(proof.exit_status(), 2);
}

/// Listens at an address beside ztunnel, for which a process needs no capability, only ztunnel's user.
fn listen_beside_ztunnel(at: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.bind(&at.into()).unwrap();
    socket.listen(8).unwrap();
    socket
}

/// The kernel prefers a socket that listens on the address itself to ztunnel's, which listens on all.
#[test]
fn another_process_at_ztunnels_port_is_no_proof() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let peer = fixture.captured_pod("app");
    let port = InPodRulesConfig::default().inbound.0;
    let ends = [false, true].map(|v6| SocketAddr::new(peer.ip(v6), port));
    let sockets = peer.sandbox.netns.run(|| ends.map(listen_beside_ztunnel));
    let proof = prove(&fixture, "mesh/app");
    assert_eq!(result(&proof.paths, "inbound-tcp"), ProofResult::Bypasses);
    assert_eq!(result(&proof.paths, "application-tcp"), ProofResult::Proven);
    drop(sockets);
    all_are(&prove(&fixture, "mesh/app").paths, ProofResult::Proven);
}

#[test]
fn a_rule_that_discards_is_told_from_one_that_redirects_elsewhere() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let peer = fixture.captured_pod("app");
    let nft = |rules: &str| drop(peer.sandbox.netns.pipe("nft -f -", rules));
    nft(
        "table inet evil { chain out { type nat hook output priority -150; tcp dport 80 redirect to :9999; }; }",
    );
    let proof = prove(&fixture, "mesh/app");
    assert_eq!(result(&proof.paths, "application-tcp"), ProofResult::Bypasses);
    assert_eq!(result(&proof.paths, "proxy-tcp"), ProofResult::Held);
    let led = ["127.0.0.1", "[::1]"].map(|lo| {
        let way = format!("redirected to {lo}:9999");
        [
            format!("{way} instead of port 15001 by another component's rule"),
            format!("{way}: the proxy cannot reach its destination"),
        ]
    });
    let messages: BTreeSet<&String> = sent(&proof).map(|path| &path.message).collect();
    assert_eq!(messages, led.iter().flatten().collect(), "{proof:#?}");
    nft(
        "delete table inet evil\ntable inet evil { chain out { type filter hook output priority 10; tcp dport 15001 drop; }; }",
    );
    let proof = prove(&fixture, "mesh/app");
    assert_eq!(result(&proof.paths, "application-tcp"), ProofResult::Held);
    let dropped = "a rule or a full connection tracking table discards it (EPERM)";
    assert_eq!(proof.paths[0].message, dropped, "{proof:#?}");
}

/// Real connections from outside the node, and the proof's packets.
#[test]
fn what_arrives_takes_the_path_of_real_connections() {
    use ProofResult::{Bypasses, Held, NotTestable, Proven};
    let (mut fixture, mut ztunnel) = InPod::with_ztunnel(&[]);
    let peer = fixture.captured_pod("app");
    let _foreign = Echo::tcp(&peer.sandbox.netns, 9999);
    let found = |expected: [ProofResult; 3]| {
        let proof = prove(&fixture, "mesh/app");
        let results =
            ["inbound-tcp", "inbound-tunnel", "inbound-probe"].map(|name| result(&proof.paths, name));
        assert_eq!(results, expected, "{proof:#?}");
    };
    let listener = |v6| {
        let seen = kit::connect(fixture.node.outside(), Proto::Tcp, peer.at(v6));
        seen.ok().map(|seen| seen.listener)
    };
    found([Proven, Proven, Proven]);
    assert_eq!(ztunnel.seen(), []);
    for v6 in [false, true] {
        assert_eq!(listener(v6), Some(PORT));
        wait_relayed(&ztunnel, fixture.node.outside_ip(v6), peer.at(v6));
    }
    let nft = |rules: &str| drop(peer.sandbox.netns.pipe("nft -f -", rules));
    nft(
        "table inet evil { chain in { type nat hook prerouting priority -150; tcp dport { 80, 8080 } redirect to :9999; }; }",
    );
    found([Bypasses, Proven, Held]);
    assert_eq!([false, true].map(listener), [Some(9999); 2]);
    nft(
        "delete table inet evil\ntable inet evil { chain in { type filter hook input priority 10; tcp dport 15006 drop; }; }",
    );
    found([Held, Proven, Proven]);
    nft(
        "delete table inet evil\ntable inet evil { chain in { type filter hook prerouting priority -310; tcp dport { 80, 8080 } notrack; }; }",
    );
    // An established connection. The application's answer counts as the first packet of another one, which is redirected.
    found([Bypasses, Proven, Proven]);
    nft("delete table inet evil");
    // The socket discards broadcasts and multicasts on the link, which a real connection is not.
    let discard = |value| {
        for parameter in ["ipv4.conf.all", "ipv6.conf.eth0"] {
            let parameter = format!("net.{parameter}.drop_unicast_in_l2_multicast");
            peer.sandbox.netns.sh(&format!("sysctl -qw {parameter}={value}"));
        }
    };
    discard(1);
    found([NotTestable; 3]);
    assert_eq!([false, true].map(listener), [Some(PORT); 2]);
    discard(0);
    ztunnel.kill();
    found([Held, Held, Proven]);
    assert_eq!([false, true].map(listener), [None; 2]);
}

#[test]
fn a_periodic_sample_counts_paths_and_logs_a_pod_that_bypasses_once() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[("PROOF_INTERVAL", "1s")]);
    let peers = ["app", "other"].map(|name| fixture.mesh_pod(name));
    let paths = |result: &str| format!("istio_cni_proof_paths_total{{result=\"{result}\"}}");
    let counted = |fixture: &InPod, result: &str| fixture.daemon.as_ref().unwrap().metric(&paths(result));
    fixture.eventually("both are proven", |_| counted(&fixture, "proven") >= Some(8.0));
    assert_eq!(counted(&fixture, "bypasses"), Some(0.0));
    let evil = "table inet evil { chain out { type nat hook output priority -150; tcp dport 80 redirect to :9999; }; }";
    drop(peers[1].sandbox.netns.pipe("nft -f -", evil));
    // Two proofs of each.
    fixture.eventually("it bypasses", |_| counted(&fixture, "bypasses") >= Some(4.0));
    assert_eq!(fixture.daemon().logged("a packet bypassed the proxy", "pod=other"), 1, "{}", fixture.log());
    peers[1].sandbox.netns.sh("nft delete table inet evil");
    fixture.wait_logged("packets no longer bypass the proxy", "namespace=mesh pod=other");
}

/// Without an agent, which would restore them immediately.
#[test]
fn a_pod_without_its_rules_bypasses() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let peer = fixture.captured_pod("app");
    drop(fixture.daemon.take());
    let config = InPodRulesConfig::default();
    let rules = |family| (family, rules::inpod::pod_rules(&config, &PodOptions::default(), family));
    let inbound = InboundSpec { tunnel: config.tunnel, probes: Some(config.probes) };
    let proxy = ProxyIdentity::Mark(config.proxy);
    let spec = ProofSpec { rules: Family::BOTH.map(rules).into(), proxy, inbound };
    let node = netns::Netns::open(fixture.node.netns().path()).unwrap();
    let prove_in = |netns: &kit::Netns| {
        let netns = netns::Netns::open(netns.path()).unwrap();
        kit::until("a proof in time", || {
            // As an agent in another network namespace than the node's.
            let paths = proof::prove(&netns, Some(&node), &spec).unwrap();
            is_in_time(&paths).then_some(paths)
        })
    };
    let prove = || prove_in(&peer.sandbox.netns);
    all_are(&prove(), ProofResult::Proven);
    let tables = fixture.tables;
    for chain in ["ISTIO_OUTPUT", "ISTIO_PRERT"] {
        peer.sandbox.netns.sh(&tables.flush_nat(chain));
    }
    let found = prove();
    for name in ["application-tcp", "inbound-tcp"] {
        let v4 = found.iter().find(|path| path.name == name && path.family == 4).unwrap();
        assert_eq!(v4.result, ProofResult::Bypasses, "{v4:?}");
    }
    peer.sandbox.netns.sh(match tables {
        Tables::Legacy => "ip6tables-legacy -w -t nat -F",
        Tables::Iptables | Tables::Native => "nft flush ruleset",
    });
    let found = prove();
    for (name, expected) in [
        ("application-tcp", ProofResult::Bypasses),
        ("proxy-tcp", ProofResult::Proven),
        ("inbound-tcp", ProofResult::Bypasses),
        ("inbound-tunnel", ProofResult::Proven),
        ("inbound-probe", ProofResult::Proven),
    ] {
        assert_eq!(result(&found, name), expected, "{name}");
    }
    for v6 in [false, true] {
        let seen = kit::connect(fixture.node.outside(), Proto::Tcp, peer.at(v6)).unwrap();
        assert_eq!(seen.listener, PORT, "as its packets have shown");
    }
    // A namespace that never had rules.
    let blank = fixture.node.pod(Pod::new(PLAIN, "blank"), &[]);
    let found = prove_in(&blank.netns);
    for name in ["application-tcp", "inbound-tcp"] {
        assert_eq!(result(&found, name), ProofResult::Bypasses, "{name}");
    }
}

#[test]
fn what_is_not_captured_in_its_namespace_is_not_testable() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let outside = fixture.running_pod(PLAIN, "outside");
    fixture.eventually("the agent knows it", |fixture| prove(fixture, "plain/outside").found);
    let proof = prove(&fixture, "plain/outside");
    let why = "its namespace is not labelled istio.io/dataplane-mode=ambient";
    let message = format!("it is outside of the mesh: {why}");
    assert_eq!(proof.message, Some(message), "{}", outside.sandbox.pod.name);
    assert_eq!(prove(&fixture, &format!("{MESH}/nobody")).exit_status(), 3);
    for wrong in [&["prove"][..], &["prove", "app"], &["prove", "a/b/c"]] {
        assert_eq!(fixture.container.exec(wrong).status.code(), Some(2), "{wrong:?}");
    }
    drop(fixture.daemon.take());
    let unanswered = fixture.container.exec(&["prove", "mesh/app"]);
    let complaint = String::from_utf8_lossy(&unanswered.stderr).into_owned();
    let expected = "install-cni: no agent runs here: nothing serves /var/run/istio-cni/debug.sock; run this in the agent's container on the \
                    pod's node, or name its directory by --cni-agent-run-dir: Connection refused (os error 111)\n";
    assert_eq!((unanswered.status.code(), complaint.as_str()), (Some(2), expected));
}
