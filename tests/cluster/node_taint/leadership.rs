//! Two replicas.

use std::time::{Duration, Instant};

use kit::Daemon;
use serde_json::json;

use super::fixture::{Rights, TaintFixture};

fn leads(daemon: &Daemon) -> bool {
    daemon.logged("this replica leads", "") > 0
}

/// Starts two replicas: the first leads, and the second has seen it lead.
fn two(fixture: &TaintFixture) -> (Daemon, Daemon) {
    let first = fixture.controller();
    kit::until("the first leads", || leads(&first));
    let second = fixture.controller();
    kit::until("the second waits", || second.logged("another replica leads", "leader=") > 0);
    assert!(!leads(&second), "{}", second.log());
    (first, second)
}

#[test]
fn a_leader_that_ends_hands_over_at_once() {
    let Some(fixture) = TaintFixture::start("taint-handover", Rights::Manifest) else { return };
    fixture.create_ready_node("a", &json!([]));
    let (first, second) = two(&fixture);
    fixture.wait_until("a", true);
    let lease = fixture.lease();
    assert_eq!((&lease["leaseDurationSeconds"], &lease["leaseTransitions"]), (&json!(60), &json!(0)));
    assert!(first.terminate().0.success());
    // Long before the Lease would expire.
    kit::until("the second leads", || leads(&second));
    fixture.create_ready_pod("p", "a");
    fixture.wait_until("a", false);
    assert_eq!(fixture.lease()["leaseTransitions"], 1);
    fixture.assert_allowed();
    assert!(second.terminate().0.success());
    assert_eq!(fixture.lease()["holderIdentity"], "");
}

/// The second replica is not notified; it must observe for the duration of the Lease that it is not renewed.
#[test]
fn a_leader_that_is_killed_is_succeeded_when_its_lease_ends_and_not_before() {
    let Some(fixture) = TaintFixture::start("taint-killed", Rights::Istio) else { return };
    fixture.create_ready_node("a", &json!([]));
    let (first, mut second) = two(&fixture);
    fixture.wait_until("a", true);
    // Before the last renewal.
    let began = Instant::now();
    let before = fixture.lease();
    kit::until("the first renews its Lease", || fixture.lease()["renewTime"] != before["renewTime"]);
    first.kill();
    fixture.create_ready_pod("p", "a");
    let limit = Duration::from_secs(90);
    let described = std::fmt::from_fn(|f| write!(f, "the second leads: {}", second.log()));
    kit::until_within(limit, described, || leads(&second));
    assert!(began.elapsed() >= Duration::from_secs(60), "{:?}", began.elapsed());
    second.wait_for("it does the work", |_| !fixture.is_tainted("a"));
    fixture.assert_allowed();
}

/// As by a person who edits the Lease.
#[test]
fn a_replica_that_loses_the_lease_stops_and_takes_it_again_when_it_is_free() {
    let Some(fixture) = TaintFixture::start("taint-lost", Rights::Manifest) else { return };
    fixture.create_ready_node("a", &json!([]));
    let mut daemon = fixture.controller();
    fixture.wait_until("a", true);
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/taint-lost-lock";
    fixture.api.admin().patch(path, &json!({"spec": {"holderIdentity": "another"}}));
    daemon.wait_for("it stops", |daemon| {
        daemon.logged("another replica has taken the Lease; this one stops", "another") == 1
    });
    fixture.create_ready_pod("p", "a");
    fixture.api.admin().patch(path, &json!({"spec": {"holderIdentity": ""}}));
    daemon.wait_for("it leads again", |daemon| daemon.log().matches("this replica leads").count() == 2);
    fixture.wait_until("a", false);
}
