//! In-pod capture: what is left when the agent goes.

use kit::{Echo, InpodOptions, NodeOptions, Pod};

use crate::ambient_stage::{MESH, PLAIN, PORT, Peer, dump_of};
use crate::inpod_stage::InPod;

#[test]
fn an_uninstallation_leaves_nothing_in_pods_and_on_the_node() {
    for backend in ["nft", "legacy"] {
        let env = [("CLEANUP_ON_EXIT", "always"), ("FORCE_IPTABLES_BINARY", backend)];
        let mut stage = InPod::stopped(NodeOptions::default(), &env);
        let _echo = Echo::tcp(stage.node.outside(), PORT);
        let (one, other) = (stage.running_pod(MESH, "one"), stage.running_pod(PLAIN, "other"));
        // A sidecar's rules have chains of the same names.
        let sidecar = Peer::new(stage.node.pod(Pod::new(PLAIN, "sidecar"), &[]));
        sidecar.sandbox.netns.pipe(
            &format!("iptables-{backend}-restore --noflush"),
            "*nat\n:ISTIO_OUTPUT - [0:0]\n-A OUTPUT -p tcp -j ISTIO_OUTPUT\nCOMMIT\n",
        );
        let places = || {
            let pods = [&one, &other, &sidecar].map(|peer| dump_of(&peer.sandbox.netns));
            [vec![stage.node.netns().sh("ipset save"), stage.dump()], pods.to_vec()].concat()
        };
        let before = places();
        stage.start();
        let _ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
        stage.wait_captured(&one);
        // As the plugin leaves it when no agent takes its lines.
        std::fs::write(stage.node.run_dir().join("istio-cni.log"), "a line").unwrap();
        assert!(stage.is_ruled(&one) && stage.is_probed(one.ip(false)));
        let (status, log) = stage.daemon.take().unwrap().terminate();
        assert!(status.success(), "{log}");
        let places = || {
            let pods = [&one, &other, &sidecar].map(|peer| dump_of(&peer.sandbox.netns));
            [vec![stage.node.netns().sh("ipset save"), stage.dump()], pods.to_vec()].concat()
        };
        for (before, after) in before.iter().zip(places()) {
            assert_eq!(without_ztunnel(&after), without_ztunnel(before), "{backend}\n{log}");
        }
        let _ = one.tcp((stage.node.outside_ip(false), PORT).into()).unwrap();
        let left: Vec<_> =
            std::fs::read_dir(stage.node.run_dir()).unwrap().map(|entry| entry.unwrap()).collect();
        assert!(left.is_empty(), "sockets, logs, records: {left:?}");
        assert!(!stage.socket().exists(), "the socket for ztunnel");
    }
}

/// The ztunnel's pod came meanwhile: its link, its route, and numbers of links.
fn without_ztunnel(dump: &str) -> String {
    let mut lines: Vec<&str> =
        dump.lines().filter(|line| line.starts_with(['-', ':', '*']) || line.contains("lookup")).collect();
    lines.retain(|line| !line.starts_with("*") && !line.contains(" ACCEPT"));
    lines.join("\n")
}

#[test]
fn a_stopped_agent_leaves_pods_captured() {
    let mut stage = InPod::new(&[]);
    let _echo = Echo::tcp(stage.node.outside(), PORT);
    let ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
    let peer = stage.mesh_pod("app");
    let (status, log) = stage.daemon.take().unwrap().terminate();
    assert!(status.success(), "{log}");
    assert!(stage.is_ruled(&peer) && stage.is_probed(peer.ip(false)), "{log}");
    let _ = peer.tcp((stage.node.outside_ip(false), PORT).into()).unwrap();
    assert!(ztunnel.seen().iter().any(|one| one.src.ip() == peer.ip(false)));
    stage.start();
    ztunnel.wait_for_snapshots(2);
    assert_eq!(ztunnel.workload(&peer.sandbox.pod.uid).unwrap().state, kit::WorkloadState::Up);
}
