//! In-pod capture: pods join and leave the mesh, and the agent reports it.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use kit::{Echo, InpodOptions, WorkloadState, ZdsMessage};
use serde_json::json;

use crate::fixtures::ambient::{MESH, PLAIN, PORT};
use crate::fixtures::inpod::{InPod, RELAYED};

const AMBIENT: [(&str, &str); 1] = [("istio.io/dataplane-mode", "ambient")];

#[test]
fn a_running_pod_joins_and_leaves_with_its_namespaces_label() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let peer = fixture.running_pod(PLAIN, "app");
    let sidecar = fixture.running_pod(PLAIN, "other");
    let mut manifest = sidecar.sandbox.manifest();
    manifest["metadata"]["annotations"]["sidecar.istio.io/status"] = "{}".into();
    fixture.manifests.put_pod(&manifest);
    assert!(fixture.is_bare(&peer));
    for round in 1..=2 {
        fixture.manifests.put_namespace(PLAIN, &AMBIENT);
        fixture.wait_served(&ztunnel, &peer);
        fixture.eventually("it is ruled and probed", |_| {
            fixture.is_ruled(&peer) && fixture.is_probed(peer.ip(true))
        });
        let seen = peer.tcp((fixture.node.outside_ip(false), PORT).into()).unwrap();
        assert_eq!(seen.peer.ip(), peer.ip(false));
        let relayed = ztunnel.wait_seen_count(round);
        assert!(relayed.iter().all(|one| one.src.ip() == peer.ip(false)), "{relayed:?}");
        fixture.manifests.put_namespace(PLAIN, &[]);
        let _ = ztunnel.wait_for_state(&peer.sandbox.pod.uid, WorkloadState::Gone);
        fixture.eventually("nothing of it is left", |_| {
            fixture.is_bare(&peer) && peer.sandbox.ips().iter().all(|ip| !fixture.is_probed(*ip))
        });
        let seen = kit::connect(fixture.node.outside(), kit::Proto::Tcp, peer.at(false)).unwrap();
        assert!(!RELAYED.contains(&seen.peer.port()));
    }
    assert!(fixture.is_bare(&sidecar), "a pod with a sidecar is none of ours");
    assert_eq!(ztunnel.protocol_error(), None);
}

/// Multus calls the plugin for a further network that a pod names: without a result of other plugins.
#[test]
fn a_pod_that_names_our_network_is_captured_by_the_addresses_in_its_namespace() {
    let (fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let peer = fixture.add(kit::Pod::new(MESH, "app"), &fixture.node.conflist(&[])).unwrap();
    assert!(fixture.is_bare(&peer));
    let alone = json!({"cniVersion": "0.3.1", "name": "istio-cni", "plugins": [fixture.plugin()]});
    let added = fixture.node.runtime().add(&alone, &peer.sandbox.pod, &peer.sandbox.netns_path());
    added.unwrap_or_else(|error| panic!("{error}"));
    assert!(fixture.is_ruled(&peer));
    assert!(peer.sandbox.ips().iter().all(|ip| fixture.is_probed(*ip)));
}

#[test]
fn pods_are_counted_by_state_and_by_namespace_where_that_is_asked_for() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[("METRICS_BY_NAMESPACE", "true")]);
    let peers = [(MESH, "one"), (MESH, "two"), (PLAIN, "three")]
        .map(|(namespace, name)| fixture.running_pod(namespace, name));
    fixture.manifests.put_namespace(PLAIN, &AMBIENT);
    peers.iter().for_each(|peer| fixture.wait_served(&ztunnel, peer));
    let all = "istio_cni_mesh_pods{redirection=\"ambient\",state=\"captured\"}";
    let of = |namespace: &str| {
        format!(
            "istio_cni_mesh_pods_by_namespace{{pod_namespace=\"{namespace}\",redirection=\"ambient\",state=\"captured\"}}"
        )
    };
    let [mesh, plain] = [MESH, PLAIN].map(of);
    let is_counted = |daemon: &kit::Daemon, numbers: [Option<f64>; 3]| {
        [all, mesh.as_str(), plain.as_str()].map(|sample| daemon.metric(sample)) == numbers
    };
    fixture
        .daemon()
        .wait_for("all are captured", |daemon| is_counted(daemon, [Some(3.0), Some(2.0), Some(1.0)]));
    fixture.manifests.put_namespace(PLAIN, &[]);
    fixture.daemon().wait_for("one has left", |daemon| is_counted(daemon, [Some(2.0), Some(2.0), None]));
}

#[test]
fn a_pods_own_label_wins_and_terminated_pods_are_let_go() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let (joins, stays) = (fixture.running_pod(PLAIN, "joins"), fixture.running_pod(MESH, "stays"));
    let labelled = |peer: &crate::fixtures::ambient::Peer, mode: &str| {
        let mut manifest = peer.sandbox.manifest();
        manifest["metadata"]["labels"] = json!({"istio.io/dataplane-mode": mode});
        manifest
    };
    fixture.manifests.put_pod(&labelled(&stays, "none"));
    fixture.manifests.put_pod(&labelled(&joins, "ambient"));
    fixture.wait_served(&ztunnel, &joins);
    fixture
        .eventually("the label none takes it out", |_| fixture.is_bare(&stays) && fixture.is_ruled(&joins));
    let mut ended = labelled(&joins, "ambient");
    ended["status"]["phase"] = "Succeeded".into();
    fixture.manifests.put_pod(&ended);
    let _ = ztunnel.wait_for_state(&joins.sandbox.pod.uid, WorkloadState::Gone);
    fixture.eventually("its addresses are free", |_| !fixture.is_probed(joins.ip(false)));
}

#[test]
fn selectors_choose_pods_in_place_of_labels() {
    let selectors =
        "- podSelector:\n    matchExpressions:\n    - {key: mesh, operator: In, values: [yes, sure]}\n";
    let mut fixture =
        InPod::new(&[("AMBIENT_ENABLEMENT_SELECTOR", selectors), ("EXCLUDE_NAMESPACES", " kube-system , ")]);
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let chosen = fixture.running_pod(PLAIN, "chosen");
    let labelled = fixture.running_pod(MESH, "labelled");
    let mut manifest = chosen.sandbox.manifest();
    manifest["metadata"]["labels"] = json!({"mesh": "sure"});
    fixture.manifests.put_pod(&manifest);
    fixture.wait_served(&ztunnel, &chosen);
    assert!(fixture.is_bare(&labelled));
    assert_eq!(ztunnel.workload(&labelled.sandbox.pod.uid), None);
}

#[test]
fn an_add_ends_when_ztunnel_serves_the_pod_and_fails_with_the_reason() {
    let mut fixture = InPod::new(&[]);
    // No ztunnel at all.
    let pod = kit::Pod::new(MESH, "early");
    let error = fixture.add(pod, &fixture.node.conflist(&[fixture.plugin()])).unwrap_err();
    let expected =
        "the node agent failed to handle pod mesh/early: no ztunnel is connected to the agent on this node";
    assert_eq!((error.code(), &error.error["msg"]), (Some(11), &expected.into()));
    // A ztunnel that refuses the pod.
    let refused = kit::Pod::new(MESH, "refused");
    let mut ztunnel = fixture
        .ztunnel("ztunnel-a", InpodOptions { refuse: vec![refused.uid.clone()], ..InpodOptions::default() });
    let error = fixture.add(refused, &fixture.node.conflist(&[fixture.plugin()])).unwrap_err();
    let why = "ztunnel refused it: failure to start proxy : the test wants it so";
    let expected = format!("the node agent failed to handle pod mesh/refused: {why}");
    assert_eq!((error.code(), &error.error["msg"]), (Some(11), &expected.into()));
    // Another pod is not affected.
    let fine = fixture.mesh_pod("fine");
    ztunnel.catch_up();
    assert_eq!(ztunnel.workload(&fine.sandbox.pod.uid).unwrap().state, WorkloadState::Up);
    // A refused running pod is retried, and others with it.
    let running = fixture.running_pod(PLAIN, "running");
    ztunnel.refuse(&running.sandbox.pod.uid);
    fixture.manifests.put_namespace(PLAIN, &AMBIENT);
    let _ = ztunnel.wait_for_state(&running.sandbox.pod.uid, WorkloadState::Refused);
    let _ = fixture.mesh_pod("another");
    ztunnel.accept(&running.sandbox.pod.uid);
    fixture.wait_served(&ztunnel, &running);
    assert_eq!(ztunnel.protocol_error(), None);
}

#[test]
fn del_releases_and_the_namespace_ends() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let mut peer = fixture.mesh_pod("app");
    let (uid, ips) = (peer.sandbox.pod.uid.clone(), peer.sandbox.ips());
    let _ = peer.sandbox.delete().unwrap();
    fixture.manifests.remove_pod(MESH, "app");
    let _ = ztunnel.wait_for_state(&uid, WorkloadState::Gone);
    fixture.eventually("its addresses are free", |_| ips.iter().all(|ip| !fixture.is_probed(*ip)));
    let daemon = fixture.daemon().pid();
    fixture.eventually("its namespace is not held open", |_| {
        let open = std::fs::read_dir(format!("/proc/{daemon}/fd")).unwrap();
        let links = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        let netns = links.filter(|link| link.to_string_lossy().starts_with("net:["));
        netns.collect::<std::collections::BTreeSet<_>>().len() == 1 // the node's own
    });
}

/// A ztunnel that never answers: the ADD ends in time, and the connection with it.
#[test]
fn a_ztunnel_that_does_not_answer_keeps_nobody_waiting_for_ever() {
    let mut fixture = InPod::new(&[]);
    let options = InpodOptions { mute: true, ..InpodOptions::default() };
    let _mute = kit::InpodZtunnel::start(&fixture.node, "ztunnel-a", &fixture.socket(), options);
    fixture.wait_logged("ztunnel connected", "");
    let error =
        fixture.add(kit::Pod::new(MESH, "app"), &fixture.node.conflist(&[fixture.plugin()])).unwrap_err();
    assert_eq!(error.code(), Some(11), "{error}");
    // Of the plugin alone, which would wait for 10 s.
    assert!(error.failed.output.wall < Duration::from_secs(10), "{error}");
    assert!(fixture.daemon().is_ready());
}

/// Fails to open a pipe for writing while nobody waits to read it.
const O_NONBLOCK: i32 = 0o4000;

/// CRI-O removes the network of a sandbox whose pause process still runs, and adds the next one while the agent reads the list of
/// processes.
#[test]
fn a_search_that_began_before_an_add_does_not_override_it() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let first = fixture.running_pod(MESH, "app");
    fixture.wait_served(&ztunnel, &first);
    fixture.wait_captured(&first);
    let conflist = fixture.node.conflist(&[fixture.plugin()]);
    let (process, cgroup) = fixture.processes.add_held();
    // Plugins are called in reverse order at a DEL: the address is still there when the agent hears of it.
    let mut ours = conflist.clone();
    let _ = ours["plugins"].as_array_mut().unwrap().remove(0);
    let sandbox = &first.sandbox;
    let runtime = fixture.node.runtime();
    let _ = runtime.del(&ours, &sandbox.pod, &sandbox.netns_path(), &sandbox.result).unwrap();
    let mut held = kit::until("the agent reads the list of processes", || {
        OpenOptions::new().write(true).custom_flags(O_NONBLOCK).open(&cgroup).ok()
    });
    let pod = kit::Pod { container_id: "b".repeat(64), ..sandbox.pod.clone() };
    let second = fixture.add(pod, &conflist).unwrap();
    fixture.manifests.put_pod(&second.sandbox.manifest());
    let outside = (fixture.node.outside_ip(false), PORT).into();
    let _ = second.tcp(outside).unwrap();
    let sent = || ztunnel.messages().iter().filter(|one| matches!(one, ZdsMessage::Add(_))).count();
    kit::until("ztunnel's reports of both are read", || sent() == 2);
    fixture.processes.remove(process);
    held.write_all(b"0::/\n").unwrap();
    drop(held);
    kit::holds_for(Duration::from_secs(3), "ztunnel serves the pod in the namespace of its ADD", || {
        sent() == 2 && second.tcp(outside).is_ok()
    });
    assert_eq!(ztunnel.protocol_error(), None);
}
