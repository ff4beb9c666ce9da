//! In-pod capture: path of each packet.

use std::net::SocketAddr;

use kit::{Echo, Proto, Via};

use crate::fixtures::ambient::{PLAIN, PORT, Peer};
use crate::fixtures::inpod::{InPod, RELAYED, relayed, wait_relayed};

#[test]
fn a_pod_is_in_the_mesh_from_its_first_packet_on() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let (one, two) = (fixture.mesh_pod("one"), fixture.mesh_pod("two"));
    let plain = fixture.pod(PLAIN, "plain");
    for v6 in [false, true] {
        let outside = SocketAddr::new(fixture.node.outside_ip(v6), PORT);
        // mesh -> outside
        let seen = one.tcp(outside).unwrap();
        assert_eq!(seen.peer.ip(), one.ip(v6));
        wait_relayed(&ztunnel, one.ip(v6), outside);
        // mesh -> mesh
        let seen = one.tcp(two.at(v6)).unwrap();
        assert_eq!(seen.peer.ip(), one.ip(v6));
        assert!(RELAYED.contains(&seen.peer.port()));
        // outside -> mesh
        let seen = kit::connect(fixture.node.outside(), Proto::Tcp, two.at(v6)).unwrap();
        assert_eq!(seen.peer.ip(), fixture.node.outside_ip(v6));
        assert!(RELAYED.contains(&seen.peer.port()), "{seen:?}");
        // plain -> mesh, mesh -> plain
        assert!(RELAYED.contains(&plain.tcp(two.at(v6)).unwrap().peer.port()));
        let _ = one.tcp(plain.at(v6)).unwrap();
        wait_relayed(&ztunnel, one.ip(v6), plain.at(v6));
        // plain -> outside is not concerned
        let _ = plain.tcp(outside).unwrap();
        assert!(!relayed(&ztunnel, plain.ip(v6), outside));
        // The pod's own addresses, and loopback.
        let own = one.tcp(one.at(v6)).unwrap();
        assert!(!RELAYED.contains(&own.peer.port()), "{own:?}");
        assert!(!relayed(&ztunnel, one.ip(v6), one.at(v6)));
        // The node's probes reach the pod itself.
        let probe = kit::connect(fixture.node.netns(), Proto::Tcp, two.at(v6)).unwrap();
        assert!(!RELAYED.contains(&probe.peer.port()), "{probe:?}");
        let from = if v6 { "fd16:9254:7127:1337:ffff:ffff:ffff:ffff" } else { "169.254.7.127" };
        assert_eq!(probe.peer.ip().to_string(), from);
    }
    let explained = |pod: &str| {
        let output = fixture.container.exec(&["explain", pod, "-o", "json"]);
        let explanation: report::Explanation = serde_json::from_slice(&output.stdout).unwrap();
        let kernel =
            explanation.details.into_iter().find(|detail| detail.starts_with("The kernel showed at "));
        kernel.unwrap().rsplit("; ").take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    // The kernel's own routing decision, from another program.
    let route = |pod: &Peer, v6: bool| {
        let shown = fixture.node.netns().sh(&format!("ip route get {}", pod.ip(v6)));
        shown.split_whitespace().skip_while(|word| *word != "src").nth(1).unwrap().to_owned()
    };
    let sources = "169.254.7.127 or fd16:9254:7127:1337:ffff:ffff:ffff:ffff in the last two minutes";
    for (pod, probed) in [("mesh/two", "probes have come from"), ("mesh/one", "no probe has come from")] {
        let peer = if pod == "mesh/two" { &two } else { &one };
        let [v4, v6] = [false, true].map(|v6| route(peer, v6));
        let reached =
            format!("by its routes the node reaches it from {v4} and {v6}, which it replaces for probes");
        assert_eq!(explained(pod), [format!("{probed} {sources}."), reached]);
    }
    assert!(ztunnel.seen().iter().all(|one| one.error.is_none() && one.via != Via::Dns));
    assert_eq!(ztunnel.protocol_error(), None);
}
