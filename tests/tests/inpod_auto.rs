//! The capture mode that ztunnel speaks is found out, and changed under running pods.

use kit::{Echo, InpodOptions, InpodZtunnel};

use crate::ambient_stage::{MESH, PORT, Peer, dump_of};
use crate::inpod_stage::{InPod, ours, wait_relayed};

/// A ztunnel of today, as its chart starts it: it is ready only when the agent speaks with it.
fn modern(stage: &mut InPod, name: &str, created: &str) -> InpodZtunnel {
    let ztunnel = InpodZtunnel::start(&stage.node, name, &stage.socket(), InpodOptions::default());
    let mut manifest = ztunnel.manifest();
    manifest["metadata"]["creationTimestamp"] = created.into();
    manifest["spec"]["containers"][0]["env"] =
        serde_json::json!([{"name": "INPOD_ENABLED", "value": "true"}]);
    stage.manifests.put_pod(&manifest);
    ztunnel
}

fn reaches(stage: &InPod, peer: &Peer) {
    for v6 in [false, true] {
        let _ = peer.tcp((stage.node.outside_ip(v6), PORT).into()).unwrap();
    }
}

#[test]
fn ztunnel_decides_and_may_change_its_mind() {
    let mut stage = InPod::new(&[("AMBIENT_CAPTURE", "auto")]);
    let _echo = Echo::tcp(stage.node.outside(), PORT);
    // A ztunnel of old: the node captures.
    let old = stage.ambient_ztunnel("ztunnel-old");
    let peer = stage.running_pod(MESH, "app");
    stage.wait_enrolled(&peer, true);
    assert!(stage.is_captured(&peer));
    assert!(stage.is_bare(&peer));
    // It is replaced by one of today.
    let mut new = modern(&mut stage, "ztunnel-new", "2026-06-01T00:00:00Z");
    stage.wait_logged("capture mode changed", "mode=in-pod");
    new.wait_for_snapshots(1);
    stage.wait_served(&new, &peer);
    stage.eventually("its rules are there", |_| stage.is_ruled(&peer));
    reaches(&stage, &peer);
    wait_relayed(&new, peer.ip(false), (stage.node.outside_ip(false), PORT).into());
    stage.eventually("nothing of the node's path is left", |stage| {
        !stage.node.netns().sh("ip rule").contains("0x1000")
    });
    stage.wait_enrolled(&peer, false);
    let added = stage.mesh_pod("added");
    reaches(&stage, &added);
    // And back.
    assert_eq!(new.protocol_error(), None);
    new.kill();
    stage.manifests.remove_pod("istio-system", "ztunnel-new");
    stage.wait_logged("capture mode changed", "mode=node-level");
    stage.eventually("the pods are bare", |_| stage.is_bare(&peer) && stage.is_bare(&added));
    stage.wait_enrolled(&peer, true);
    assert!(stage.is_captured(&peer));
    drop(old);
}

/// Neither on the way there nor back does a packet of a captured pod leave the node other than through a ztunnel.
#[test]
fn nothing_bypasses_the_mesh_while_the_capture_mode_changes() {
    let mut stage = InPod::new(&[("AMBIENT_CAPTURE", "auto")]);
    let _echo = Echo::tcp(stage.node.outside(), PORT);
    let _old = stage.ambient_ztunnel("ztunnel-old");
    let peers: Vec<Peer> = (0..8).map(|number| stage.running_pod(MESH, &format!("app-{number}"))).collect();
    peers.iter().for_each(|peer| stage.wait_enrolled(peer, true));
    let node = std::sync::Arc::clone(&stage.node);
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
                            // It may be held, or refused, in between.
                            let within = std::time::Duration::from_millis(100);
                            let one = || std::net::TcpStream::connect_timeout(&target, within).is_ok();
                            attempts += usize::from(peer.sandbox.netns.run(one));
                            // Not so often that ports run out.
                            std::thread::sleep(std::time::Duration::from_millis(10));
                        }
                    }
                    attempts
                })
            })
            .collect();
        // What fails in here must end the callers, too.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut new = modern(&mut stage, "ztunnel-new", "2026-06-01T00:00:00Z");
            peers.iter().for_each(|peer| {
                stage.wait_served(&new, peer);
                stage.wait_enrolled(peer, false);
            });
            stage.eventually("the node path is gone", |stage| {
                !stage.node.netns().sh("ip rule").contains("0x1000")
            });
            peers.iter().for_each(|peer| reaches(&stage, peer));
            let there = watch.counts();
            new.kill();
            stage.manifests.remove_pod("istio-system", "ztunnel-new");
            stage.wait_logged("capture mode changed", "mode=node-level");
            stage.eventually("the pods are bare", |stage| {
                peers.iter().all(|peer| ours(peer) == [0, 0, 0] && stage.has_member(peer.ip(false)))
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

/// Counts what leaves the node from pods, and not from a ztunnel: packets that open a connection, and packets of open ones.
/// Not those that only close one: the end of a connection from before the change, which nobody knows any more, is refused by
/// the kernel of whoever gets it.
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
        let listing: serde_json::Value = serde_json::from_str(&text).unwrap();
        let counters = listing["nftables"].as_array().unwrap();
        ["opened", "other"].map(|name| {
            let found = counters.iter().find(|object| object["counter"]["name"] == name);
            found.unwrap()["counter"]["packets"].as_u64().unwrap()
        })
    }
}

/// Stands before the tools, for one pod: its first save waits until the gate is opened. Work on its rules has begun by then,
/// and has changed nothing.
const GATE: &str = r#"#!/bin/bash
tool=${0##*/}
if [ "$(readlink /proc/self/ns/net)" != "$(cat /gate/pod 2>/dev/null)" ]; then exec "/usr/sbin/$tool" "$@"; fi
if [ "$tool" = iptables-nft-save ] && mv /gate/armed /gate/shut 2>/dev/null; then
  while [ -e /gate/shut ]; do sleep 0.01; done
fi
"/usr/sbin/$tool" "$@"; status=$?
[ "$tool" = iptables-nft-save ] || touch /gate/restored
exit $status
"#;

/// Rules that were on their way when the capture mode changed would lead a pod's traffic to nobody.
#[test]
fn rules_that_are_on_their_way_when_the_node_takes_over_do_not_stay() {
    let gate = kit::TempDir::new().unwrap();
    let at = |name: &str| gate.path().join(name);
    for tool in ["iptables-nft-save", "iptables-nft-restore"] {
        kit::write_script(&at(tool), GATE);
    }
    let env = [("AMBIENT_CAPTURE", "auto"), ("PATH", "/gate:/usr/sbin:/usr/bin:/sbin:/bin")];
    let mut stage = InPod::stopped(kit::NodeOptions::default(), &env);
    stage.mount(gate.path(), "/gate");
    stage.start();
    let _old = stage.ambient_ztunnel("ztunnel-old");
    let mut new = modern(&mut stage, "ztunnel-new", "2026-06-01T00:00:00Z");
    stage.wait_logged("capture mode changed", "mode=in-pod");
    new.wait_for_snapshots(1);
    let peer = Peer::new(stage.node.pod(kit::Pod::new(MESH, "app"), &[]));
    let netns = &peer.sandbox.netns;
    netns.sh("iptables-nft -A INPUT -j ACCEPT"); // where there is nothing, nothing is saved
    std::fs::write(at("pod"), netns.sh("readlink /proc/self/ns/net")).unwrap();
    std::fs::write(at("armed"), "").unwrap();
    stage.processes.add(&peer.sandbox.pod.uid, netns);
    stage.manifests.put_pod(&peer.sandbox.manifest());
    stage.eventually("its rules are on their way", |_| at("shut").exists());
    new.kill();
    stage.manifests.remove_pod("istio-system", "ztunnel-new");
    stage.wait_logged("capture mode changed", "mode=node-level");
    // Long enough for what must not happen: that it goes on without them.
    std::thread::sleep(std::time::Duration::from_secs(1));
    std::fs::remove_file(at("shut")).unwrap();
    stage.eventually("the restore has ended", |_| at("restored").exists());
    stage.wait_enrolled(&peer, true);
    stage.eventually("they are removed", |_| stage.is_bare(&peer));
    // Long enough for what must not happen: that they come back.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(stage.is_bare(&peer), "{}\n{}", stage.log(), dump_of(netns));
}

#[test]
fn selectors_mean_capture_from_within_before_any_ztunnel_is_there() {
    let selector = "- namespaceSelector: {matchLabels: {istio.io/dataplane-mode: ambient}}";
    let mut stage = InPod::new(&[("AMBIENT_CAPTURE", "auto"), ("AMBIENT_ENABLEMENT_SELECTOR", selector)]);
    let peer = stage.running_pod(MESH, "app");
    stage.eventually("its rules are there, and hold its traffic", |_| stage.is_ruled(&peer));
    let ztunnel = modern(&mut stage, "ztunnel", "2026-06-01T00:00:00Z");
    stage.wait_served(&ztunnel, &peer);
}
