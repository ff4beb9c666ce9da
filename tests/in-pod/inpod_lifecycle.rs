//! In-pod capture: ztunnels and agents start, stop and are killed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kit::{
    Echo, InpodOptions, InpodZtunnel, Live, LiveConnections, Netns, NodeOptions, Pod, Proto, UplinkWatch,
    WorkloadState,
};
use serde_json::{Value, json};

use crate::fixtures::ambient::{MESH, PLAIN, Peer};
use crate::fixtures::inpod::InPod;

const OUTSIDE: u16 = 9000;

fn live(fixture: &InPod, one: &Peer, two: &Peer) -> [LiveConnections; 2] {
    let outside = |v6| SocketAddr::new(fixture.node.outside_ip(v6), OUTSIDE);
    let live = Live { stall: Duration::from_secs(10), ..Live::default() };
    let mut inner = LiveConnections::start(&one.sandbox.netns, live);
    let mut outer = LiveConnections::start(fixture.node.outside(), live);
    for v6 in [false, true] {
        let _ = inner.open(two.at(v6), 4);
        let _ = inner.open(outside(v6), 4);
        let _ = outer.open(two.at(v6), 4);
    }
    [inner, outer]
}

fn options() -> InpodOptions {
    InpodOptions { drain: Duration::from_secs(60), ..InpodOptions::default() }
}

#[test]
fn a_rollout_with_overlap_breaks_nothing_and_lets_nothing_out() {
    let mut fixture = InPod::new(&[]);
    let mut old = fixture.ztunnel("ztunnel-a", options());
    let _outside = Echo::tcp(fixture.node.outside(), OUTSIDE);
    let (one, two) = (fixture.mesh_pod("one"), fixture.mesh_pod("two"));
    let addresses: Vec<_> = [&one, &two].into_iter().flat_map(|peer| peer.sandbox.ips()).collect();
    let node = Arc::clone(&fixture.node);
    let watch = UplinkWatch::start(&node, &addresses);
    let [mut inner, mut outer] = live(&fixture, &one, &two);
    let mut ended = Vec::new();
    for round in 0..4 {
        let new = fixture.ztunnel(&format!("ztunnel-{round}"), options());
        assert_eq!(new.workloads().len(), 2, "the snapshot has all: {:?}", new.messages());
        // Both run; a new pod is sent to the newer one only.
        let name = format!("late-{round}");
        let late = fixture.mesh_pod(&name);
        assert_eq!(old.workload(&late.sandbox.pod.uid), None);
        fixture.wait_served(&new, &late);
        old.stop();
        inner.wait_round();
        outer.wait_round();
        for v6 in [false, true] {
            let outside = SocketAddr::new(fixture.node.outside_ip(v6), OUTSIDE);
            let _ = late.tcp(outside).unwrap();
            let _ = new.wait_seen(|seen| seen.src.ip() == late.ip(v6));
        }
        drop_pod(&mut fixture, late, &name);
        let _ = new.wait_for_state(&ended_uid(&new, &one, &two), WorkloadState::Gone);
        ended.push(std::mem::replace(&mut old, new));
    }
    let reports = [inner.finish(), outer.finish()];
    reports.iter().for_each(kit::LiveReport::assert_unbroken);
    let counts = watch.total();
    assert_eq!(counts.direct, 0, "{counts:?}");
    for ztunnel in ended.iter().chain([&old]) {
        assert_eq!(ztunnel.protocol_error(), None, "{:?}", ztunnel.messages());
    }
}

fn ended_uid(ztunnel: &InpodZtunnel, one: &Peer, two: &Peer) -> String {
    let known = [&one.sandbox.pod.uid, &two.sandbox.pod.uid];
    ztunnel.workloads().into_keys().find(|uid| !known.contains(&uid)).expect("the late pod")
}

fn drop_pod(fixture: &mut InPod, mut peer: Peer, name: &str) {
    let _ = peer.sandbox.delete().unwrap();
    fixture.manifests.remove_pod(MESH, name);
}

#[test]
fn without_a_ztunnel_traffic_of_the_mesh_fails_and_comes_back_with_it() {
    let mut fixture = InPod::new(&[]);
    let mut ztunnel = fixture.ztunnel("ztunnel-a", options());
    let _outside = Echo::tcp(fixture.node.outside(), OUTSIDE);
    let peer = fixture.mesh_pod("one");
    let node = Arc::clone(&fixture.node);
    let watch = UplinkWatch::start(&node, &peer.sandbox.ips());
    ztunnel.kill();
    fixture.wait_said("no ztunnel is connected");
    for v6 in [false, true] {
        let outside = SocketAddr::new(fixture.node.outside_ip(v6), OUTSIDE);
        let _ = peer.tcp(outside).unwrap_err();
        let _ = kit::connect(fixture.node.outside(), Proto::Tcp, peer.at(v6)).unwrap_err();
    }
    assert_eq!(watch.total().direct, 0);
    assert!(fixture.daemon().is_ready(), "it is not the agent's fault");
    ztunnel.restart();
    ztunnel.wait_for_snapshots(1);
    for v6 in [false, true] {
        let outside = SocketAddr::new(fixture.node.outside_ip(v6), OUTSIDE);
        let _ = peer.tcp(outside).unwrap();
        let _ = kit::connect(fixture.node.outside(), Proto::Tcp, peer.at(v6)).unwrap();
    }
    assert_eq!(watch.total().direct, 0);
    assert_eq!(ztunnel.protocol_error(), None);
}

#[test]
fn the_survivor_of_two_ztunnels_gets_what_it_missed() {
    let mut fixture = InPod::new(&[]);
    let older = fixture.ztunnel("ztunnel-a", options());
    let mut newer = fixture.ztunnel("ztunnel-b", options());
    let peer = fixture.mesh_pod("one");
    fixture.wait_served(&newer, &peer);
    assert_eq!(older.workload(&peer.sandbox.pod.uid), None);
    newer.kill();
    fixture.wait_served(&older, &peer);
    let _outside = Echo::tcp(fixture.node.outside(), OUTSIDE);
    let _ = peer.tcp((fixture.node.outside_ip(false), OUTSIDE).into()).unwrap();
}

/// A new agent adopts the existing state: connections continue, ztunnel keeps its proxies and receives all pods again.
#[test]
fn an_agent_that_is_killed_at_any_moment_is_adopted_by_the_next() {
    let mut fixture = InPod::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a", options());
    let _outside = Echo::tcp(fixture.node.outside(), OUTSIDE);
    let (one, two) = (fixture.mesh_pod("one"), fixture.mesh_pod("two"));
    let [mut inner, mut outer] = live(&fixture, &one, &two);
    let addresses: Vec<_> = [&one, &two].into_iter().flat_map(|peer| peer.sandbox.ips()).collect();
    let node = Arc::clone(&fixture.node);
    let watch = UplinkWatch::start(&node, &addresses);
    for round in 0..6u64 {
        // Each time one pod is joining, and one leaving.
        let name = format!("joining-{round}");
        let joining = fixture.running_pod(MESH, &name);
        std::thread::sleep(Duration::from_millis(round * 4)); // a moment within the work that this starts
        fixture.restart();
        ztunnel.wait_for_snapshots(usize::try_from(round).unwrap() + 2);
        fixture.wait_served(&ztunnel, &joining);
        fixture.eventually("all are ruled", |_| {
            [&one, &two, &joining].iter().all(|peer| fixture.is_ruled(peer))
        });
        for peer in [&one, &two] {
            assert_eq!(ztunnel.workload(&peer.sandbox.pod.uid).unwrap().state, WorkloadState::Up);
        }
        let mut manifest = joining.sandbox.manifest();
        manifest["metadata"]["labels"] = serde_json::json!({"istio.io/dataplane-mode": "none"});
        fixture.manifests.put_pod(&manifest);
        std::thread::sleep(Duration::from_millis(round * 4)); // as above, while it leaves
        fixture.restart();
        fixture.eventually("it is let go", |_| fixture.is_bare(&joining));
        let _ = ztunnel.wait_for_state(&joining.sandbox.pod.uid, WorkloadState::Gone);
        inner.wait_round();
        outer.wait_round();
        fixture.manifests.remove_pod(MESH, &name);
    }
    let reports = [inner.finish(), outer.finish()];
    reports.iter().for_each(kit::LiveReport::assert_unbroken);
    assert_eq!(watch.total().direct, 0);
    assert_eq!(ztunnel.protocol_error(), None, "{:?}", ztunnel.messages());
}

/// The agent restarts during a rollout, and the ztunnels reconnect in the wrong order. A real ztunnel is not ready without its
/// snapshot, and the rollout would stall forever.
#[test]
fn both_ztunnels_get_ready_in_whatever_order_they_come_back() {
    let mut fixture = InPod::new(&[]);
    let mut old = fixture.ztunnel("ztunnel-a", options());
    let mut new = fixture.ztunnel("ztunnel-b", options());
    let one = fixture.mesh_pod("one");
    fixture.wait_served(&new, &one);
    assert!(old.is_ready() && new.is_ready());
    old.disconnect();
    new.disconnect();
    assert!(!old.is_ready() && !new.is_ready());
    fixture.restart();
    new.connect();
    old.connect();
    new.wait_ready();
    old.wait_ready();
    fixture.eventually("both are as before", |_| {
        fixture.shown("ztunnel-b") == [Some(true); 3]
            && fixture.shown("ztunnel-a") == [Some(true), Some(true), Some(false)]
    });
    let two = fixture.mesh_pod("two");
    fixture.wait_served(&new, &two);
    assert_eq!(old.workload(&two.sandbox.pod.uid), None, "it is about to leave");
    // The old one ends, as in every rollout.
    drop(old);
    let three = fixture.mesh_pod("three");
    fixture.wait_served(&new, &three);
    assert_eq!(new.protocol_error(), None);
}

/// A ztunnel that receives requests and never answers is not ready, whatever the agent's own state is.
#[test]
fn a_ztunnel_without_its_snapshot_shows_in_readyz_after_a_while() {
    let mut fixture = InPod::new(&[]);
    let mute = InpodOptions { mute: true, ..options() };
    let began = Instant::now();
    let mut ztunnel = InpodZtunnel::start(&fixture.node, "ztunnel-a", &fixture.socket(), mute);
    fixture.manifests.put_pod(&ztunnel.manifest());
    ztunnel.wait_for("the end of the snapshot", |all| all.contains(&kit::ZdsMessage::SnapshotSent));
    assert!(fixture.daemon().is_ready(), "as in every rollout");
    fixture.within(Duration::from_secs(60), "it is not ready", |fixture| !fixture.daemon().is_ready());
    assert!(began.elapsed() >= Duration::from_secs(30), "{:?}", began.elapsed());
    let unsynced = "istio_cni_ambient_unsynced_ztunnels";
    fixture.daemon().wait_for("it is counted", |daemon| daemon.metric(unsynced) == Some(1.0));
    fixture.wait_said("istio-system/ztunnel-a has not acknowledged its snapshot");
    // Full passes are repeated every 5 s now, and delay nothing else.
    let peer = fixture.running_pod(MESH, "app");
    kit::until("its probes are exempt", || fixture.is_probed(peer.ip(false)));
    let mut took = [(); 4].map(|()| {
        let flushed = Instant::now();
        fixture.node.netns().sh("ipset flush istio-inpod-probes-v4");
        kit::until("they are exempt again", || fixture.is_probed(peer.ip(false)));
        flushed.elapsed()
    });
    took.sort();
    // Passes alone would take 5 s for all but the first; the machine may have stalled in some.
    assert!(took[1] < Duration::from_secs(3), "{took:?}");
    ztunnel.kill();
    fixture.manifests.remove_pod("istio-system", "ztunnel-a");
    let well = fixture.ztunnel("ztunnel-b", options());
    well.wait_ready();
    fixture.within(Duration::from_secs(60), "it is forgotten", |fixture| fixture.daemon().is_ready());
}

#[test]
fn many_pods_are_announced_at_once() {
    const PODS: usize = 60; // `hack/bench --only in-pod` has 250
    let mut fixture = InPod::stopped(NodeOptions::default(), &[]);
    let mut namespaces = Vec::new();
    for number in 0..PODS {
        let netns = Netns::new("many");
        let ip = format!("10.201.{}.{}", number / 250, number % 250 + 1);
        netns.sh("ip link set lo up");
        netns.sh("ip rule add fwmark 0x111/0xfff pref 32764 lookup 100"); // as a previous agent left it
        netns.sh(&format!("ip address add {ip}/32 dev lo"));
        let pod = Pod::new(MESH, &format!("pod-{number}"));
        let mut manifest = pod.manifest(&[ip.parse().unwrap()]);
        manifest["metadata"]["annotations"]["ambient.istio.io/redirection"] = "enabled".into();
        fixture.processes.add(&pod.uid, &netns);
        fixture.manifests.put_pod(&manifest);
        namespaces.push(netns);
    }
    fixture.start();
    // Only the agent's part counts: this ztunnel opens no listeners.
    let mut ztunnel = InpodZtunnel::start(&fixture.node, "ztunnel-a", &fixture.socket(), options());
    let took = [(); 3].map(|()| {
        let began = Instant::now();
        ztunnel.restart();
        ztunnel.wait_for_snapshots(1);
        began.elapsed()
    });
    let took = took.into_iter().min().unwrap(); // the machine may have stalled in the others
    let adds = ztunnel.messages().iter().filter(|message| matches!(message, kit::ZdsMessage::Add(_))).count();
    println!("{PODS} pods were announced, and served, within {took:?}");
    assert_eq!(adds, PODS);
    assert!(took < Duration::from_secs(5), "{took:?}"); // including the start of the stub, and 250 times its listeners
}

/// Any root process can connect to ztunnel's socket.
#[test]
fn a_ztunnel_that_runs_in_no_ztunnel_pod_is_counted_and_takes_no_new_pod() {
    let mut fixture = InPod::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a", options());
    let unknown = "istio_cni_ambient_unknown_ztunnels";
    fixture.daemon().wait_for("all are known", |daemon| daemon.metric(unknown) == Some(0.0));
    let mut stranger = InpodZtunnel::start(&fixture.node, "stranger", &fixture.socket(), options());
    stranger.wait_for("the end of the snapshot", |all| all.contains(&kit::ZdsMessage::SnapshotSent));
    fixture.daemon().wait_for("it is counted", |daemon| daemon.metric(unknown) == Some(1.0));
    let web = fixture.mesh_pod("web");
    fixture.wait_served(&ztunnel, &web);
    let taken = stranger.messages().iter().any(|one| matches!(one, kit::ZdsMessage::Add(_)));
    assert!(!taken, "{:?}", stranger.messages());
    stranger.kill();
    fixture.daemon().wait_for("it is gone", |daemon| daemon.metric(unknown) == Some(0.0));
}

/// A runtime removes the rest of a sandbox long after its end, and calls DEL for it again.
#[test]
fn the_del_of_an_earlier_sandbox_ends_no_pod_that_joined_later() {
    let mut fixture = InPod::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a", options());
    let _outside = Echo::tcp(fixture.node.outside(), OUTSIDE);
    let peer = fixture.running_pod(PLAIN, "app");
    fixture.manifests.put_namespace(PLAIN, &[("istio.io/dataplane-mode", "ambient")]);
    fixture.wait_served(&ztunnel, &peer);
    let conflist = fixture.node.conflist(&[fixture.plugin()]);
    let earlier = Pod { container_id: "e".repeat(64), ..peer.sandbox.pod.clone() };
    let served = |fixture: &mut InPod, when: &str| {
        let _ = fixture.node.runtime().del(&conflist, &earlier, "", &Value::Null).unwrap();
        // It receives the next pod after everything that the DEL caused.
        let next = fixture.mesh_pod(when);
        fixture.wait_served(&ztunnel, &next);
        let state = ztunnel.workload(&peer.sandbox.pod.uid).map(|workload| workload.state);
        assert_eq!(state, Some(WorkloadState::Up), "{when}: {:?}", ztunnel.messages());
        let _ = peer.tcp(SocketAddr::new(fixture.node.outside_ip(false), OUTSIDE)).unwrap();
    };
    served(&mut fixture, "running");
    fixture.restart();
    ztunnel.wait_for_snapshots(2);
    let mut manifest = peer.sandbox.manifest();
    manifest["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    fixture.manifests.put_pod(&manifest);
    served(&mut fixture, "terminating");
    // Its own sandbox is identified by its network namespace.
    let (runtime, sandbox) = (fixture.node.runtime(), &peer.sandbox);
    let _ = runtime.del(&conflist, &sandbox.pod, &sandbox.netns_path(), &sandbox.result).unwrap();
    let _ = ztunnel.wait_for_state(&sandbox.pod.uid, WorkloadState::Gone);
}

#[test]
fn an_acknowledgement_ends_with_the_ztunnel_that_gave_it() {
    let mut fixture = InPod::new(&[]);
    let mut ztunnel = fixture.ztunnel("ztunnel-a", options());
    let _peer = fixture.mesh_pod("one");
    let shown = |fixture: &InPod| {
        let state = fixture.container.exec(&["state", "-o", "json"]).stdout;
        let state: Value = serde_json::from_slice(&state).unwrap();
        let pods = state["pods"].as_array().unwrap();
        pods.iter().find(|pod| pod["name"] == "one").map(|pod| pod["capture"].clone())
    };
    fixture.within(Duration::from_secs(20), "it is captured", |fixture| {
        shown(fixture) == Some("captured".into())
    });
    ztunnel.kill();
    let silent = InpodOptions { mute: true, ..options() };
    let silent = InpodZtunnel::start(&fixture.node, "ztunnel-b", &fixture.socket(), silent);
    fixture.processes.add(&silent.pod().pod.uid, &silent.pod().netns);
    fixture.manifests.put_pod(&silent.manifest());
    fixture.within(Duration::from_secs(20), "it is connected", |fixture| {
        fixture.shown("ztunnel-b")[0] == Some(true)
    });
    fixture.within(Duration::from_secs(20), "it is held", |fixture| shown(fixture) == Some("held".into()));
}
