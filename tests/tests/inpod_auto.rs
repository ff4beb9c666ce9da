//! The way of capture that ztunnel speaks is found out, and changed under running pods.

use kit::{Echo, InpodOptions, InpodZtunnel};

use crate::ambient_stage::{MESH, PORT, Peer};
use crate::inpod_stage::{InPod, wait_relayed};

/// A ztunnel of today, as its chart starts it: it is ready only when the agent speaks with it.
fn modern(stage: &mut InPod, name: &str, created: &str) -> InpodZtunnel {
    let ztunnel = InpodZtunnel::start(&stage.node, name, &stage.socket(), InpodOptions::default());
    let mut manifest = ztunnel.manifest(false);
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
    stage.wait_said("captured from within each pod");
    new.wait_for_snapshots(1);
    stage.wait_served(&new, &peer);
    stage.eventually("its rules are there", |_| stage.is_ruled(&peer));
    reaches(&stage, &peer);
    wait_relayed(&new, peer.ip(false), (stage.node.outside_ip(false), PORT).into());
    let rules = stage.node.netns().sh("ip rule");
    assert!(!rules.contains("0x1000"), "nothing of the node's way is left: {rules}");
    stage.wait_enrolled(&peer, false);
    let added = stage.mesh_pod("added");
    reaches(&stage, &added);
    // And back.
    assert_eq!(new.protocol_error(), None);
    new.kill();
    stage.manifests.remove_pod("istio-system", "ztunnel-new");
    stage.wait_said("captured on the node");
    stage.eventually("the pods are bare", |_| stage.is_bare(&peer) && stage.is_bare(&added));
    stage.wait_enrolled(&peer, true);
    assert!(stage.is_captured(&peer));
    drop(old);
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
