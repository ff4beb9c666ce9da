//! Pods that cannot be started, and a ztunnel that never answers.

use std::net::TcpListener;

use kit::{InpodOptions, InpodZtunnel, Netns, Node, NodeOptions, WorkloadState, ZdsMessage};

use super::agent::{Agent, DONE, SNAPSHOT, add, del, open, refusal};
use super::conversation::taken;

fn start(agent: &Agent, options: InpodOptions) -> (Node, InpodZtunnel) {
    let node = Node::new(NodeOptions::default());
    let ztunnel = InpodZtunnel::start(&node, "ztunnel-a", &agent.path(), options);
    (node, ztunnel)
}

#[test]
fn a_port_in_use_is_told_and_tried_again() {
    let agent = Agent::listening();
    let (_node, ztunnel) = start(&agent, InpodOptions::default());
    let pod = Netns::new("pod");
    let other = pod.run(|| TcpListener::bind("0.0.0.0:15006").unwrap());
    let connection = agent.accept();
    let error = refusal(&connection.add("a", &pod));
    let why = "Bind([::]:15006, Os { code: 98, kind: AddrInUse, message: \"Address already in use\" })";
    assert_eq!(error, format!("failure to start proxy : {why}"));
    assert_eq!(taken(&pod), [15006], "all or nothing");
    let workload = ztunnel.wait_for_state("a", WorkloadState::Refused);
    assert_eq!(workload.error.as_deref(), Some(why));
    drop(other);
    ztunnel.wait_for_workload("a");
    assert_eq!(taken(&pod).len(), 3);
    assert!(connection.is_silent(), "one answer for one message");
}

#[test]
fn what_waits_is_forgotten_when_it_is_deleted_or_the_agent_goes() {
    let agent = Agent::listening();
    let refuse = vec!["a".to_owned(), "b".to_owned()];
    let (_node, mut ztunnel) = start(&agent, InpodOptions { refuse, ..InpodOptions::default() });
    let pod = Netns::new("pod");
    let connection = agent.accept();
    refusal(&connection.add("a", &pod));
    assert_eq!(connection.ask(&SNAPSHOT), DONE);
    assert_eq!(connection.ask(&del("a")), DONE);
    ztunnel.wait_for_state("a", WorkloadState::Gone);
    refusal(&connection.add("b", &pod));
    drop(connection);
    let connection = agent.accept();
    ztunnel.wait_for_state("b", WorkloadState::Gone);
    for uid in ["a", "b"] {
        ztunnel.accept(uid);
    }
    assert_eq!(connection.ask(&SNAPSHOT), DONE);
    assert!(taken(&pod).is_empty());
}

#[test]
fn a_test_can_change_its_mind_about_a_pod() {
    let agent = Agent::listening();
    let refuse = vec!["a".to_owned()];
    let (_node, mut ztunnel) = start(&agent, InpodOptions { refuse, ..InpodOptions::default() });
    let (pod, other) = (Netns::new("pod"), Netns::new("other"));
    let connection = agent.accept();
    assert_eq!(refusal(&connection.add("a", &pod)), "failure to start proxy : the test wants it so");
    assert_eq!(connection.add("b", &other), DONE);
    ztunnel.wait_for_state("a", WorkloadState::Refused);
    ztunnel.accept("a");
    ztunnel.wait_for_workload("a");
    ztunnel.refuse("a");
    assert_eq!(connection.add("a", &pod), DONE, "it runs already");
    refusal(&connection.add("a", &other));
    assert!(taken(&pod).is_empty(), "what ran there has ended all the same");
}

#[test]
fn what_is_no_namespace_cannot_be_started() {
    let agent = Agent::listening();
    let (_node, ztunnel) = start(&agent, InpodOptions::default());
    let connection = agent.accept();
    let file = std::fs::File::open("/").unwrap();
    connection.send(&add("a"), &[std::os::fd::AsFd::as_fd(&file)]);
    let error = refusal(&connection.receive());
    assert_eq!(error, "failure to start proxy : cannot enter the netns: Invalid argument (os error 22)");
    assert!(ztunnel.alive());
}

#[test]
fn a_mute_ztunnel_listens_but_never_answers() {
    let agent = Agent::listening();
    let (_node, ztunnel) = start(&agent, InpodOptions { mute: true, ..InpodOptions::default() });
    let pod = Netns::new("pod");
    let connection = agent.accept();
    connection.send(&add("a"), &[std::os::fd::AsFd::as_fd(&open(&pod))]);
    ztunnel.wait_for("the message", |all| all == [ZdsMessage::Add("a".to_owned())]);
    assert!(connection.is_silent());
    assert_eq!((ztunnel.workloads().len(), taken(&pod)), (0, vec![]));
}
