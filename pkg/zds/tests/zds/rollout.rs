//! Several ztunnels at the same time.

use super::*;

#[test]
fn the_newest_is_told_everything_and_older_ones_what_ends() {
    let agent = Agent::with_workload();
    let old = agent.ztunnel_with(&["a"]);
    let new = agent.ztunnel_with(&["a"]);
    agent.hub.set_workload(workload("b", 1));
    new.acks(&add("b", 1));
    agent.hub.remove_workload(&"a".into());
    new.acks(&del("a"));
    old.acks(&del("a"));
    agent.hub.remove_workload(&"b".into()); // the old one never received it
    new.acks(&del("b"));
    old.hears_nothing();
    new.hears_nothing();
}

#[test]
fn a_survivor_gets_what_it_missed() {
    let agent = Agent::with_workload();
    agent.hub.set_workload(workload("m", 0));
    let old = agent.ztunnel_with(&["a", "m"]);
    let new = agent.ztunnel_with(&["a", "m"]);
    agent.hub.set_workload(workload("b", 1));
    new.acks(&add("b", 1));
    agent.hub.set_workload(workload("c", None));
    agent.hub.remove_workload(&"a".into());
    new.acks(&del("a"));
    old.acks(&del("a"));
    drop(new);
    old.acks(&add("b", 1));
    agent.hub.set_workload(workload("d", 2));
    old.acks(&add("d", 2));
    old.hears_nothing();
    eventually(|| agent.hub.list_connections()[0].acknowledged == 3);
}

/// ztunnel is not ready before the end of its snapshot, whichever other one has connected meanwhile.
#[test]
fn one_in_the_middle_of_its_snapshot_gets_all_of_it() {
    let agent = Agent::open();
    for uid in ["a", "b"] {
        agent.hub.set_workload(workload(uid, 0));
    }
    let old = agent.ztunnel();
    assert_eq!(old.asked(), add("a", 0));
    let new = agent.ztunnel_with(&["a", "b"]);
    agent.hub.set_workload(workload("k", None));
    agent.hub.remove_workload(&"a".into());
    new.acks(&del("a"));
    old.send(ztunnel::ACK);
    old.acks(&keep("k"));
    old.acks(&del("a"));
    old.acks(&add("b", 0));
    old.acks(&Asked::SnapshotSent);
    agent.hub.set_workload(workload("c", 1));
    new.acks(&add("c", 1));
    old.hears_nothing();
    drop(new);
    old.acks(&add("c", 1));
}

/// As after a restart of the agent during a rollout: the order of connections is meaningless.
#[test]
fn the_newest_is_known_by_its_pod_and_not_by_its_connection() {
    let agent = Agent::closed();
    agent.hub.set_ztunnels(vec![pod(1, 1), pod(2, 2)]);
    agent.hub.set_workload(workload("a", 0));
    let (new, old) = (agent.ztunnel_at(2), agent.ztunnel_at(1));
    agent.hub.start_snapshots();
    for ztunnel in [&new, &old] {
        ztunnel.acks(&add("a", 0));
        ztunnel.acks(&Asked::SnapshotSent);
    }
    eventually(|| agent.hub.list_connections().iter().all(|one| one.in_sync));
    agent.hub.set_workload(workload("b", 1));
    new.acks(&add("b", 1));
    old.hears_nothing();
    assert_eq!(agent.unknown(), 0);
    let known = agent.hub.list_connections();
    let known: Vec<_> =
        known.iter().map(|one| (one.pod.as_ref().map(|pod| pod.as_str()), one.newest, one.in_sync)).collect();
    assert_eq!(known, [(Some("ztunnel-2"), true, true), (Some("ztunnel-1"), false, true)]);
    // A rollback: the new one is terminating, and still connected.
    agent.hub.set_ztunnels(vec![pod(1, 1), ZtunnelPod { terminating: true, ..pod(2, 2) }]);
    old.acks(&add("b", 1));
    agent.hub.set_workload(workload("c", 1));
    old.acks(&add("c", 1));
    new.hears_nothing();
}

/// The API may show the address of a ztunnel only after it has connected.
#[test]
fn without_their_pods_the_last_to_connect_is_the_newest() {
    let agent = Agent::open();
    let (one, two) = (agent.ztunnel_at(1), agent.ztunnel_at(2));
    for ztunnel in [&one, &two] {
        ztunnel.acks(&Asked::SnapshotSent);
    }
    agent.wait_synced();
    agent.hub.set_workload(workload("a", 0));
    two.acks(&add("a", 0));
    agent.hub.set_ztunnels(vec![pod(1, 3), pod(2, 2)]);
    one.acks(&add("a", 0));
    two.hears_nothing();
}

/// Any root process on the node can connect. It must not receive new workloads in place of the ztunnel that serves the pods.
#[test]
fn who_runs_in_no_ztunnel_pod_takes_nothing_from_one_that_does() {
    let agent = Agent::open();
    agent.hub.set_ztunnels(vec![pod(1, 1)]);
    let ztunnel = agent.ztunnel_at(1);
    ztunnel.acks(&Asked::SnapshotSent);
    let stranger = agent.ztunnel_at(9);
    stranger.acks(&Asked::SnapshotSent);
    agent.wait_synced();
    agent.hub.set_workload(workload("a", 0));
    ztunnel.acks(&add("a", 0));
    stranger.hears_nothing();
    let known = agent.hub.list_connections();
    let known: Vec<_> =
        known.iter().map(|one| (one.pod.as_ref().map(|pod| pod.as_str()), one.newest)).collect();
    assert_eq!(known, [(Some("ztunnel-1"), true), (None, false)]);
    assert_eq!(agent.unknown(), 1);
    // The ztunnel is terminating, and its successor has connected before anything is known about its pod.
    agent.hub.set_ztunnels(vec![ZtunnelPod { terminating: true, ..pod(1, 1) }]);
    stranger.acks(&add("a", 0));
    agent.hub.set_workload(workload("b", 1));
    stranger.acks(&add("b", 1));
}

/// A ztunnel that has just started connects before the API server has its pod's address: it does not count as unknown.
#[test]
fn nobody_is_a_stranger_while_a_ztunnel_pod_may_run_anywhere() {
    let agent = Agent::open();
    let starting = ZtunnelPod { ips: Vec::new(), netns: None, ..pod(2, 2) };
    agent.hub.set_ztunnels(vec![pod(1, 1), starting]);
    let ztunnel = agent.ztunnel_at(9);
    ztunnel.acks(&Asked::SnapshotSent);
    agent.wait_synced();
    assert_eq!(agent.unknown(), 0);
    agent.hub.set_ztunnels(vec![pod(1, 1), pod(2, 2)]);
    assert_eq!(agent.unknown(), 1);
}

/// A pod that a new version cannot serve is still served by the old one.
#[test]
fn what_the_newest_refuses_an_older_one_is_asked_for() {
    let agent = Agent::open();
    let old = agent.ztunnel_with(&[]);
    let new = agent.ztunnel_with(&[]);
    agent.hub.set_workload(workload("a", 0));
    new.refuses(&add("a", 0), "no");
    old.acks(&add("a", 0));
    assert_eq!(agent.event(), accepted("a", 0));
    assert!(agent.is_served("a"));
    // When that ends, no ztunnel serves the pod.
    drop(old);
    assert_eq!(agent.event(), refused("a", 0, "no"));
    assert!(!agent.is_served("a"));
    new.hears_nothing();
}

#[test]
fn what_all_refuse_is_refused() {
    let agent = Agent::open();
    let old = agent.ztunnel_with(&[]);
    let new = agent.ztunnel_with(&[]);
    agent.hub.set_workload(workload("a", 0));
    new.refuses(&add("a", 0), "new: no");
    old.refuses(&add("a", 0), "old: no");
    assert_eq!(agent.event(), refused("a", 0, "new: no"));
}

/// During a rollout the old one relays the traffic of a pod until the new one does.
#[test]
fn a_refusal_is_no_news_while_another_one_serves() {
    let agent = Agent::with_workload();
    let _old = agent.ztunnel_with(&["a"]);
    assert_eq!(agent.event(), accepted("a", 0));
    let new = agent.ztunnel();
    new.refuses(&add("a", 0), "not yet");
    new.acks(&Asked::SnapshotSent);
    eventually(|| agent.hub.list_connections()[1].in_sync);
    assert!(agent.is_served("a"));
    assert!(agent.events.try_iter().all(|event| matches!(event, ZdsEvent::Connections { .. })));
}

#[test]
fn how_long_one_waits_for_its_snapshot_is_known() {
    let agent = Agent::closed();
    let ztunnel = agent.ztunnel();
    assert_eq!(agent.hub.longest_unsynced(), None, "nobody could have sent it one");
    agent.hub.start_snapshots();
    assert_eq!(ztunnel.asked(), Asked::SnapshotSent);
    let (since, _) = agent.hub.longest_unsynced().unwrap();
    drop(ztunnel); // and reconnects
    eventually(|| agent.hub.list_connections().is_empty());
    let ztunnel = agent.ztunnel();
    assert_eq!(agent.hub.longest_unsynced(), Some((since, None)));
    ztunnel.acks(&Asked::SnapshotSent);
    eventually(|| agent.hub.longest_unsynced().is_none());
}

#[test]
fn an_older_one_that_goes_is_not_missed() {
    let agent = Agent::open();
    let old = agent.ztunnel_with(&[]);
    let new = agent.ztunnel_with(&[]);
    drop(old);
    eventually(|| agent.hub.list_connections().len() == 1);
    agent.hub.set_workload(workload("a", 0));
    new.acks(&add("a", 0));
    new.hears_nothing();
}

/// The older one is about to end: it must neither open listeners in the new namespace nor keep the old one.
#[test]
fn an_older_one_lets_go_of_a_namespace_that_is_replaced() {
    let agent = Agent::with_workload();
    let old = agent.ztunnel_with(&["a"]);
    let new = agent.ztunnel_with(&["a"]);
    agent.hub.set_workload(workload("a", 1));
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
    agent.hub.set_workload(workload("a", 0));
    assert_eq!(old.asked(), add("a", 0));
    let new = agent.ztunnel();
    old.send(&ztunnel::nack("no"));
    new.acks(&add("a", 0));
    new.acks(&Asked::SnapshotSent);
    assert_eq!(agent.event(), accepted("a", 0));
    eventually(|| agent.hub.list_connections()[1].in_sync);
    assert!(agent.is_served("a"));
    assert_eq!(
        agent.events.try_iter().filter(|event| !matches!(event, ZdsEvent::Connections { .. })).count(),
        0
    );
}

#[test]
fn one_that_does_not_answer_holds_up_nobody_else() {
    let agent = Agent::open();
    let old = agent.ztunnel_with(&[]);
    agent.hub.set_workload(workload("a", 0));
    assert_eq!(old.asked(), add("a", 0)); // and does not answer
    let new = agent.ztunnel_with(&["a"]);
    agent.hub.set_workload(workload("b", 0));
    new.acks(&add("b", 0));
}

/// A starting pod does not wait for the ztunnel that is not ready.
#[test]
fn while_the_newest_has_no_snapshot_the_older_one_is_told_too() {
    let agent = Agent::open();
    let old = agent.ztunnel_with(&[]);
    let new = agent.ztunnel();
    assert_eq!(new.asked(), Asked::SnapshotSent); // and does not answer
    agent.hub.set_workload(workload("a", 0));
    old.acks(&add("a", 0));
    assert_eq!(agent.event(), accepted("a", 0));
    new.send(ztunnel::ACK);
    new.acks(&add("a", 0));
    agent.wait_synced();
    agent.hub.set_workload(workload("b", 0));
    new.acks(&add("b", 0));
    old.hears_nothing();
}
