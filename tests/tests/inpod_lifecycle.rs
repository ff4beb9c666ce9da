//! In-pod capture: ztunnels and agents come, go and die.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kit::{
    Echo, InpodOptions, InpodZtunnel, Live, LiveConnections, Netns, NodeOptions, Pod, Proto, UplinkWatch,
};

use crate::ambient_stage::{MESH, Peer};
use crate::inpod_stage::InPod;

const OUTSIDE: u16 = 9000;

fn live(stage: &InPod, one: &Peer, two: &Peer) -> [LiveConnections; 2] {
    let live = Live { every: Duration::from_millis(20), stall: Duration::from_secs(5) };
    let outside = |v6| SocketAddr::new(stage.node.outside_ip(v6), OUTSIDE);
    let mut inner = LiveConnections::start(&one.sandbox.netns, live);
    let mut outer = LiveConnections::start(stage.node.outside(), live);
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
    let mut stage = InPod::new(&[]);
    let mut old = stage.ztunnel("ztunnel-a", options());
    let _outside = Echo::tcp(stage.node.outside(), OUTSIDE);
    let (one, two) = (stage.mesh_pod("one"), stage.mesh_pod("two"));
    let addresses: Vec<_> = [&one, &two].into_iter().flat_map(|peer| peer.sandbox.ips()).collect();
    let node = Arc::clone(&stage.node);
    let watch = UplinkWatch::start(&node, &addresses);
    let [mut inner, mut outer] = live(&stage, &one, &two);
    let mut ended = Vec::new();
    for round in 0..4 {
        let new = stage.ztunnel(&format!("ztunnel-{round}"), options());
        assert_eq!(new.workloads().len(), 2, "the snapshot has all: {:?}", new.messages());
        // Both run; a pod that comes now is told to the newer one only.
        let name = format!("late-{round}");
        let late = stage.mesh_pod(&name);
        assert_eq!(old.workload(&late.sandbox.pod.uid), None);
        stage.wait_served(&new, &late);
        old.stop();
        inner.wait_round();
        outer.wait_round();
        for v6 in [false, true] {
            let outside = SocketAddr::new(stage.node.outside_ip(v6), OUTSIDE);
            let _ = late.tcp(outside).unwrap();
            let _ = new.wait_seen(|seen| seen.src.ip() == late.ip(v6));
        }
        drop_pod(&mut stage, late, &name);
        let _ = new.wait_for_state(&ended_uid(&new, &one, &two), kit::WorkloadState::Gone);
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

fn drop_pod(stage: &mut InPod, mut peer: Peer, name: &str) {
    let _ = peer.sandbox.delete().unwrap();
    stage.manifests.remove_pod(MESH, name);
}

#[test]
fn without_a_ztunnel_traffic_of_the_mesh_fails_and_comes_back_with_it() {
    let mut stage = InPod::new(&[]);
    let mut ztunnel = stage.ztunnel("ztunnel-a", options());
    let _outside = Echo::tcp(stage.node.outside(), OUTSIDE);
    let peer = stage.mesh_pod("one");
    let node = Arc::clone(&stage.node);
    let watch = UplinkWatch::start(&node, &peer.sandbox.ips());
    ztunnel.kill();
    stage.wait_said("no ztunnel is connected");
    for v6 in [false, true] {
        let outside = SocketAddr::new(stage.node.outside_ip(v6), OUTSIDE);
        let _ = peer.tcp(outside).unwrap_err();
        let _ = kit::connect(stage.node.outside(), Proto::Tcp, peer.at(v6)).unwrap_err();
    }
    assert_eq!(watch.total().direct, 0);
    assert!(stage.daemon().is_ready(), "it is not the agent's fault");
    ztunnel.restart();
    ztunnel.wait_for_snapshots(1);
    for v6 in [false, true] {
        let outside = SocketAddr::new(stage.node.outside_ip(v6), OUTSIDE);
        let _ = peer.tcp(outside).unwrap();
        let _ = kit::connect(stage.node.outside(), Proto::Tcp, peer.at(v6)).unwrap();
    }
    assert_eq!(watch.total().direct, 0);
    assert_eq!(ztunnel.protocol_error(), None);
}

#[test]
fn the_survivor_of_two_ztunnels_gets_what_it_missed() {
    let mut stage = InPod::new(&[]);
    let older = stage.ztunnel("ztunnel-a", options());
    let mut newer = stage.ztunnel("ztunnel-b", options());
    let peer = stage.mesh_pod("one");
    stage.wait_served(&newer, &peer);
    assert_eq!(older.workload(&peer.sandbox.pod.uid), None);
    newer.kill();
    stage.wait_served(&older, &peer);
    let _outside = Echo::tcp(stage.node.outside(), OUTSIDE);
    let _ = peer.tcp((stage.node.outside_ip(false), OUTSIDE).into()).unwrap();
}

/// A new agent adopts what it finds: connections live on, ztunnel keeps its proxies and gets all pods again.
#[test]
fn an_agent_that_is_killed_at_any_moment_is_adopted_by_the_next() {
    let mut stage = InPod::new(&[]);
    let ztunnel = stage.ztunnel("ztunnel-a", options());
    let _outside = Echo::tcp(stage.node.outside(), OUTSIDE);
    let (one, two) = (stage.mesh_pod("one"), stage.mesh_pod("two"));
    let [mut inner, mut outer] = live(&stage, &one, &two);
    let addresses: Vec<_> = [&one, &two].into_iter().flat_map(|peer| peer.sandbox.ips()).collect();
    let node = Arc::clone(&stage.node);
    let watch = UplinkWatch::start(&node, &addresses);
    for round in 0..6u64 {
        // Each time a pod is on its way in, and one on its way out.
        let name = format!("joining-{round}");
        let joining = stage.running_pod(MESH, &name);
        std::thread::sleep(Duration::from_millis(round * 4)); // a moment within the work that this begins
        stage.restart();
        ztunnel.wait_for_snapshots(usize::try_from(round).unwrap() + 2);
        stage.wait_served(&ztunnel, &joining);
        stage.eventually("all are ruled", |_| [&one, &two, &joining].iter().all(|peer| stage.is_ruled(peer)));
        for peer in [&one, &two] {
            assert_eq!(ztunnel.workload(&peer.sandbox.pod.uid).unwrap().state, kit::WorkloadState::Up);
        }
        let mut manifest = joining.sandbox.manifest();
        manifest["metadata"]["labels"] = serde_json::json!({"istio.io/dataplane-mode": "none"});
        stage.manifests.put_pod(&manifest);
        std::thread::sleep(Duration::from_millis(round * 4)); // the same for the way out
        stage.restart();
        stage.eventually("it is let go", |_| stage.is_bare(&joining));
        let _ = ztunnel.wait_for_state(&joining.sandbox.pod.uid, kit::WorkloadState::Gone);
        inner.wait_round();
        outer.wait_round();
        stage.manifests.remove_pod(MESH, &name);
    }
    let reports = [inner.finish(), outer.finish()];
    reports.iter().for_each(kit::LiveReport::assert_unbroken);
    assert_eq!(watch.total().direct, 0);
    assert_eq!(ztunnel.protocol_error(), None, "{:?}", ztunnel.messages());
}

/// The agent restarts in the middle of a rollout, and the ztunnels dial it in the wrong order. A real ztunnel is not ready
/// without its snapshot, and the rollout would stall for ever.
#[test]
fn both_ztunnels_get_ready_in_whatever_order_they_come_back() {
    let mut stage = InPod::new(&[]);
    let mut old = stage.ztunnel("ztunnel-a", options());
    let mut new = stage.ztunnel("ztunnel-b", options());
    let one = stage.mesh_pod("one");
    stage.wait_served(&new, &one);
    assert!(old.is_ready() && new.is_ready());
    old.disconnect();
    new.disconnect();
    assert!(!old.is_ready() && !new.is_ready());
    stage.restart();
    new.connect();
    old.connect();
    new.wait_ready();
    old.wait_ready();
    let two = stage.mesh_pod("two");
    stage.wait_served(&new, &two);
    assert_eq!(old.workload(&two.sandbox.pod.uid), None, "it is about to leave");
    let state: serde_json::Value =
        serde_json::from_slice(&stage.container.exec(&["state", "-o", "json"]).stdout).unwrap();
    let shown = |name: &str| {
        let all = state["ztunnels"].as_array().unwrap();
        let found = all.iter().find(|ztunnel| ztunnel["name"] == name).unwrap();
        ["connected", "synced", "active"].map(|key| found[key].as_bool())
    };
    assert_eq!(shown("ztunnel-b"), [Some(true), Some(true), Some(true)]);
    assert_eq!(shown("ztunnel-a"), [Some(true), Some(true), Some(false)]);
    // The old one goes, as it does in every rollout.
    drop(old);
    let three = stage.mesh_pod("three");
    stage.wait_served(&new, &three);
    assert_eq!(new.protocol_error(), None);
}

/// One that takes requests and never answers is not ready, whatever the agent thinks of itself.
#[test]
fn a_ztunnel_without_its_snapshot_shows_in_readyz_after_a_while() {
    let mut stage = InPod::new(&[]);
    let mute = InpodOptions { mute: true, ..options() };
    let began = Instant::now();
    let mut ztunnel = InpodZtunnel::start(&stage.node, "ztunnel-a", &stage.socket(), mute);
    stage.manifests.put_pod(&ztunnel.manifest());
    ztunnel.wait_for("the end of the snapshot", |all| all.contains(&kit::ZdsMessage::SnapshotSent));
    assert!(stage.daemon().is_ready(), "as in every rollout");
    let deadline = began + Duration::from_secs(60);
    while stage.daemon().is_ready() {
        assert!(Instant::now() < deadline, "{}", stage.log());
        std::thread::sleep(Duration::from_millis(100)); // between two looks
    }
    assert!(began.elapsed() >= Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(stage.daemon().metric("istio_cni_ambient_unsynced_ztunnels"), Some(1.0));
    stage.wait_said("istio-system/ztunnel-a has not acknowledged its snapshot");
    ztunnel.kill();
    stage.manifests.remove_pod("istio-system", "ztunnel-a");
    let well = stage.ztunnel("ztunnel-b", options());
    well.wait_ready();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !stage.daemon().is_ready() {
        assert!(Instant::now() < deadline, "it is not forgotten: {}", stage.log());
        std::thread::sleep(Duration::from_millis(100)); // between two looks
    }
}

#[test]
fn many_pods_are_announced_at_once() {
    const PODS: usize = 60; // `hack/bench --only in-pod` has 250
    let mut stage = InPod::stopped(NodeOptions::default(), &[]);
    let mut namespaces = Vec::new();
    for number in 0..PODS {
        let netns = Netns::new("many");
        let ip = format!("10.201.{}.{}", number / 250, number % 250 + 1);
        netns.sh("ip link set lo up");
        netns.sh("ip rule add fwmark 0x111/0xfff pref 32764 lookup 100"); // as an earlier agent left it
        netns.sh(&format!("ip address add {ip}/32 dev lo"));
        let pod = Pod::new(MESH, &format!("pod-{number}"));
        let mut manifest = pod.manifest(&[ip.parse().unwrap()]);
        manifest["metadata"]["annotations"]["ambient.istio.io/redirection"] = "enabled".into();
        stage.processes.add(&pod.uid, &netns);
        stage.manifests.put_pod(&manifest);
        namespaces.push(netns);
    }
    stage.start();
    // Only the agent's part counts: this ztunnel opens no listeners.
    let began = Instant::now();
    let ztunnel = InpodZtunnel::start(&stage.node, "ztunnel-a", &stage.socket(), options());
    ztunnel.wait_for_snapshots(1);
    let took = began.elapsed();
    let adds = ztunnel.messages().iter().filter(|message| matches!(message, kit::ZdsMessage::Add(_))).count();
    println!("{PODS} pods were announced, and served, within {took:?}");
    assert_eq!(adds, PODS);
    assert!(took < Duration::from_secs(5), "{took:?}"); // with the start of the stub, and 250 times its listeners
}

/// Any process of root can dial ztunnel's socket.
#[test]
fn a_ztunnel_that_runs_in_no_ztunnel_pod_is_counted_and_takes_no_new_pod() {
    let mut stage = InPod::new(&[]);
    let ztunnel = stage.ztunnel("ztunnel-a", options());
    let unknown = "istio_cni_ambient_unknown_ztunnels";
    stage.daemon().wait_for("all are known", |daemon| daemon.metric(unknown) == Some(0.0));
    let mut stranger = InpodZtunnel::start(&stage.node, "stranger", &stage.socket(), options());
    stranger.wait_for("the end of the snapshot", |all| all.contains(&kit::ZdsMessage::SnapshotSent));
    stage.daemon().wait_for("it is counted", |daemon| daemon.metric(unknown) == Some(1.0));
    let web = stage.mesh_pod("web");
    stage.wait_served(&ztunnel, &web);
    let taken = stranger.messages().iter().any(|one| matches!(one, kit::ZdsMessage::Add(_)));
    assert!(!taken, "{:?}", stranger.messages());
    stranger.kill();
    stage.daemon().wait_for("it is gone", |daemon| daemon.metric(unknown) == Some(0.0));
}
