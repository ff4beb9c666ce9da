//! Several ztunnels at once.

use super::*;

#[test]
fn the_newest_is_told_everything_and_older_ones_what_ends() {
    let agent = Agent::open();
    agent.hub.put(workload("a", 0));
    let old = agent.ztunnel_with(&["a"]);
    let new = agent.ztunnel_with(&["a"]);
    agent.hub.put(workload("b", 1));
    new.acks(&add("b", 1));
    agent.hub.remove("a");
    new.acks(&del("a"));
    old.acks(&del("a"));
    agent.hub.remove("b"); // the old one was never told of it
    new.acks(&del("b"));
    old.hears_nothing();
    new.hears_nothing();
}

#[test]
fn a_survivor_gets_what_it_missed() {
    let agent = Agent::open();
    agent.hub.put(workload("a", 0));
    agent.hub.put(workload("m", 0));
    let old = agent.ztunnel_with(&["a", "m"]);
    let new = agent.ztunnel_with(&["a", "m"]);
    agent.hub.put(workload("b", 1));
    new.acks(&add("b", 1));
    agent.hub.put(workload("c", None));
    agent.hub.remove("a");
    new.acks(&del("a"));
    old.acks(&del("a"));
    drop(new);
    old.acks(&add("b", 1));
    agent.hub.put(workload("d", 2));
    old.acks(&add("d", 2));
    old.hears_nothing();
    eventually(|| agent.hub.state().connections[0].acknowledged == 3);
}

/// It has not had the end of its snapshot; all rules of a snapshot hold when it is its turn again.
#[test]
fn a_survivor_in_the_middle_of_its_snapshot_goes_on_with_it() {
    let agent = Agent::open();
    for uid in ["a", "b"] {
        agent.hub.put(workload(uid, 0));
    }
    let old = agent.ztunnel();
    assert_eq!(old.asked(), add("a", 0));
    let new = agent.ztunnel_with(&["a", "b"]);
    old.send(ztunnel::ACK);
    agent.hub.put(workload("k", None));
    agent.hub.remove("a");
    new.acks(&del("a"));
    old.acks(&del("a"));
    old.hears_nothing();
    drop(new);
    old.acks(&add("b", 0));
    old.acks(&keep("k"));
    old.acks(&Asked::SnapshotSent);
    old.hears_nothing();
}

#[test]
fn an_older_one_that_goes_is_not_missed() {
    let agent = Agent::open();
    let old = agent.ztunnel_with(&[]);
    let new = agent.ztunnel_with(&[]);
    drop(old);
    eventually(|| agent.hub.state().connections.len() == 1);
    agent.hub.put(workload("a", 0));
    new.acks(&add("a", 0));
    new.hears_nothing();
}

/// It is about to leave: it shall neither open listeners in the new namespace nor hold the old one.
#[test]
fn an_older_one_lets_go_of_a_namespace_that_is_replaced() {
    let agent = Agent::open();
    agent.hub.put(workload("a", 0));
    let old = agent.ztunnel_with(&["a"]);
    let new = agent.ztunnel_with(&["a"]);
    agent.hub.put(workload("a", 1));
    new.acks(&add("a", 1));
    old.acks(&del("a"));
    old.hears_nothing();
    drop(new);
    old.acks(&add("a", 1));
}

#[test]
fn only_what_the_newest_says_counts() {
    let agent = Agent::open();
    let old = agent.ztunnel_with(&[]);
    agent.hub.put(workload("a", 0));
    assert_eq!(old.asked(), add("a", 0));
    let new = agent.ztunnel();
    old.send(&ztunnel::nack("no"));
    new.acks(&add("a", 0));
    new.acks(&Asked::SnapshotSent);
    assert_eq!(agent.event(), accepted("a", 0));
    eventually(|| agent.hub.state().connections[1].in_sync);
    assert_eq!(agent.progress("a"), Progress::Accepted);
    assert_eq!(agent.events.try_iter().filter(|event| !matches!(event, Event::Connections(_))).count(), 0);
}

#[test]
fn one_that_does_not_answer_holds_up_nobody_else() {
    let agent = Agent::open();
    let old = agent.ztunnel_with(&[]);
    agent.hub.put(workload("a", 0));
    assert_eq!(old.asked(), add("a", 0)); // and says no more
    let new = agent.ztunnel_with(&["a"]);
    agent.hub.put(workload("b", 0));
    new.acks(&add("b", 0));
}
