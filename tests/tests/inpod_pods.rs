//! In-pod capture: who comes into the mesh and leaves it, and what the agent says of it.

use kit::{Echo, InpodOptions, WorkloadState};
use serde_json::json;

use crate::ambient_stage::{MESH, PLAIN, PORT};
use crate::inpod_stage::{InPod, RELAYED};

const AMBIENT: [(&str, &str); 1] = [("istio.io/dataplane-mode", "ambient")];

#[test]
fn a_running_pod_joins_and_leaves_with_its_namespaces_label() {
    let mut stage = InPod::new(&[]);
    let ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
    let _echo = Echo::tcp(stage.node.outside(), PORT);
    let peer = stage.running_pod(PLAIN, "app");
    let sidecar = stage.running_pod(PLAIN, "other");
    let mut manifest = sidecar.sandbox.manifest();
    manifest["metadata"]["annotations"]["sidecar.istio.io/status"] = "{}".into();
    stage.manifests.put_pod(&manifest);
    assert!(stage.is_bare(&peer));
    for round in 1..=2 {
        stage.manifests.put_namespace(PLAIN, &AMBIENT);
        stage.wait_served(&ztunnel, &peer);
        stage.eventually("it is ruled and probed", |_| {
            stage.is_ruled(&peer) && stage.is_probed(peer.ip(true))
        });
        let seen = peer.tcp((stage.node.outside_ip(false), PORT).into()).unwrap();
        assert_eq!(seen.peer.ip(), peer.ip(false));
        assert!(ztunnel.seen().iter().any(|one| one.src.ip() == peer.ip(false)), "round {round}");
        stage.manifests.put_namespace(PLAIN, &[]);
        let _ = ztunnel.wait_for_state(&peer.sandbox.pod.uid, WorkloadState::Gone);
        stage.eventually("nothing of it is left", |_| {
            stage.is_bare(&peer) && peer.sandbox.ips().iter().all(|ip| !stage.is_probed(*ip))
        });
        let seen = kit::connect(stage.node.outside(), kit::Proto::Tcp, peer.at(false)).unwrap();
        assert!(!RELAYED.contains(&seen.peer.port()));
    }
    assert!(stage.is_bare(&sidecar), "a pod with a sidecar is none of ours");
    assert_eq!(ztunnel.protocol_error(), None);
}

#[test]
fn a_pods_own_label_wins_and_terminated_pods_are_let_go() {
    let mut stage = InPod::new(&[]);
    let ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
    let (joins, stays) = (stage.running_pod(PLAIN, "joins"), stage.running_pod(MESH, "stays"));
    let labelled = |peer: &crate::ambient_stage::Peer, mode: &str| {
        let mut manifest = peer.sandbox.manifest();
        manifest["metadata"]["labels"] = json!({"istio.io/dataplane-mode": mode});
        manifest
    };
    stage.manifests.put_pod(&labelled(&stays, "none"));
    stage.manifests.put_pod(&labelled(&joins, "ambient"));
    stage.wait_served(&ztunnel, &joins);
    stage.eventually("the label none takes it out", |_| stage.is_bare(&stays) && stage.is_ruled(&joins));
    let mut ended = labelled(&joins, "ambient");
    ended["status"]["phase"] = "Succeeded".into();
    stage.manifests.put_pod(&ended);
    let _ = ztunnel.wait_for_state(&joins.sandbox.pod.uid, WorkloadState::Gone);
    stage.eventually("its addresses are free", |_| !stage.is_probed(joins.ip(false)));
}

#[test]
fn selectors_choose_pods_in_place_of_labels() {
    let selectors =
        "- podSelector:\n    matchExpressions:\n    - {key: mesh, operator: In, values: [yes, sure]}\n";
    let mut stage =
        InPod::new(&[("AMBIENT_ENABLEMENT_SELECTOR", selectors), ("EXCLUDE_NAMESPACES", " kube-system , ")]);
    let ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
    let chosen = stage.running_pod(PLAIN, "chosen");
    let labelled = stage.running_pod(MESH, "labelled");
    let mut manifest = chosen.sandbox.manifest();
    manifest["metadata"]["labels"] = json!({"mesh": "sure"});
    stage.manifests.put_pod(&manifest);
    stage.wait_served(&ztunnel, &chosen);
    assert!(stage.is_bare(&labelled));
    assert_eq!(ztunnel.workload(&labelled.sandbox.pod.uid), None);
}

#[test]
fn an_add_ends_when_ztunnel_serves_the_pod_and_fails_with_the_reason() {
    let mut stage = InPod::new(&[]);
    // No ztunnel at all.
    let pod = kit::Pod::new(MESH, "early");
    let error = stage.add(pod, &stage.node.conflist(&[stage.plugin()])).unwrap_err().to_string();
    assert!(error.contains("no ztunnel is connected"), "{error}");
    assert!(error.contains("\"code\": 11") || error.contains("\"code\":11"), "{error}");
    // One that refuses.
    let refused = kit::Pod::new(MESH, "refused");
    let mut ztunnel = stage
        .ztunnel("ztunnel-a", InpodOptions { refuse: vec![refused.uid.clone()], ..InpodOptions::default() });
    let error = stage.add(refused, &stage.node.conflist(&[stage.plugin()])).unwrap_err().to_string();
    assert!(error.contains("ztunnel refused it"), "{error}");
    // Another pod is not disturbed.
    let fine = stage.mesh_pod("fine");
    assert_eq!(ztunnel.workload(&fine.sandbox.pod.uid).unwrap().state, WorkloadState::Up);
    // A running pod that is refused is tried again, and others with it.
    let running = stage.running_pod(PLAIN, "running");
    ztunnel.refuse(&running.sandbox.pod.uid);
    stage.manifests.put_namespace(PLAIN, &AMBIENT);
    let _ = ztunnel.wait_for_state(&running.sandbox.pod.uid, WorkloadState::Refused);
    let _ = stage.mesh_pod("another");
    ztunnel.accept(&running.sandbox.pod.uid);
    stage.wait_served(&ztunnel, &running);
    assert_eq!(ztunnel.protocol_error(), None);
}

#[test]
fn del_releases_and_the_namespace_ends() {
    let mut stage = InPod::new(&[]);
    let ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
    let mut peer = stage.mesh_pod("app");
    let (uid, ips) = (peer.sandbox.pod.uid.clone(), peer.sandbox.ips());
    let _ = peer.sandbox.delete().unwrap();
    stage.manifests.remove_pod(MESH, "app");
    let _ = ztunnel.wait_for_state(&uid, WorkloadState::Gone);
    stage.eventually("its addresses are free", |_| ips.iter().all(|ip| !stage.is_probed(*ip)));
    let daemon = stage.daemon().pid();
    stage.eventually("its namespace is not held open", |_| {
        let open = std::fs::read_dir(format!("/proc/{daemon}/fd")).unwrap();
        let links = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        let netns = links.filter(|link| link.to_string_lossy().starts_with("net:["));
        netns.collect::<std::collections::BTreeSet<_>>().len() == 1 // the node's own
    });
}

/// A ztunnel that never answers: the ADD ends in time, and the connection with it.
#[test]
fn a_ztunnel_that_does_not_answer_keeps_nobody_waiting_for_ever() {
    let mut stage = InPod::new(&[]);
    let options = InpodOptions { mute: true, ..InpodOptions::default() };
    let _mute = kit::InpodZtunnel::start(&stage.node, "ztunnel-a", &stage.socket(), options);
    stage.wait_logged("ztunnel connected", "");
    let began = std::time::Instant::now();
    let error = stage.add(kit::Pod::new(MESH, "app"), &stage.node.conflist(&[stage.plugin()])).unwrap_err();
    assert_eq!(error.code(), Some(11), "{error}");
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(stage.daemon().is_ready());
}
