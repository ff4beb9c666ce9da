//! A second agent on a node, of another capture mode, as a changed environment or a predecessor that does not end makes one:
//! it changes nothing.

use std::fs;

use kit::{Echo, InpodOptions};

use crate::ambient_stage::{Ambient, PORT, dump_of};
use crate::inpod_stage::InPod;

#[test]
fn an_agent_that_captures_on_the_node_leaves_captured_pods_of_a_living_one_alone() {
    let mut stage = InPod::new(&[]);
    let ztunnel = stage.ztunnel("ztunnel-a", InpodOptions::default());
    let _echo = Echo::tcp(stage.node.outside(), PORT);
    let pod = stage.mesh_pod("one");
    stage.wait_captured(&pod);
    let (before, node) = (dump_of(&pod.sandbox.netns), dump_of(stage.node.netns()));
    stage.container.set_env("AMBIENT_CAPTURE", "node");
    let mut second = stage.container.start();
    assert_eq!(second.wait().code(), Some(1), "{}", second.log());
    assert!(second.log().contains("another agent runs on this node"), "{}", second.log());
    assert_eq!(dump_of(&pod.sandbox.netns), before, "{}", second.log());
    assert_eq!(dump_of(stage.node.netns()), node, "{}", second.log());
    let outside = (stage.node.outside_ip(false), PORT).into();
    let _ = pod.tcp(outside).unwrap();
    let _ = ztunnel.wait_seen(|seen| seen.src.ip() == pod.ip(false) && seen.dst == outside);
}

#[test]
fn an_agent_that_captures_in_pods_leaves_the_node_path_of_a_living_one_alone() {
    let mut stage = Ambient::new(&[]);
    let ztunnel = stage.ztunnel("ztunnel-a");
    let node = dump_of(stage.node.netns());
    let before = fs::read(stage.config_file()).unwrap();
    stage.container.set_env("AMBIENT_CAPTURE", "in-pod");
    let mut second = stage.container.start();
    assert_eq!(second.wait().code(), Some(1), "{}", second.log());
    let after = fs::read(stage.config_file()).unwrap();
    assert_eq!((dump_of(stage.node.netns()), after), (node, before), "{}", second.log());
    drop(ztunnel);
}
