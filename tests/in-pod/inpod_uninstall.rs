//! In-pod capture: what is left when the agent goes.

use kit::{Echo, InpodOptions, NodeOptions, Pod};

use crate::fixtures::ambient::{MESH, PLAIN, PORT, Peer, dump_of};
use crate::fixtures::inpod::InPod;

#[test]
fn an_uninstallation_leaves_nothing_in_pods_and_on_the_node() {
    for backend in ["nft", "legacy"] {
        let env = [("CLEANUP_ON_EXIT", "always"), ("FORCE_IPTABLES_BINARY", backend)];
        let mut fixture = InPod::stopped(NodeOptions::default(), &env);
        let _echo = Echo::tcp(fixture.node.outside(), PORT);
        let (one, other) = (fixture.running_pod(MESH, "one"), fixture.running_pod(PLAIN, "other"));
        // A sidecar's rules have chains of the same names.
        let sidecar = Peer::new(fixture.node.pod(Pod::new(PLAIN, "sidecar"), &[]));
        sidecar.sandbox.netns.pipe(
            &format!("iptables-{backend}-restore --noflush"),
            "*nat\n:ISTIO_OUTPUT - [0:0]\n-A OUTPUT -p tcp -j ISTIO_OUTPUT\nCOMMIT\n",
        );
        let places = || {
            let pods = [&one, &other, &sidecar].map(|peer| dump_of(&peer.sandbox.netns));
            [vec![fixture.node.netns().sh("ipset save"), fixture.dump()], pods.to_vec()].concat()
        };
        let before = places();
        fixture.start();
        let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
        fixture.wait_captured(&one);
        // As the plugin leaves it when no agent takes its lines.
        std::fs::write(fixture.node.run_dir().join("istio-cni.log"), "a line").unwrap();
        assert!(fixture.is_ruled(&one) && fixture.is_probed(one.ip(false)));
        let (status, log) = fixture.daemon.take().unwrap().terminate();
        assert!(status.success(), "{log}");
        let places = || {
            let pods = [&one, &other, &sidecar].map(|peer| dump_of(&peer.sandbox.netns));
            [vec![fixture.node.netns().sh("ipset save"), fixture.dump()], pods.to_vec()].concat()
        };
        for (before, after) in before.iter().zip(places()) {
            assert_eq!(without_ztunnel(&after), without_ztunnel(before), "{backend}\n{log}");
        }
        let _ = one.tcp((fixture.node.outside_ip(false), PORT).into()).unwrap();
        let left: Vec<_> =
            std::fs::read_dir(fixture.node.run_dir()).unwrap().map(|entry| entry.unwrap()).collect();
        assert!(left.is_empty(), "sockets, logs, records: {left:?}");
        assert!(!fixture.socket().exists(), "the socket for ztunnel");
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
    let mut fixture = InPod::new(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let peer = fixture.mesh_pod("app");
    let (status, log) = fixture.daemon.take().unwrap().terminate();
    assert!(status.success(), "{log}");
    assert!(fixture.is_ruled(&peer) && fixture.is_probed(peer.ip(false)), "{log}");
    let _ = peer.tcp((fixture.node.outside_ip(false), PORT).into()).unwrap();
    let _ = ztunnel.wait_seen(|one| one.src.ip() == peer.ip(false));
    fixture.start();
    ztunnel.wait_for_snapshots(2);
    assert_eq!(ztunnel.workload(&peer.sandbox.pod.uid).unwrap().state, kit::WorkloadState::Up);
}
