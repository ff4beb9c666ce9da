//! In-pod capture in native tables (`NATIVE_NFTABLES`): pods are captured, observed and released as in those of iptables.

use std::time::{Duration, Instant};

use kit::{Echo, WorkloadState};
use serde_json::json;

use crate::fixtures::ambient::{MESH, PORT, Peer, ruleset_of};
use crate::fixtures::inpod::{InPod, ours, wait_relayed};

const NATIVE: (&str, &str) = ("NATIVE_NFTABLES", "true");
/// The kernel reports a change immediately; plus an allowance for a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// `nft` lists tables and chains in order of creation.
fn lines(peer: &Peer) -> Vec<String> {
    let mut lines: Vec<_> = ruleset_of(&peer.sandbox.netns).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn what_others_change_is_put_back_at_once() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[NATIVE]);
    let damages = [
        "nft flush chain inet istio-ambient-nat istio-output",
        "nft insert rule inet istio-ambient-nat istio-output accept",
        "nft add chain inet istio-ambient-mangle output { policy drop ; }",
        "nft delete table inet istio-ambient-mangle",
        "nft add table inet istio-ambient-nat { flags dormant ; }",
        "nft flush ruleset",
    ];
    let numbers = 0..damages.len();
    let peers: Vec<_> = numbers.map(|at| fixture.mesh_pod(&format!("pod-{at}"))).collect();
    for peer in &peers {
        fixture.wait_captured(peer);
    }
    let before: Vec<_> = peers.iter().map(lines).collect();
    for (damage, peer) in damages.iter().zip(&peers) {
        peer.sandbox.netns.sh(damage);
    }
    let repairs = "istio_cni_ambient_repairs_total{place=\"pod\"}";
    fixture.daemon().wait_for("all are repaired", |daemon| daemon.metric(repairs) == Some(6.0));
    let began = Instant::now();
    for ((damage, peer), before) in damages.iter().zip(&peers).zip(&before) {
        let netns = &peer.sandbox.netns;
        let described =
            std::fmt::from_fn(|f| write!(f, "{damage}\n{}\n{}", ruleset_of(netns), fixture.log()));
        kit::until_within(SOON.saturating_sub(began.elapsed()), described, || lines(peer) == *before);
    }
}

#[test]
fn pods_are_captured_kept_over_a_restart_and_released() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[NATIVE]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let added = fixture.mesh_pod("added");
    let joined = fixture.running_pod(MESH, "joined");
    for peer in [&added, &joined] {
        fixture.wait_captured(peer);
        let tables = ruleset_of(&peer.sandbox.netns);
        let is_table = |line: &&str| line.starts_with("table ");
        assert!(fixture.is_ruled(peer), "{tables}");
        assert!(tables.lines().filter(is_table).all(|line| line.starts_with("table inet ")), "{tables}");
        for v6 in [false, true] {
            let target = (fixture.node.outside_ip(v6), PORT).into();
            let _ = peer.tcp(target).unwrap();
            wait_relayed(&ztunnel, peer.ip(v6), target);
        }
    }
    // The next agent finds the rules correct, and leaves them unchanged.
    let handles = |peer: &Peer| {
        let shown = peer.sandbox.netns.sh("nft --handle --stateless list ruleset");
        assert!(shown.contains("# handle "), "{shown}");
        shown
    };
    let before = [&added, &joined].map(handles);
    fixture.restart();
    for peer in [&added, &joined] {
        fixture.wait_captured(peer);
    }
    assert_eq!([&added, &joined].map(handles), before);
    let mut manifest = joined.sandbox.manifest();
    manifest["metadata"]["labels"] = json!({"istio.io/dataplane-mode": "none"});
    fixture.manifests.put_pod(&manifest);
    fixture.eventually("nothing of it is left", |_| {
        ours(&joined) == [0, 0, 0] && joined.sandbox.netns.sh("nft list ruleset").is_empty()
    });
    let _ = ztunnel.wait_for_state(&joined.sandbox.pod.uid, WorkloadState::Gone);
    assert_eq!(ztunnel.protocol_error(), None);
}
