//! Changes after the snapshot.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use super::*;

#[test]
fn put_and_remove() {
    let agent = Agent::open();
    let ztunnel = agent.ztunnel_with(&[]);
    agent.hub.set_workload(workload("a", 0));
    ztunnel.acks(&add("a", 0));
    assert_eq!(agent.event(), accepted("a", 0));
    agent.hub.remove_workload(&"a".into());
    agent.hub.remove_workload(&"never-put".into());
    ztunnel.acks(&del("a"));
    ztunnel.hears_nothing();
    assert!(!agent.is_served("a"));
}

#[test]
fn the_same_again_is_not_told() {
    let agent = Agent::open();
    let ztunnel = agent.ztunnel_with(&[]);
    agent.hub.set_workload(workload("a", 0));
    ztunnel.acks(&add("a", 0));
    assert_eq!(agent.event(), accepted("a", 0));
    agent.hub.set_workload(workload("a", 0));
    agent.hub.set_workload(workload("b", 1));
    ztunnel.acks(&add("b", 1));
    assert_eq!(agent.event(), accepted("b", 1));
    ztunnel.hears_nothing();
}

/// One request, which ztunnel handles as a replacement; no removal before it.
#[test]
fn another_netns_or_identity_is_told() {
    let agent = Agent::with_workload();
    let ztunnel = agent.ztunnel_with(&["a"]);
    agent.hub.set_workload(workload("a", 1));
    ztunnel.acks(&add("a", 1));
    agent.hub.set_workload(Workload { service_account: "other".to_owned(), ..workload("a", 1) });
    let Asked::Add { who, .. } = ztunnel.asked() else { panic!("no Add") };
    assert_eq!(who, ["pod-a", "ns", "other"]);
    ztunnel.send(ztunnel::ACK);
    ztunnel.hears_nothing();
}

#[test]
fn only_the_last_of_several_changes_is_told() {
    let agent = Agent::open();
    let ztunnel = agent.ztunnel_with(&[]);
    agent.hub.set_workload(workload("x", 0));
    assert_eq!(ztunnel.asked(), add("x", 0)); // its answer is pending meanwhile
    agent.hub.set_workload(workload("a", 0));
    agent.hub.set_workload(workload("a", 1));
    agent.hub.set_workload(workload("b", 1));
    agent.hub.remove_workload(&"b".into());
    agent.hub.set_workload(workload("x", 2));
    agent.hub.set_workload(workload("x", 3));
    ztunnel.send(ztunnel::ACK);
    ztunnel.acks(&add("a", 1));
    ztunnel.acks(&add("x", 3));
    assert_eq!((agent.event(), agent.event()), (accepted("a", 1), accepted("x", 3)));
    ztunnel.hears_nothing();
}

/// A namespace that is unknown again does not end the service.
#[test]
fn a_netns_that_is_forgotten_changes_nothing() {
    let agent = Agent::with_workload();
    let ztunnel = agent.ztunnel_with(&["a"]);
    agent.hub.set_workload(workload("a", None));
    ztunnel.hears_nothing();
    drop(ztunnel);
    eventually(|| agent.hub.list_connections().is_empty());
    let ztunnel = agent.ztunnel();
    ztunnel.acks(&keep("a"));
    ztunnel.acks(&Asked::SnapshotSent);
}

#[test]
fn removed_and_put_again_is_told_again() {
    let agent = Agent::with_workload();
    let ztunnel = agent.ztunnel_with(&["a"]);
    assert_eq!(agent.event(), accepted("a", 0));
    agent.hub.remove_workload(&"a".into());
    ztunnel.acks(&del("a"));
    agent.hub.set_workload(workload("a", 0));
    ztunnel.acks(&add("a", 0));
    assert_eq!(agent.event(), accepted("a", 0));
}

/// Otherwise the pod's network namespace, with everything in it, would exist as long as the agent.
#[test]
fn a_removed_workload_is_not_held_open() {
    let agent = Agent::open();
    let ztunnel = agent.ztunnel_with(&[]);
    let own = Arc::new(Netns::create().unwrap());
    let inode = own.id().ino;
    let open = || {
        let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
        fds.filter(|fd| fs::metadata(fd.path()).is_ok_and(|file| file.ino() == inode)).count()
    };
    agent.hub.set_workload(Workload { netns: Some(own), ..workload("a", None) });
    assert!(matches!(ztunnel.asked(), Asked::Add { .. }));
    agent.hub.remove_workload(&"a".into());
    eventually(|| open() == 0); // even while the answer is pending
    ztunnel.send(ztunnel::ACK);
    ztunnel.acks(&del("a"));
}
