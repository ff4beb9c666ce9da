//! The agent detects the capture mode of ztunnel, and changes it under running pods.

use kit::{Echo, InpodOptions, InpodZtunnel};
use serde_json::{Value, json};

use crate::fixtures::ambient::{Ambient, MESH, PORT, Peer, dump_of};
use crate::fixtures::inpod::{IPTABLES, InPod, ours, wait_relayed};

/// Starts a ztunnel for in-pod capture, as its chart does: it is ready only when connected to the agent.
fn modern(fixture: &mut InPod, name: &str, created: &str) -> InpodZtunnel {
    let ztunnel = InpodZtunnel::start(&fixture.node, name, &fixture.socket(), InpodOptions::default());
    let mut manifest = ztunnel.manifest();
    manifest["metadata"]["creationTimestamp"] = created.into();
    manifest["spec"]["containers"][0]["env"] =
        serde_json::json!([{"name": "INPOD_ENABLED", "value": "true"}]);
    fixture.manifests.put_pod(&manifest);
    ztunnel
}

fn reaches(fixture: &InPod, peer: &Peer) {
    for v6 in [false, true] {
        let target = (fixture.node.outside_ip(v6), PORT).into();
        // A lost packet costs a second, which is not the subject of this test.
        fixture.eventually("it gets through", |_| peer.tcp(target).is_ok());
    }
}

/// Whether the policy rules of node-level capture exist.
fn has_node_path(fixture: &Ambient) -> bool {
    let rules: Value = serde_json::from_str(&fixture.node.netns().sh("ip -json rule")).unwrap();
    rules.as_array().unwrap().iter().any(|rule| rule["fwmark"] == "0x1000")
}

/// Number of pods that the metrics of in-pod capture count.
fn counted_pods(fixture: &mut Ambient) -> f64 {
    let daemon = fixture.daemon();
    let privileges = ["none", "runtime-default", "net-raw", "net-admin", "privileged"];
    let sample = |name: &str| format!("istio_cni_ambient_privileged_pods{{privilege=\"{name}\"}}");
    privileges.into_iter().filter_map(|name| daemon.metric(&sample(name))).sum()
}

#[test]
fn ztunnel_decides_and_may_change_its_mind() {
    let mut fixture = InPod::new(&[("AMBIENT_CAPTURE", "auto")]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    // A ztunnel for node-level capture.
    let old = fixture.ambient_ztunnel("ztunnel-old");
    let peer = fixture.running_pod(MESH, "app");
    fixture.wait_enrolled(&peer, true);
    assert!(fixture.is_captured(&peer));
    assert!(fixture.is_bare(&peer));
    // It is replaced by one for in-pod capture.
    let mut new = modern(&mut fixture, "ztunnel-new", "2026-06-01T00:00:00Z");
    fixture.wait_logged("capture mode changed", "mode=in-pod");
    new.wait_for_snapshots(1);
    fixture.wait_served(&new, &peer);
    fixture.eventually("its rules are there", |_| fixture.is_ruled(&peer));
    reaches(&fixture, &peer);
    wait_relayed(&new, peer.ip(false), (fixture.node.outside_ip(false), PORT).into());
    fixture.eventually("nothing of the node's path is left", |fixture| !has_node_path(fixture));
    fixture.wait_enrolled(&peer, false);
    let added = fixture.mesh_pod("added");
    reaches(&fixture, &added);
    let limit = std::time::Duration::from_secs(20);
    fixture.within(limit, "both pods are counted", |fixture| counted_pods(fixture) > 1.0);
    // And in the reverse order.
    assert_eq!(new.protocol_error(), None);
    new.kill();
    fixture.manifests.remove_pod("istio-system", "ztunnel-new");
    fixture.wait_logged("capture mode changed", "mode=node-level");
    fixture.eventually("the pods are bare", |_| fixture.is_bare(&peer) && fixture.is_bare(&added));
    fixture.wait_enrolled(&peer, true);
    assert!(fixture.is_captured(&peer));
    fixture.within(limit, "none is counted", |fixture| counted_pods(fixture) < 1.0);
    drop(old);
}

/// During neither change does a packet of a captured pod leave the node except through a ztunnel.
#[test]
fn nothing_bypasses_the_mesh_while_the_capture_mode_changes() {
    let mut fixture = InPod::new(&[("AMBIENT_CAPTURE", "auto")]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let _old = fixture.ambient_ztunnel("ztunnel-old");
    let peers: Vec<Peer> = (0..8).map(|number| fixture.running_pod(MESH, &format!("app-{number}"))).collect();
    peers.iter().for_each(|peer| fixture.wait_enrolled(peer, true));
    let node = std::sync::Arc::clone(&fixture.node);
    let addresses: Vec<_> = peers.iter().flat_map(|peer| peer.sandbox.ips()).collect();
    let targets = [false, true].map(|v6| std::net::SocketAddr::new(node.outside_ip(v6), PORT));
    let over = std::sync::atomic::AtomicBool::new(false);
    let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
    let watch = Direct::start(&node, &addresses);
    let attempts = std::thread::scope(|scope| {
        let callers: Vec<_> = peers
            .iter()
            .map(|peer| {
                scope.spawn(move || {
                    let mut attempts = 0_usize;
                    while !is_over() {
                        for target in targets {
                            // The connection may be delayed or refused meanwhile.
                            let within = std::time::Duration::from_millis(100);
                            let one = || std::net::TcpStream::connect_timeout(&target, within).is_ok();
                            attempts += usize::from(peer.sandbox.netns.run(one));
                            // Slow enough not to exhaust ports.
                            std::thread::sleep(std::time::Duration::from_millis(10));
                        }
                    }
                    attempts
                })
            })
            .collect();
        // A failure in here must end the callers, too.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut new = modern(&mut fixture, "ztunnel-new", "2026-06-01T00:00:00Z");
            peers.iter().for_each(|peer| {
                fixture.wait_served(&new, peer);
                fixture.wait_enrolled(peer, false);
            });
            fixture.eventually("the node path is gone", |fixture| !has_node_path(fixture));
            peers.iter().for_each(|peer| reaches(&fixture, peer));
            let there = watch.counts();
            new.kill();
            fixture.manifests.remove_pod("istio-system", "ztunnel-new");
            fixture.wait_logged("capture mode changed", "mode=node-level");
            fixture.eventually("the pods are bare", |fixture| {
                peers.iter().all(|peer| ours(peer) == [0, 0, 0] && fixture.has_member(peer.ip(false)))
            });
            there
        }));
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        let attempts: usize = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
        let there = done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert_eq!(there, [0, 0], "from the node to within pods");
        attempts
    });
    assert!(attempts > 100, "{attempts} connections were made");
    assert_eq!(watch.counts(), [0, 0], "and back");
}

/// Counts packets that leave the node from pods, not from a ztunnel: SYNs, and packets of established connections. Not those that
/// only close one: a FIN for a connection from before the change, which no component tracks any more, is answered with a reset by
/// its receiver's kernel.
struct Direct<'a>(&'a kit::Node);

impl<'a> Direct<'a> {
    fn start(node: &'a kit::Node, addresses: &[std::net::IpAddr]) -> Self {
        let set = |v6: bool| {
            let of = addresses.iter().filter(|ip| ip.is_ipv6() == v6).map(ToString::to_string);
            of.collect::<Vec<_>>().join(", ")
        };
        let rules: String = [("ip", set(false)), ("ip6", set(true))]
            .into_iter()
            .map(|(ip, set)| {
                let from = format!("iifname eth0 {ip} saddr {{ {set} }} {ip} dscp != cs1");
                format!(
                    "{from} tcp flags & (syn | ack) == syn counter name opened\n\
                     {from} tcp flags & (syn | fin | rst) == 0 counter name other\n"
                )
            })
            .collect();
        let table = format!(
            "table inet direct {{\ncounter opened {{ }}\ncounter other {{ }}\n\
             chain seen {{\ntype filter hook prerouting priority -300\n{rules}}}\n}}\n"
        );
        node.outside().pipe("nft -f -", &table);
        Self(node)
    }

    fn counts(&self) -> [u64; 2] {
        let text = self.0.outside().sh("nft --json list counters table inet direct");
        let listing: Value = serde_json::from_str(&text).unwrap();
        let counters = listing["nftables"].as_array().unwrap();
        ["opened", "other"].map(|name| {
            let found = counters.iter().find(|object| object["counter"]["name"] == name);
            found.unwrap()["counter"]["packets"].as_u64().unwrap()
        })
    }
}

/// Wraps the tools for one pod: its first save blocks until the gate is opened. Work on its rules has begun by then, and has
/// changed nothing.
const GATE: &str = r#"#!/bin/bash
tool=${0##*/}
if [ "$(readlink /proc/self/ns/net)" != "$(cat /gate/pod 2>/dev/null)" ]; then exec "/usr/sbin/$tool" "$@"; fi
if mv /gate/armed /gate/shut 2>/dev/null; then
  while [ -e /gate/shut ]; do sleep 0.01; done
fi
"/usr/sbin/$tool" "$@"; status=$?
touch /gate/restored
exit $status
"#;

/// Starts a node in auto mode with legacy tables, because only tools can be paused or made to fail: this script takes the place of
/// `iptables-legacy-restore`. Returns also the ztunnels of both kinds, of which the second one serves, and the directory `/gate`.
fn start_with_restore(script: &str) -> (InPod, kit::Ztunnel, InpodZtunnel, kit::TempDir) {
    let gate = kit::TempDir::new().unwrap();
    kit::write_script(&gate.path().join("iptables-legacy-restore"), script);
    let env = [IPTABLES, ("AMBIENT_CAPTURE", "auto"), ("PATH", "/gate:/usr/sbin:/usr/bin:/sbin:/bin")];
    let mut fixture = InPod::stopped(kit::NodeOptions::default(), &env);
    fixture.mount(gate.path(), "/gate");
    fixture.start();
    let old = fixture.ambient_ztunnel("ztunnel-old");
    let new = modern(&mut fixture, "ztunnel-new", "2026-06-01T00:00:00Z");
    fixture.wait_logged("capture mode changed", "mode=in-pod");
    (fixture, old, new, gate)
}

/// Returns a pod with legacy tables, whose network namespace it writes to the file.
fn legacy_pod(fixture: &InPod, file: &std::path::Path) -> Peer {
    let peer = Peer::new(fixture.node.pod(kit::Pod::new(MESH, "app"), &[]));
    let netns = &peer.sandbox.netns;
    netns.sh("iptables-legacy -w -A INPUT -j ACCEPT"); // these tables are in use
    std::fs::write(file, netns.sh("readlink /proc/self/ns/net")).unwrap();
    peer
}

/// Rules that are being applied when the capture mode changes would redirect a pod's traffic to no listener.
#[test]
fn rules_that_are_on_their_way_when_the_node_takes_over_do_not_stay() {
    let (mut fixture, _old, mut new, gate) = start_with_restore(GATE);
    let at = |name: &str| gate.path().join(name);
    new.wait_for_snapshots(1);
    let peer = legacy_pod(&fixture, &at("pod"));
    let netns = &peer.sandbox.netns;
    std::fs::write(at("armed"), "").unwrap();
    fixture.processes.add(&peer.sandbox.pod.uid, netns);
    fixture.manifests.put_pod(&peer.sandbox.manifest());
    fixture.eventually("its rules are on their way", |_| at("shut").exists());
    new.kill();
    fixture.manifests.remove_pod("istio-system", "ztunnel-new");
    // It must not continue without them.
    let daemon = fixture.daemon();
    let is_waiting = || daemon.logged("capture mode changed", "mode=node-level") == 0;
    kit::holds_for(std::time::Duration::from_secs(1), "they are waited for", is_waiting);
    std::fs::remove_file(at("shut")).unwrap();
    fixture.eventually("the restore has ended", |_| at("restored").exists());
    fixture.wait_logged("capture mode changed", "mode=node-level");
    fixture.wait_enrolled(&peer, true);
    fixture.eventually("they are removed", |_| fixture.is_bare(&peer));
    let what = std::fmt::from_fn(|f| write!(f, "{}\n{}", fixture.log(), dump_of(netns)));
    kit::holds_for(std::time::Duration::from_millis(500), what, || fixture.is_bare(&peer));
}

/// Its network plugin attaches it to a bridge, for example.
#[test]
fn pods_keep_their_rules_while_the_node_path_cannot_reach_its_ztunnel() {
    let mut fixture = InPod::new(&[("AMBIENT_CAPTURE", "auto")]);
    let mut new = modern(&mut fixture, "ztunnel-new", "2026-06-01T00:00:00Z");
    fixture.wait_logged("capture mode changed", "mode=in-pod");
    let peer = fixture.running_pod(MESH, "app");
    fixture.wait_served(&new, &peer);
    new.kill();
    fixture.manifests.remove_pod("istio-system", "ztunnel-new");
    fixture.manifests.put_pod(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "istio-system", "name": "ztunnel-old", "uid": "uid-of-ztunnel-old",
            "creationTimestamp": "2026-06-02T00:00:00Z", "labels": {"app": "ztunnel"},
        },
        "spec": {"serviceAccountName": "ztunnel", "containers": [{"name": "istio-proxy"}]},
        "status": {
            "phase": "Running", "podIPs": [{"ip": "10.250.0.9"}],
            "containerStatuses": [{"name": "istio-proxy", "ready": true}],
        },
    }));
    fixture.wait_enrolled(&peer, true); // the node path is there, but leads nowhere
    let daemon = fixture.daemon();
    kit::holds_for(std::time::Duration::from_secs(1), "its rules stay", || {
        daemon.logged("capture mode changed", "mode=node-level") == 0 && ours(&peer) != [0, 0, 0]
    });
}

/// Wraps the tool: it fails in one pod while the file `broken` exists.
const BREAKABLE: &str = r#"#!/bin/bash
if [ -e /gate/broken ] && [ "$(readlink /proc/self/ns/net)" = "$(cat /gate/pod)" ]; then
  echo it is broken >&2; exit 4
fi
exec "/usr/sbin/${0##*/}" "$@"
"#;

/// They would cut the pod off until the agent restarts.
#[test]
fn rules_that_cannot_be_removed_when_the_node_takes_over_are_removed_later() {
    let (mut fixture, _old, mut new, gate) = start_with_restore(BREAKABLE);
    let at = |name: &str| gate.path().join(name);
    let peer = legacy_pod(&fixture, &at("pod"));
    let netns = &peer.sandbox.netns;
    fixture.processes.add(&peer.sandbox.pod.uid, netns);
    fixture.manifests.put_pod(&peer.sandbox.manifest());
    fixture.wait_served(&new, &peer);
    std::fs::write(at("broken"), "").unwrap();
    new.kill();
    fixture.manifests.remove_pod("istio-system", "ztunnel-new");
    fixture.wait_logged("capture mode changed", "mode=node-level");
    fixture.wait_enrolled(&peer, true);
    fixture.wait_logged("rules of in-pod capture are left in pods", "");
    assert!(!fixture.is_bare(&peer));
    fixture.eventually("the history shows it", |fixture| {
        let changes = fixture.container.exec(&["history", "-o", "json"]).stdout;
        let changes: Vec<Value> = serde_json::from_slice(&changes).unwrap();
        let is_failed = |change: &Value| change["pod"].is_null() && change["outcome"] == "failed";
        changes.iter().any(|change| change["cause"] == "ztunnel" && is_failed(change))
    });
    std::fs::remove_file(at("broken")).unwrap();
    let limit = std::time::Duration::from_secs(90);
    fixture.within(limit, "they are removed", |fixture| fixture.is_bare(&peer));
}

#[test]
fn selectors_mean_capture_from_within_before_any_ztunnel_is_there() {
    let selector = "- namespaceSelector: {matchLabels: {istio.io/dataplane-mode: ambient}}";
    let mut fixture = InPod::new(&[("AMBIENT_CAPTURE", "auto"), ("AMBIENT_ENABLEMENT_SELECTOR", selector)]);
    let peer = fixture.running_pod(MESH, "app");
    fixture.eventually("its rules are there, and hold its traffic", |_| fixture.is_ruled(&peer));
    let ztunnel = modern(&mut fixture, "ztunnel", "2026-06-01T00:00:00Z");
    fixture.wait_served(&ztunnel, &peer);
}

/// The image cannot be pulled, or the process crashes before it connects.
#[test]
fn a_successor_that_never_starts_takes_no_pod_from_the_ztunnel_that_serves() {
    let mut fixture = InPod::new(&[("AMBIENT_CAPTURE", "auto")]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let _old = fixture.ambient_ztunnel("ztunnel-old");
    let peer = fixture.running_pod(MESH, "app");
    fixture.wait_enrolled(&peer, true);
    fixture.manifests.put_pod(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "istio-system", "name": "ztunnel-new", "uid": "uid-of-ztunnel-new",
            "creationTimestamp": "2026-06-01T00:00:00Z", "labels": {"app": "ztunnel"},
        },
        "spec": {
            "serviceAccountName": "ztunnel",
            "containers": [{"name": "istio-proxy", "env": [{"name": "INPOD_ENABLED", "value": "true"}]}],
        },
        "status": {"phase": "Pending"},
    }));
    let socket = fixture.socket();
    fixture.eventually("it could connect", |_| socket.exists());
    fixture.settle();
    assert!(fixture.is_captured(&peer));
    assert!(has_node_path(&fixture) && fixture.is_bare(&peer));
    // The successor starts at last.
    fixture.manifests.remove_pod("istio-system", "ztunnel-new");
    let new = modern(&mut fixture, "ztunnel-newer", "2026-06-01T00:00:00Z");
    fixture.wait_logged("capture mode changed", "mode=in-pod");
    fixture.wait_served(&new, &peer);
    fixture.eventually("nothing of the node's path is left", |fixture| !has_node_path(fixture));
}

/// The successor starts in the other mode, and nothing else would remove the rules.
#[test]
fn what_an_agent_left_that_ended_in_the_other_mode_is_taken_over() {
    let mut fixture = InPod::new(&[("AMBIENT_CAPTURE", "node")]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let old = fixture.ambient_ztunnel("ztunnel-old");
    let peer = fixture.running_pod(MESH, "app");
    fixture.wait_enrolled(&peer, true);
    // Istio's current chart sets selectors: the agent starts with rules in pods.
    let selector = "- namespaceSelector: {matchLabels: {istio.io/dataplane-mode: ambient}}";
    fixture.container.set_env("AMBIENT_CAPTURE", "auto");
    fixture.container.set_env("AMBIENT_ENABLEMENT_SELECTOR", selector);
    drop(fixture.daemon.take());
    fixture.manifests.remove_pod("istio-system", "ztunnel-old");
    drop(old);
    let mut new = modern(&mut fixture, "ztunnel-new", "2026-06-01T00:00:00Z");
    fixture.restart();
    fixture.wait_served(&new, &peer);
    fixture.eventually("nothing of the node's path is left", |fixture| !has_node_path(fixture));
    reaches(&fixture, &peer);
    wait_relayed(&new, peer.ip(false), (fixture.node.outside_ip(false), PORT).into());
    // And in the reverse order.
    drop(fixture.daemon.take());
    new.kill();
    fixture.manifests.remove_pod("istio-system", "ztunnel-new");
    fixture.container.set_env("AMBIENT_ENABLEMENT_SELECTOR", "");
    fixture.restart();
    let _again = fixture.ambient_ztunnel("ztunnel-again");
    fixture.eventually("its rules are gone", |_| fixture.is_bare(&peer));
    fixture.wait_enrolled(&peer, true);
    assert!(fixture.is_captured(&peer));
}

#[test]
fn check_accepts_a_pod_that_the_node_path_captures_until_its_own_rules_are_in_place() {
    let mut fixture = InPod::new(&[("AMBIENT_CAPTURE", "auto")]);
    let _old = fixture.ambient_ztunnel("ztunnel-old");
    let peer = fixture.pod(MESH, "app");
    fixture.wait_enrolled(&peer, true);
    // Nothing shows its network namespace without a record and a process.
    std::fs::remove_dir_all(fixture.node.run_dir().join(agent_protocol::RECORDS)).unwrap();
    let new = modern(&mut fixture, "ztunnel-new", "2026-06-01T00:00:00Z");
    fixture.wait_logged("capture mode changed", "mode=in-pod");
    new.wait_for_snapshots(1);
    assert!(has_node_path(&fixture) && fixture.is_bare(&peer));
    peer.sandbox.check().unwrap_or_else(|error| panic!("{error}"));
    fixture.processes.add(&peer.sandbox.pod.uid, &peer.sandbox.netns);
    fixture.wait_served(&new, &peer);
    fixture.eventually("nothing of the node's path is left", |fixture| !has_node_path(fixture));
    peer.sandbox.check().unwrap_or_else(|error| panic!("{error}"));
}

/// Waits until the agent and the kernel have completed what is under way, and returns the node's state.
fn settled_state(fixture: &InPod, ztunnel: &kit::Ztunnel) -> String {
    let quiet = std::time::Duration::from_secs(3);
    kit::until_steady(quiet, "the node's state is the same", || fixture.state(&[ztunnel]))
}

/// Damages the node path, on which one pod still depends, and asserts each time that it is restored for that pod alone.
fn assert_repaired_for(fixture: &mut InPod, old: &kit::Ztunnel, early: &Peer, late: &Peer) {
    let before = settled_state(fixture, old);
    let flush = format!("{} -w -t mangle -F ztunnel-PREROUTING", fixture.tables.iptables());
    for damage in [
        flush.as_str(),
        "ip rule del pref 103",
        "ipset flush ztunnel-pods-ips",
        "ip route flush table 101",
        "ip link del istioout0",
    ] {
        fixture.node.netns().sh(damage);
        let limit = std::time::Duration::from_secs(20);
        fixture.within(limit, &format!("{damage}\n{before}"), |fixture| fixture.state(&[old]) == before);
        assert!(fixture.is_captured(late) && !fixture.has_member(early.ip(false)), "{damage}");
    }
}

/// A firewall reload, for example, while the network namespace of a pod cannot be determined.
#[test]
fn drift_on_the_node_is_repaired_for_the_pods_that_are_not_handed_over_yet() {
    let mut fixture = InPod::new(&[("AMBIENT_CAPTURE", "auto")]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let old = fixture.ambient_ztunnel("ztunnel-old");
    let (early, late) = (fixture.running_pod(MESH, "early"), fixture.pod(MESH, "late"));
    let leaver = fixture.pod(MESH, "leaver");
    [&early, &late, &leaver].into_iter().for_each(|peer| fixture.wait_enrolled(peer, true));
    // Nothing shows the network namespace of one of them without a record and a process.
    std::fs::remove_dir_all(fixture.node.run_dir().join(agent_protocol::RECORDS)).unwrap();
    let new = modern(&mut fixture, "ztunnel-new", "2026-06-01T00:00:00Z");
    fixture.wait_served(&new, &early);
    fixture.wait_enrolled(&early, false);
    fixture.eventually("its routes are gone, too", |fixture| {
        early.sandbox.ips().iter().all(|ip| fixture.member_routes(*ip).is_empty())
    });
    for restarts in [false, true] {
        if restarts {
            // Otherwise it would serve the node again until the other one has connected.
            let mut manifest = old.pod_manifest(true, "2026-01-01T00:00:01Z");
            manifest["metadata"]["deletionTimestamp"] = "2026-06-01T00:01:00Z".into();
            fixture.manifests.put_pod(&manifest);
            fixture.restart();
            fixture.wait_logged("capture mode changed", "mode=in-pod");
            new.wait_for_snapshots(2);
        }
        assert_repaired_for(&mut fixture, &old, &early, &late);
    }
    // It leaves the mesh before it has rules of its own.
    let mut manifest = leaver.sandbox.manifest();
    manifest["metadata"]["labels"]["istio.io/dataplane-mode"] = "none".into();
    fixture.manifests.put_pod(&manifest);
    fixture.eventually("it is out", |fixture| !fixture.has_member(leaver.ip(false)));
    fixture.processes.add(&late.sandbox.pod.uid, &late.sandbox.netns);
    fixture.wait_served(&new, &late);
    fixture.eventually("nothing of the node's path is left", |fixture| !has_node_path(fixture));
}

/// A set of another component has the name of one of ours, for example.
#[test]
fn drift_on_the_node_is_repaired_while_no_pod_can_be_handed_over() {
    let mut fixture = InPod::new(&[("AMBIENT_CAPTURE", "auto")]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let old = fixture.ambient_ztunnel("ztunnel-old");
    let peer = fixture.running_pod(MESH, "app");
    fixture.wait_enrolled(&peer, true);
    fixture.node.netns().sh("ipset create istio-inpod-probes-v4 hash:net");
    let _new = modern(&mut fixture, "ztunnel-new", "2026-06-01T00:00:00Z");
    fixture.wait_logged("capture mode changed", "mode=in-pod");
    let before = settled_state(&fixture, &old);
    fixture.node.netns().sh("ip rule del pref 103");
    let limit = std::time::Duration::from_secs(20);
    fixture.within(limit, &before, |fixture| fixture.state(&[&old]) == before);
    assert!(fixture.is_captured(&peer) && fixture.is_bare(&peer));
}
