//! The source of the node's probes as determined by the node's own routes, for networks whose packets from the node bypass its
//! rules.

use std::net::SocketAddr;

use kit::{Echo, InpodOptions, NodeOptions, Pod, Proto};
use serde_json::Value;

use crate::fixtures::ambient::{Ambient, PLAIN, PORT, Peer};
use crate::fixtures::inpod::{InPod, RELAYED, wait_relayed};

const DETECT: [(&str, &str); 2] = [("HOST_PROBE_SNAT_IP", "detect"), ("HOST_PROBE_SNAT_IPV6", "detect")];
const ISTIO: [&str; 2] = ["169.254.7.127", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"];

/// Packets from the node are not tracked, so no rule of `nat` changes their source: as with an eBPF program that sends them to
/// pods.
fn pass_node_rules(fixture: &Ambient) {
    let rules = "table inet network { chain out { type filter hook output priority -310; notrack; }; }";
    fixture.node.netns().pipe("nft -f -", rules);
}

/// Source address of the node's packets to the pod by its routes, from another program.
fn route_source(fixture: &Ambient, pod: &Peer, v6: bool) -> String {
    let shown = fixture.node.netns().sh(&format!("ip route get {}", pod.ip(v6)));
    shown.split_whitespace().skip_while(|word| *word != "src").nth(1).unwrap().to_owned()
}

/// Source of a connection of the node to the pod, as the application sees it, and whether ztunnel relayed it.
fn probe(fixture: &Ambient, pod: &Peer, v6: bool) -> (String, bool) {
    let seen = kit::connect(fixture.node.netns(), Proto::Tcp, pod.at(v6)).unwrap();
    (seen.peer.ip().to_string(), RELAYED.contains(&seen.peer.port()))
}

fn check(fixture: &Ambient) -> (String, String) {
    let output = fixture.container.exec(&["check", "-o", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = answer["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["code"] == "probe-source").unwrap();
    let text = |member: &str| found[member].as_str().unwrap_or("ok").to_owned();
    (text("severity"), text("message"))
}

#[test]
fn without_detection_probes_that_pass_the_nodes_rules_are_traffic_of_the_mesh() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let pod = fixture.mesh_pod("app");
    for (v6, istio) in [(false, ISTIO[0]), (true, ISTIO[1])] {
        assert_eq!(probe(&fixture, &pod, v6), (istio.to_owned(), false));
    }
    pass_node_rules(&fixture);
    for v6 in [false, true] {
        assert_eq!(probe(&fixture, &pod, v6), (route_source(&fixture, &pod, v6), true));
    }
    let [v4, v6] = [false, true].map(|v6| route_source(&fixture, &pod, v6));
    let [istio_v4, istio_v6] = ISTIO;
    let found =
        format!("the node reaches its pods from {v4} and {v6}; probes come from {istio_v4} and {istio_v6}");
    assert_eq!(check(&fixture), ("ok".to_owned(), found));
}

#[test]
fn a_detected_source_needs_no_rule_of_the_node() {
    let mut fixture = InPod::stopped(NodeOptions::default(), &DETECT);
    let _running = fixture.node.pod(Pod::new(PLAIN, "runs"), &[]);
    fixture.start();
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let pod = fixture.mesh_pod("app");
    let [v4, v6] = [false, true].map(|v6| route_source(&fixture, &pod, v6));
    let found = format!("the node reaches its pods from {v4} and {v6}; probes come from {v4} and {v6}");
    assert_eq!(check(&fixture), ("ok".to_owned(), found));
    for passes in [false, true] {
        if passes {
            pass_node_rules(&fixture);
        }
        for v6 in [false, true] {
            assert_eq!(probe(&fixture, &pod, v6), (route_source(&fixture, &pod, v6), false), "{passes}");
            // Connections of other clients belong to the mesh.
            let _ = kit::connect(fixture.node.outside(), Proto::Tcp, pod.at(v6)).unwrap();
            wait_relayed(&ztunnel, fixture.node.outside_ip(v6), pod.at(v6));
        }
    }
    let probes = format!("probes have come from {v4} or {v6} in the last two minutes.");
    let details = fixture.explain("mesh/app").details;
    assert!(details.iter().any(|detail| detail.rsplit("; ").next() == Some(&probes)), "{details:?}");
}

/// The source is unknown before a pod runs; the next agent determines it, and corrects the first one's rules.
#[test]
fn an_agent_on_an_empty_node_uses_istios_source_until_it_starts_again() {
    let mut fixture = InPod::new(&DETECT);
    assert_eq!(fixture.daemon().logged("cannot detect the source of the node's probes", "family=IPv6"), 1);
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let pod = fixture.mesh_pod("app");
    for (v6, istio) in [(false, ISTIO[0]), (true, ISTIO[1])] {
        assert_eq!(probe(&fixture, &pod, v6), (istio.to_owned(), false));
    }
    fixture.restart();
    fixture.wait_captured(&pod);
    pass_node_rules(&fixture);
    for v6 in [false, true] {
        let expected = (route_source(&fixture, &pod, v6), false);
        fixture
            .eventually("the pod takes the detected source", |fixture| probe(fixture, &pod, v6) == expected);
        let outside = SocketAddr::new(fixture.node.outside_ip(v6), PORT);
        let _ = pod.tcp(outside).unwrap();
        wait_relayed(&ztunnel, pod.ip(v6), outside);
    }
}
