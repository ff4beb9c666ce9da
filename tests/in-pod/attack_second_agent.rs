//! A second agent on a node with another capture mode, as after a change of the environment or beside a predecessor that does not
//! end: it changes nothing.

use std::fs;

use kit::Echo;

use crate::fixtures::ambient::{Ambient, PORT, dump_of};
use crate::fixtures::inpod::InPod;

#[test]
fn an_agent_that_captures_on_the_node_leaves_captured_pods_of_a_living_one_alone() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let pod = fixture.captured_pod("one");
    // Otherwise the dumps have tentative addresses.
    fixture.node.netns().wait_until_addresses_are_usable();
    pod.sandbox.netns.wait_until_addresses_are_usable();
    let (before, node) = (dump_of(&pod.sandbox.netns), dump_of(fixture.node.netns()));
    fixture.container.set_env("AMBIENT_CAPTURE", "node");
    let mut second = fixture.container.start();
    assert_eq!(second.wait().code(), Some(1), "{}", second.log());
    let why = "it holds /var/run/istio-cni/agent.lock. Nothing was changed";
    let complaint = format!("install-cni: another agent runs on this node: {why}");
    assert!(kit::has_line(&second.log(), &complaint), "{}", second.log());
    assert_eq!(dump_of(&pod.sandbox.netns), before, "{}", second.log());
    assert_eq!(dump_of(fixture.node.netns()), node, "{}", second.log());
    let outside = (fixture.node.outside_ip(false), PORT).into();
    let _ = pod.tcp(outside).unwrap();
    let _ = ztunnel.wait_seen(|seen| seen.src.ip() == pod.ip(false) && seen.dst == outside);
}

#[test]
fn an_agent_that_captures_in_pods_leaves_the_node_path_of_a_living_one_alone() {
    let mut fixture = Ambient::new(&[]);
    let ztunnel = fixture.ztunnel("ztunnel-a");
    fixture.node.netns().wait_until_addresses_are_usable(); // otherwise the dump has tentative addresses
    let node = dump_of(fixture.node.netns());
    let before = fs::read(fixture.config_file()).unwrap();
    fixture.container.set_env("AMBIENT_CAPTURE", "in-pod");
    let mut second = fixture.container.start();
    assert_eq!(second.wait().code(), Some(1), "{}", second.log());
    let after = fs::read(fixture.config_file()).unwrap();
    assert_eq!((dump_of(fixture.node.netns()), after), (node, before), "{}", second.log());
    drop(ztunnel);
}
