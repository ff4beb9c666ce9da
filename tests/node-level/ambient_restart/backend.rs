//! An agent whose setting selects another iptables backend than the previous agent's.

use std::net::SocketAddr;
use std::sync::Arc;

use kit::{Echo, Live, LiveConnections, Netns, NodeOptions, UplinkWatch};

use crate::ambient_paths::every;
use crate::fixtures::ambient::{Ambient, MESH, PORT};

const FORCED: &str = "FORCE_IPTABLES_BINARY";

/// Whether both families of a namespace have our rules in this backend.
fn has_rules(netns: &Netns, backend: &str) -> bool {
    let [v4, v6] = ["", "6"].map(|family| {
        netns
            .sh(&format!("ip{family}tables-{backend}-save"))
            .lines()
            .any(|line| line.starts_with(":ztunnel-"))
    });
    assert_eq!(v4, v6, "{backend}: one family only");
    v4
}

#[test]
fn rules_of_another_iptables_give_way_and_nobody_notices() {
    every(&[["legacy", "nft"], ["nft", "legacy"]], |[old, new]| {
        let mut fixture = Ambient::stopped(NodeOptions::default(), &[(FORCED, old)]);
        fixture.start();
        let ztunnel = fixture.ztunnel("ztunnel-a");
        let _outside = Echo::tcp(fixture.node.outside(), PORT);
        let (first, second) = (fixture.pod(MESH, "first"), fixture.pod(MESH, "second"));
        let node = Arc::clone(&fixture.node);
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
        fixture.container.set_env(FORCED, new);
        let (status, log) = fixture.daemon.take().unwrap().terminate();
        assert!(status.success(), "{log}");
        fixture.start();
        assert_only(Some(new), "its successor");
        assert!(fixture.is_captured(&first) && fixture.is_reached_through_ztunnel(&first));
        live.wait_round();
        live.finish().assert_unbroken();
        assert_eq!(uplink.total().direct, 0, "{:?}", uplink.total());

        fixture.daemon.take().unwrap().kill();
        fixture.container.set_env(FORCED, old);
        let mut command = fixture.container.start_with(&["uninstall"], &[]);
        assert!(command.wait().success(), "{}", command.log());
        assert_only(None, "an uninstallation by the first");
    });
}
