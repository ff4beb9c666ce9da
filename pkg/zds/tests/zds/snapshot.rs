//! Hello, then all workloads, then the end of the snapshot, once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use zds::ZdsEvent;

use super::*;

#[test]
fn hello_then_adds_and_keeps_then_the_end() {
    let agent = Agent::with_workload();
    agent.hub.set_workload(workload("b", None));
    agent.hub.set_workload(workload("c", 1));
    let ztunnel = Ztunnel::dial(&agent.socket());
    ztunnel.hears_nothing();
    ztunnel.hello();
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(ztunnel.asked());
        ztunnel.hears_nothing(); // a request is sent only after the answer to the previous one
        ztunnel.send(ztunnel::ACK);
    }
    told.sort_by_key(|asked| format!("{asked:?}"));
    assert_eq!(told, [add("a", 0), add("c", 1), keep("b")]);
    ztunnel.acks(&Asked::SnapshotSent);
    eventually(|| agent.hub.list_connections()[0].in_sync);
    ztunnel.hears_nothing();
    assert!(agent.is_served("a") && !agent.is_served("b"), "b is kept");
    let connection = &agent.hub.list_connections()[0];
    assert_eq!((connection.version, connection.in_sync, connection.acknowledged), (1, true, 3));
}

#[test]
fn an_empty_snapshot_has_an_end_too() {
    let agent = Agent::open();
    let ztunnel = agent.ztunnel();
    assert!(!agent.hub.list_connections()[0].in_sync);
    ztunnel.acks(&Asked::SnapshotSent);
    eventually(|| agent.hub.list_connections()[0].in_sync);
}

#[test]
fn nothing_is_told_before_the_hub_is_open() {
    let agent = Agent::closed();
    agent.hub.set_workload(workload("a", 0));
    let ztunnel = agent.ztunnel();
    agent.hub.set_workload(workload("b", 1));
    agent.hub.remove_workload(&"a".into());
    ztunnel.hears_nothing();
    assert!(!agent.hub.is_open());
    agent.hub.start_snapshots();
    ztunnel.acks(&add("b", 1));
    ztunnel.acks(&Asked::SnapshotSent);
    assert_eq!(agent.event(), accepted("b", 1));
}

#[test]
fn what_is_put_meanwhile_comes_next() {
    let agent = Agent::open();
    for number in 0..20 {
        agent.hub.set_workload(workload(&format!("old-{number}"), 0));
    }
    let ztunnel = agent.ztunnel();
    assert!(matches!(ztunnel.asked(), Asked::Add { .. }));
    agent.hub.set_workload(workload("new-2", 1));
    agent.hub.set_workload(workload("new-1", 2));
    agent.hub.set_workload(workload("old-7", 3)); // does not wait with the others any more
    ztunnel.send(ztunnel::ACK);
    ztunnel.acks(&add("new-2", 1));
    ztunnel.acks(&add("new-1", 2));
    ztunnel.acks(&add("old-7", 3));
    let rest: BTreeSet<String> = (0..18).map(|_| ztunnel.acks_add().0).collect();
    assert!(rest.len() == 18 && !rest.contains("old-7"));
    ztunnel.acks(&Asked::SnapshotSent);
}

/// Workloads set before the hub was opened are part of the snapshot, even for a ztunnel that had connected before.
#[test]
fn nothing_is_urgent_before_the_hub_is_open() {
    let agent = Agent::closed();
    let ztunnel = agent.ztunnel();
    for uid in ["a", "b", "c"] {
        agent.hub.set_workload(workload(uid, 0));
    }
    agent.hub.start_snapshots();
    assert_eq!(ztunnel.asked(), add("a", 0));
    agent.hub.set_workload(workload("d", 1));
    ztunnel.send(ztunnel::ACK);
    ztunnel.acks(&add("d", 1));
}

#[test]
fn what_is_removed_meanwhile_is_taken_back_or_never_told() {
    let agent = Agent::open();
    for uid in ["a", "b", "c"] {
        agent.hub.set_workload(workload(uid, 0));
    }
    agent.hub.set_workload(workload("d", None));
    let ztunnel = agent.ztunnel();
    ztunnel.acks(&add("a", 0));
    assert_eq!(ztunnel.asked(), add("b", 0));
    agent.hub.remove_workload(&"a".into()); // acknowledged
    agent.hub.remove_workload(&"b".into()); // being sent
    agent.hub.remove_workload(&"c".into()); // not sent yet
    ztunnel.send(ztunnel::ACK);
    ztunnel.acks(&del("a"));
    ztunnel.acks(&del("b"));
    assert_eq!(ztunnel.asked(), keep("d"));
    agent.hub.remove_workload(&"d".into());
    ztunnel.send(ztunnel::ACK);
    ztunnel.acks(&del("d"));
    ztunnel.acks(&Asked::SnapshotSent);
    ztunnel.hears_nothing();
}

/// Kept workloads are served until the snapshot is complete, whenever their network namespace becomes known.
#[test]
fn kept_workloads_are_added_after_the_snapshot() {
    let agent = Agent::open();
    agent.hub.set_workload(workload("a", None));
    agent.hub.set_workload(workload("b", 0));
    let ztunnel = agent.ztunnel();
    assert_eq!(ztunnel.asked(), keep("a"));
    agent.hub.set_workload(workload("a", 1));
    ztunnel.send(ztunnel::ACK);
    ztunnel.acks(&add("b", 0));
    ztunnel.acks(&Asked::SnapshotSent);
    ztunnel.acks(&add("a", 1));
    assert_eq!((agent.event(), agent.event()), (accepted("b", 0), accepted("a", 1)));
}

#[test]
fn nothing_is_kept_after_the_snapshot() {
    let agent = Agent::open();
    let ztunnel = agent.ztunnel();
    assert_eq!(ztunnel.asked(), Asked::SnapshotSent);
    agent.hub.set_workload(workload("a", None)); // the end is being sent
    ztunnel.send(ztunnel::ACK);
    agent.hub.set_workload(workload("b", None));
    ztunnel.hears_nothing();
    assert!(!agent.is_served("b"));
    agent.hub.remove_workload(&"b".into()); // was never sent
    agent.hub.set_workload(workload("a", 0));
    ztunnel.acks(&add("a", 0));
    ztunnel.hears_nothing();
}

#[test]
fn everything_is_told_again_to_one_that_reconnects() {
    let agent = Agent::with_workload();
    let ztunnel = agent.ztunnel_with(&["a"]);
    let connections = |connected, synced| Ok(ZdsEvent::Connections { connected, synced, unknown: 0 });
    assert_eq!(agent.events.recv_timeout(PATIENCE), connections(1, 0));
    assert_eq!(agent.event(), accepted("a", 0));
    assert_eq!(agent.events.recv_timeout(PATIENCE), connections(1, 1));
    drop(ztunnel);
    assert_eq!(agent.events.recv_timeout(PATIENCE), connections(0, 0));
    assert!(!agent.is_served("a"));
    agent.hub.set_workload(workload("b", 1));
    let _ztunnel = agent.ztunnel_with(&["a", "b"]);
    assert_eq!(agent.events.recv_timeout(PATIENCE), connections(1, 0));
    assert_eq!((agent.event(), agent.event()), (accepted("a", 0), accepted("b", 1)));
}

#[test]
fn many_take_no_time() {
    let agent = Agent::open();
    for number in 0..250 {
        agent.hub.set_workload(workload(&format!("{number}"), number % 4));
    }
    let took = (0..5).map(|_| {
        let began = Instant::now();
        let ztunnel = agent.ztunnel();
        let told: BTreeSet<String> = (0..250).map(|_| ztunnel.acks_add().0).collect();
        ztunnel.acks(&Asked::SnapshotSent);
        assert_eq!(told.len(), 250);
        let took = began.elapsed();
        drop(ztunnel);
        eventually(|| agent.hub.list_connections().is_empty());
        took
    });
    assert!(took.min() < Some(Duration::from_millis(700)));
}
