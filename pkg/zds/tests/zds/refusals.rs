//! Workloads that ztunnel cannot serve, for any reason.

use std::time::{Duration, Instant};

use super::*;

const SOON: Duration = Duration::from_millis(100);

fn impatient() -> Agent {
    let agent = Agent::with(ZdsDeadlines { first_retry: SOON, ..patient_deadlines() });
    agent.hub.start_snapshots();
    agent
}

#[test]
fn a_refusal_stops_nobody_else() {
    let agent = Agent::with_workload();
    agent.hub.set_workload(workload("b", 1));
    let ztunnel = agent.ztunnel();
    ztunnel.refuses(&add("a", 0), "port in use");
    ztunnel.acks(&add("b", 1));
    ztunnel.acks(&Asked::SnapshotSent);
    assert_eq!((agent.event(), agent.event()), (refused("a", 0, "port in use"), accepted("b", 1)));
    agent.hub.set_workload(workload("c", 2));
    ztunnel.acks(&add("c", 2));
    assert_eq!(agent.event(), accepted("c", 2));
    assert!(!agent.is_served("a"));
    assert_eq!(agent.hub.list_connections()[0].acknowledged, 2);
    ztunnel.hears_nothing();
}

#[test]
fn it_is_asked_again_less_and_less_often() {
    let agent = impatient();
    let ztunnel = agent.ztunnel_with(&[]);
    agent.hub.set_workload(workload("a", 0));
    let mut began = Instant::now();
    ztunnel.refuses(&add("a", 0), "port in use");
    for (tries, error) in [(1, "port in use"), (2, "port in use"), (3, "no memory")] {
        assert_eq!(ztunnel.asked(), add("a", 0));
        let pause = SOON * (1 << (tries - 1));
        assert!(began.elapsed() > pause.mul_f64(0.8), "{tries}: {:?}", began.elapsed());
        began = Instant::now();
        ztunnel.send(&ztunnel::nack(error));
    }
    ztunnel.acks(&add("a", 0));
    // Only a new reason is reported.
    assert_eq!(agent.event(), refused("a", 0, "port in use"));
    assert_eq!(agent.event(), refused("a", 0, "no memory"));
    assert_eq!(agent.event(), accepted("a", 0));
    assert!(agent.is_served("a"));
}

#[test]
fn it_is_asked_again_at_once_when_it_is_put_again() {
    let agent = Agent::open();
    let ztunnel = agent.ztunnel_with(&[]);
    agent.hub.set_workload(workload("a", 0));
    ztunnel.refuses(&add("a", 0), "port in use");
    assert_eq!(agent.event(), refused("a", 0, "port in use"));
    agent.hub.set_workload(workload("a", 0));
    ztunnel.refuses(&add("a", 0), "port in use");
    assert_eq!(agent.event(), refused("a", 0, "port in use"), "whoever put it waits for an answer");
    agent.hub.set_workload(workload("a", 1));
    ztunnel.acks(&add("a", 1));
    assert_eq!(agent.event(), accepted("a", 1));
}

/// ztunnel retries on its own until the workload is removed.
#[test]
fn a_refused_workload_is_removed_like_others() {
    let agent = impatient();
    let ztunnel = agent.ztunnel_with(&[]);
    agent.hub.set_workload(workload("a", 0));
    ztunnel.refuses(&add("a", 0), "port in use");
    assert_eq!(agent.event(), refused("a", 0, "port in use"));
    agent.hub.remove_workload(&"a".into());
    let mut asked = ztunnel.asked();
    if asked == add("a", 0) {
        ztunnel.send(&ztunnel::nack("port in use")); // a retry that was sent before
        asked = ztunnel.asked();
    }
    assert_eq!(asked, del("a"));
    ztunnel.send(ztunnel::ACK);
    assert!(!ztunnel.hears_within(SOON * 2), "{:?}", ztunnel.try_asked());
}

#[test]
fn a_refused_removal_or_keep_is_left_at_that() {
    let agent = Agent::open();
    agent.hub.set_workload(workload("a", None));
    agent.hub.set_workload(workload("b", 0));
    let ztunnel = agent.ztunnel();
    ztunnel.refuses(&keep("a"), "no");
    ztunnel.acks(&add("b", 0));
    ztunnel.acks(&Asked::SnapshotSent);
    agent.hub.remove_workload(&"b".into());
    ztunnel.refuses(&del("b"), "no");
    ztunnel.hears_nothing();
}

#[test]
fn a_refused_end_of_the_snapshot_ends_the_connection() {
    let agent = Agent::open();
    let ztunnel = agent.ztunnel();
    ztunnel.refuses(&Asked::SnapshotSent, "failure to process message");
    ztunnel.is_closed();
}

/// ztunnel's text of an error may be long, even longer than the 1024 bytes that it reads itself.
#[test]
fn a_long_error_is_cut_and_no_reason_to_close() {
    let agent = Agent::open();
    let ztunnel = agent.ztunnel_with(&[]);
    agent.hub.set_workload(workload("a", 0));
    let error = "ä".repeat(5000);
    ztunnel.refuses(&add("a", 0), &error);
    assert_eq!(agent.event(), refused("a", 0, &error[..1024]));
}

/// The message would be read as truncated, and cost all workloads the connection.
#[test]
fn what_ztunnel_has_no_room_for_is_not_sent() {
    let agent = Agent::open();
    // The rest of the message with such a name is 20 bytes; ztunnel reads 1024.
    agent.hub.set_workload(Workload { name: "n".repeat(1004), ..workload("a", 0) });
    agent.hub.set_workload(Workload { name: "n".repeat(1005), ..workload("b", 0) });
    agent.hub.set_workload(workload("c", 1));
    let _ztunnel = agent.ztunnel_with(&["a", "c"]);
    assert_eq!(agent.event(), accepted("a", 0));
    assert_eq!(agent.event(), refused("b", 0, "a message of 1025 bytes is longer than ztunnel reads"));
    assert_eq!(agent.event(), accepted("c", 1));
}
