//! Very many foreign firewall rules, in pods that may create them, or on the node: no pod's start is delayed, and a pod that has
//! dropped our rules among its own is captured again.

use std::process::Command;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use kit::{Echo, InpodOptions, Netns, Node, NodeOptions, Pod, fill_with_rules};

use crate::fixtures::ambient::{Ambient, MESH, PORT, Peer};
use crate::fixtures::inpod::{InPod, wait_relayed};

/// Time within which all pods are observed.
const MINUTE: Duration = Duration::from_secs(60);
/// Time limit of one ADD among foreign rules on a busy machine. An idle one takes 15 ms.
const ADD: Duration = Duration::from_secs(1);

/// The kernel's lock for links, addresses, routes and policy rules, which all namespaces of the machine share. Whoever writes tens of
/// thousands of policy rules holds it for seconds: no ADD can be measured meanwhile.
pub(crate) static RTNL: RwLock<()> = RwLock::new(());

/// Starts pods for this time, and asserts that most ADDs are undelayed, and that none takes five times as long, as it would if it
/// waited for an observation of very many rules. Other tests compete for CPU time, and the durations include pods' namespaces and
/// chains of plugins: on a slow machine, the limit is a multiple of what pods of another node take without our plugin. Every ADD
/// would take seconds if it read the node's rules.
fn assert_undelayed(time: Duration, mut add: impl FnMut(usize) -> Peer) {
    let _measured = RTNL.read().unwrap_or_else(PoisonError::into_inner);
    let plain = Node::new(NodeOptions::default());
    let (began, mut took, mut usual, mut peers) = (Instant::now(), Vec::new(), Vec::new(), Vec::new());
    while began.elapsed() < time {
        let one = Instant::now();
        peers.push(add(took.len()));
        took.push(one.elapsed());
        let other = Instant::now();
        let _other = Peer::new(plain.pod(Pod::new(MESH, "plain"), &[]));
        usual.push(other.elapsed());
        std::thread::sleep(Duration::from_millis(400)); // as many pods as a node has, over the whole time
    }
    took.sort();
    usual.sort();
    println!("{} ADDs: {took:?}\nwithout our plugin: {usual:?}", took.len());
    let limit = ADD.max(usual[usual.len() / 2] * 5);
    assert!(took[took.len() * 3 / 4] < limit, "{took:?}, at most {limit:?}");
    assert!(took[took.len() - 1] < limit * 5, "{took:?}");
}

#[test]
fn pods_with_very_many_rules_keep_no_other_pod_from_starting() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[]);
    let hostile: Vec<_> = (0..5).map(|at| fixture.mesh_pod(&format!("hostile-{at}"))).collect();
    for peer in &hostile {
        fixture.wait_captured(peer);
    }
    for peer in &hostile {
        fill_with_rules(&peer.sandbox.netns, "nat", 150_000);
        peer.sandbox.netns.sh(&fixture.tables.flush_nat("ISTIO_OUTPUT"));
    }
    // Each of them is observed at least once.
    assert_undelayed(Duration::from_secs(45), |at| fixture.mesh_pod(&format!("pod-{at}")));
}

#[test]
fn a_pod_that_drops_our_rules_among_very_many_of_its_own_is_captured_again() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let pod = fixture.captured_pod("hostile");
    let netns = &pod.sandbox.netns;
    fill_with_rules(netns, "nat", 50_000);
    let flushes =
        ["ISTIO_OUTPUT", "ISTIO_PRERT", "OUTPUT", "PREROUTING"].map(|chain| fixture.tables.flush_nat(chain));
    // In one process: between two of them, the agent would repair the first.
    let flushed = netns.run(|| Command::new("sh").args(["-c", &flushes.join(" && ")]).status().unwrap());
    assert!(flushed.success(), "{flushes:?}");
    let outside = (fixture.node.outside_ip(false), PORT).into();
    // The tools take seconds to list so many rules: they run when the agent has reported the repair.
    let repairs = "istio_cni_ambient_repairs_total{place=\"pod\"}";
    let began = Instant::now();
    fixture.within(MINUTE, "it is captured again", |fixture| {
        fixture.daemon().metric(repairs).is_some_and(|repairs| repairs >= 1.0) && fixture.is_ruled(&pod)
    });
    println!("captured again after {:?}", began.elapsed());
    assert!(fixture.is_ruled(&pod), "{}", fixture.log());
    let _ = pod.tcp(outside).unwrap();
    wait_relayed(&ztunnel, pod.ip(false), outside);
    // Readers see it immediately.
    let took = [(); 3].map(|()| {
        let asked = Instant::now();
        let answer = fixture.explain(&format!("{MESH}/hostile"));
        assert_eq!(answer.code, "captured", "{answer}");
        asked.elapsed()
    });
    // The machine may have stalled in some.
    assert!(took.iter().any(|took| *took < Duration::from_secs(5)), "{took:?}");
}

/// Adds one more foreign rule, as kube-proxy does continuously.
fn add_service(node: &Netns, at: usize) {
    let _ = node.sh(&format!("nft add rule ip nat FOREIGN ip daddr 10.255.{}.{} accept", at >> 8, at & 255));
}

#[test]
fn very_many_rules_on_the_node_keep_no_pod_from_starting_with_capture_in_pods() {
    let mut fixture = InPod::stopped(NodeOptions::default(), &[]);
    ["nat", "filter"].iter().for_each(|table| fill_with_rules(fixture.node.netns(), table, 25_000));
    fixture.start();
    let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    assert_undelayed(Duration::from_secs(40), |at| {
        let peer = fixture.mesh_pod(&format!("pod-{at}"));
        add_service(fixture.node.netns(), at);
        peer
    });
}

#[test]
fn very_many_rules_on_the_node_keep_no_pod_from_starting_with_capture_on_the_node() {
    let mut fixture = Ambient::stopped(NodeOptions::default(), &[]);
    ["nat", "filter"].iter().for_each(|table| fill_with_rules(fixture.node.netns(), table, 25_000));
    fixture.start();
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    assert_undelayed(Duration::from_secs(40), |at| {
        let peer = fixture.pod(MESH, &format!("pod-{at}"));
        add_service(fixture.node.netns(), at);
        peer
    });
}
