//! Proof by a packet: what the agent finds out of a pod by packets that it sends there, and that nobody else sees them.

use kit::{InpodOptions, Pod};
use model::Family;
use proof::{ProofSpec, ProxyIdentity};
use report::{Proof, ProofPath, ProofResult};
use rules::inpod::{InPodRulesConfig, PodOptions};

use crate::fixtures::ambient::{Ambient, MESH, PLAIN, Peer};
use crate::fixtures::inpod::InPod;
use crate::fixtures::tables::Tables;

/// Counts packets for documentation addresses that come to the node, and those that it would forward.
const COUNTERS: &str = "table inet proof {
    counter arrived {}
    counter forwarded {}
    chain in {
        type filter hook prerouting priority -450
        ip daddr 192.0.2.0/24 counter name arrived
        ip6 daddr 2001:db8::/32 counter name arrived
    }
    chain on {
        type filter hook forward priority -450
        ip daddr 192.0.2.0/24 counter name forwarded
        ip6 daddr 2001:db8::/32 counter name forwarded
    }
}
";

/// The proof of a pod by the command, whose exit status fits.
fn prove(fixture: &Ambient, pod: &str) -> Proof {
    let output = fixture.container.exec(&["prove", pod, "-o", "json"]);
    let proof: Proof = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_eq!(output.status.code(), Some(proof.status().into()), "{proof:?}");
    proof
}

/// The result of a path in both families, which are the same.
fn result(paths: &[ProofPath], name: &str) -> ProofResult {
    let found = |family| paths.iter().find(|path| path.name == name && path.family == family);
    let [v4, v6] = [4, 6].map(|family| found(family).unwrap_or_else(|| panic!("no {name}: {paths:?}")));
    assert_eq!(v4.result, v6.result, "{paths:?}");
    v4.result
}

fn all_are(paths: &[ProofPath], expected: ProofResult) {
    assert!(!paths.is_empty() && paths.iter().all(|path| path.result == expected), "{paths:#?}");
}

/// Packets and their number, by the counter's name.
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
    let peer = fixture.mesh_pod("app");
    fixture.wait_captured(&peer);
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
    ];
    let found: Vec<&str> = proof.paths.iter().map(|path| path.name.as_str()).collect();
    assert_eq!(found, [names, names].concat(), "{proof:#?}");
    assert_eq!(ztunnel.seen(), []);
    // Those of the proxy leave the pod, as they are to, and end at the node.
    assert_eq!((count(&fixture, "arrived"), count(&fixture, "forwarded")), (6, 0), "{proof:#?}");
    for documentation in ["192.0.2.", "2001:db8:"] {
        assert!(!entries(&peer).contains(documentation), "{}", entries(&peer));
    }
    // Its text is for people.
    let shown = fixture.container.exec(&["prove", "mesh/app"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.starts_with("mesh/app: proven\n"), "{shown}");
    assert!(shown.contains("redirected to 127.0.0.1:15001, where a process receives it"), "{shown}");
    // All pods of the node, and of a namespace.
    for (arguments, pods) in [(&["prove", "--all"][..], 1), (&["prove", "--all", "-n", "other"], 0)] {
        let all = fixture.container.exec(&[arguments, &["-o", "json"]].concat());
        let all: (_, Vec<Proof>) = (all.status.code(), serde_json::from_slice(&all.stdout).unwrap());
        assert!(all.0 == Some(0) && all.1.len() == pods, "{all:?}");
    }
    assert_eq!(fixture.container.exec(&["prove", "--all", "mesh/app"]).status.code(), Some(2));
    // Repeating it changes nothing.
    all_are(&prove(&fixture, "mesh/app").paths, ProofResult::Proven);
    assert_eq!(ztunnel.seen(), []);
}

#[test]
fn a_pod_whose_ztunnel_is_gone_is_held() {
    let mut fixture = InPod::new(&[]);
    let mut ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let peer = fixture.mesh_pod("app");
    fixture.wait_captured(&peer);
    ztunnel.kill();
    let proof = prove(&fixture, "mesh/app");
    assert_eq!(result(&proof.paths, "application-tcp"), ProofResult::Held);
    assert_eq!(result(&proof.paths, "proxy-tcp"), ProofResult::Proven);
    assert_eq!(proof.status(), 2);
}

#[test]
fn a_rule_that_discards_is_told_from_one_that_redirects_elsewhere() {
    let mut fixture = InPod::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let peer = fixture.mesh_pod("app");
    fixture.wait_captured(&peer);
    let nft = |rules: &str| drop(peer.sandbox.netns.pipe("nft -f -", rules));
    nft(
        "table inet evil { chain out { type nat hook output priority -150; tcp dport 80 redirect to :9999; }; }",
    );
    let proof = prove(&fixture, "mesh/app");
    assert_eq!(result(&proof.paths, "application-tcp"), ProofResult::Bypasses);
    assert_eq!(result(&proof.paths, "proxy-tcp"), ProofResult::Held);
    assert!(proof.paths.iter().all(|path| path.message.contains(":9999")), "{proof:#?}");
    nft(
        "delete table inet evil\ntable inet evil { chain out { type filter hook output priority 10; tcp dport 15001 drop; }; }",
    );
    let proof = prove(&fixture, "mesh/app");
    assert_eq!(result(&proof.paths, "application-tcp"), ProofResult::Held);
    assert!(proof.paths[0].message.contains("EPERM"), "{proof:#?}");
}

#[test]
fn a_periodic_sample_counts_paths_and_logs_a_pod_that_bypasses_once() {
    let mut fixture = InPod::new(&[("PROOF_INTERVAL", "1s")]);
    let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let peers = ["app", "other"].map(|name| fixture.mesh_pod(name));
    let paths = |result: &str| format!("istio_cni_proof_paths_total{{result=\"{result}\"}}");
    let counted = |fixture: &InPod, result: &str| fixture.daemon.as_ref().unwrap().metric(&paths(result));
    fixture.eventually("both are proven", |_| counted(&fixture, "proven") >= Some(8.0));
    assert_eq!(counted(&fixture, "bypasses"), Some(0.0));
    let evil = "table inet evil { chain out { type nat hook output priority -150; tcp dport 80 redirect to :9999; }; }";
    drop(peers[1].sandbox.netns.pipe("nft -f -", evil));
    // Two turns of each.
    fixture.eventually("it bypasses", |_| counted(&fixture, "bypasses") >= Some(4.0));
    assert_eq!(fixture.daemon().logged("a packet bypassed the proxy", "pod=other"), 1, "{}", fixture.log());
    peers[1].sandbox.netns.sh("nft delete table inet evil");
    fixture.wait_logged("packets no longer bypass the proxy", "namespace=mesh pod=other");
}

/// Without an agent, which would restore them at once.
#[test]
fn a_pod_without_its_rules_bypasses() {
    let mut fixture = InPod::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let peer = fixture.mesh_pod("app");
    fixture.wait_captured(&peer);
    drop(fixture.daemon.take());
    let config = InPodRulesConfig::default();
    let rules = |family| (family, rules::inpod::pod(&config, &PodOptions::default(), family));
    let spec = ProofSpec { rules: Family::BOTH.map(rules).into(), proxy: ProxyIdentity::Mark(config.proxy) };
    let netns = netns::Netns::open(peer.sandbox.netns.path()).unwrap();
    let prove = || proof::prove(&netns, &spec).unwrap();
    all_are(&prove(), ProofResult::Proven);
    let tables = fixture.tables;
    peer.sandbox.netns.sh(&tables.flush_nat("ISTIO_OUTPUT"));
    let family = |family| move |path: &ProofPath| path.name == "application-tcp" && path.family == family;
    let v4 = prove().into_iter().find(family(4)).unwrap();
    assert_eq!(v4.result, ProofResult::Bypasses, "{v4:?}");
    peer.sandbox.netns.sh(match tables {
        Tables::Legacy => "ip6tables-legacy -t nat -F",
        Tables::Iptables | Tables::Native => "nft flush ruleset",
    });
    assert_eq!(result(&prove(), "application-tcp"), ProofResult::Bypasses);
    assert_eq!(result(&prove(), "proxy-tcp"), ProofResult::Proven);
    // A namespace that never had any.
    let blank = fixture.node.pod(Pod::new(PLAIN, "blank"), &[]);
    let netns = netns::Netns::open(blank.netns.path()).unwrap();
    assert_eq!(result(&proof::prove(&netns, &spec).unwrap(), "application-tcp"), ProofResult::Bypasses);
}

#[test]
fn what_is_not_captured_in_its_namespace_is_not_testable() {
    let mut fixture = InPod::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let outside = fixture.running_pod(PLAIN, "outside");
    fixture.eventually("the agent knows it", |fixture| prove(fixture, "plain/outside").found);
    let proof = prove(&fixture, "plain/outside");
    assert!(proof.message.unwrap().contains("outside of the mesh"), "{}", outside.sandbox.pod.name);
    assert_eq!(prove(&fixture, &format!("{MESH}/nobody")).status(), 3);
    for wrong in [&["prove"][..], &["prove", "app"], &["prove", "a/b/c"]] {
        assert_eq!(fixture.container.exec(wrong).status.code(), Some(2), "{wrong:?}");
    }
    drop(fixture.daemon.take());
    let unanswered = fixture.container.exec(&["prove", "mesh/app"]);
    assert_eq!(unanswered.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unanswered.stderr).contains("no agent runs here"), "{unanswered:?}");
}
