//! An agent that is told to use another iptables than the one before.

use std::net::SocketAddr;
use std::sync::Arc;

use kit::{Echo, Live, LiveConnections, Netns, NodeOptions, UplinkWatch};

use crate::ambient_paths::every;
use crate::ambient_stage::{Ambient, MESH, PORT};

const FORCED: &str = "FORCE_IPTABLES_BINARY";

/// Whether both families of a namespace have rules of ours by this backend.
fn has_rules(netns: &Netns, backend: &str) -> bool {
    let [v4, v6] = ["", "6"].map(|family| {
        netns.sh(&format!("ip{family}tables-{backend}-save")).lines().any(|line| line.contains("ztunnel-"))
    });
    assert_eq!(v4, v6, "{backend}: one family only");
    v4
}

#[test]
fn rules_of_another_iptables_give_way_and_nobody_notices() {
    every(&[["legacy", "nft"], ["nft", "legacy"]], |[old, new]| {
        let mut stage = Ambient::stopped(NodeOptions::default(), &[(FORCED, old)]);
        stage.start();
        let ztunnel = stage.ztunnel("ztunnel-a");
        let _outside = Echo::tcp(stage.node.outside(), PORT);
        let (first, second) = (stage.pod(MESH, "first"), stage.pod(MESH, "second"));
        let node = Arc::clone(&stage.node);
        let places = [&**node.netns(), &ztunnel.pod().netns];
        let assert_only = |backend: Option<&str>, what: &str| {
            for (netns, known) in places.iter().flat_map(|netns| [old, new].map(|known| (netns, *known))) {
                assert_eq!(
                    has_rules(netns, known),
                    backend == Some(known),
                    "{what}: {} {known}",
                    netns.name()
                );
            }
        };
        assert_only(Some(old), "the first agent");
        let addresses: Vec<_> = [&first, &second].iter().flat_map(|peer| peer.sandbox.ips()).collect();
        let uplink = UplinkWatch::start(&node, &addresses);
        let mut live = LiveConnections::start(&first.sandbox.netns, Live::default());
        for v6 in [false, true] {
            let _ = live.open(SocketAddr::new(node.outside_ip(v6), PORT), 2);
            let _ = live.open(second.at(v6), 2);
        }
        stage.container.set_env(FORCED, new);
        let (status, log) = stage.daemon.take().unwrap().terminate();
        assert!(status.success(), "{log}");
        stage.start();
        assert_only(Some(new), "its successor");
        assert!(stage.is_captured(&first) && stage.is_reached_through_ztunnel(&first));
        live.wait_round();
        live.finish().assert_unbroken();
        assert_eq!(uplink.total().direct, 0, "{:?}", uplink.total());

        stage.daemon.take().unwrap().kill();
        stage.container.set_env(FORCED, old);
        let mut command = stage.container.start_with(&["uninstall"], &[]);
        assert!(command.wait().success(), "{}", command.log());
        assert_only(None, "an uninstallation by the first");
    });
}
