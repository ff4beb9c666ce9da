//! Changes of a node's taints.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::fixture::{Rights, TaintFixture};

#[test]
fn a_node_has_the_taint_unless_a_pod_on_it_is_ready() {
    let Some(fixture) = TaintFixture::start("taint-life", Rights::Manifest) else { return };
    fixture.create_ready_node("a", &json!([]));
    fixture.create_ready_node("b", &json!([{"key": "NodeReadiness", "effect": "NoSchedule"}]));
    fixture.create_ready_pod("of-b", "b");
    let daemon = fixture.controller();
    fixture.wait_until("a", true);
    fixture.wait_until("b", false);
    fixture.create_pod("of-a", "a");
    fixture.set_pod_ready("of-a", true);
    fixture.wait_until("a", false);
    fixture.set_pod_ready("of-a", false);
    fixture.wait_until("a", true);
    fixture.set_pod_ready("of-a", true);
    fixture.wait_until("a", false);
    fixture.api.admin().delete(&fixture.pod_path("of-a"));
    fixture.wait_until("a", true);
    // A new node, as its kubelet registers it.
    fixture.create_node("c", &json!([{"key": "NodeReadiness", "effect": "NoSchedule"}]));
    fixture.create_ready_pod("of-c", "c");
    fixture.set_node_ready("c", true);
    fixture.wait_until("c", false);
    // Its kubelet is down.
    fixture.set_node_ready("c", false);
    fixture.wait_until("c", true);
    fixture.set_node_ready("c", true);
    fixture.wait_until("c", false);
    fixture.api.admin().delete(&fixture.node_path("c"));
    assert_eq!(daemon.logged("taint added", &fixture.node_name("c")), 1);
    fixture.assert_allowed();
    assert!(daemon.terminate().0.success());
}

/// A pod that is being deleted may stop at any moment, and another may replace it on the node before its object is removed.
#[test]
fn a_pod_on_its_way_out_does_not_count_and_its_successor_does() {
    let Some(fixture) = TaintFixture::start("taint-rollout", Rights::Manifest) else { return };
    fixture.create_ready_node("a", &json!([]));
    fixture.create_ready_pod("old", "a");
    let daemon = fixture.controller();
    daemon_knows_all(&fixture, &daemon);
    assert!(!fixture.is_tainted("a"));
    // With its grace period, which its kubelet ends.
    fixture.api.admin().request("DELETE", &fixture.pod_path("old"), None);
    fixture.wait_until("a", true);
    fixture.create_ready_pod("new", "a");
    fixture.wait_until("a", false);
    fixture.api.admin().delete(&fixture.pod_path("old"));
    fixture.create_ready_node("b", &json!([]));
    fixture.wait_until("b", true); // so the deletion was processed, too
    assert!(!fixture.is_tainted("a"));
}

fn daemon_knows_all(fixture: &TaintFixture, daemon: &kit::Daemon) {
    kit::until(format_args!("{} knows all nodes", fixture.name), || {
        daemon.logged("all nodes are known", "nodes") > 0
    });
}

#[test]
fn what_does_not_matter_costs_no_request() {
    let Some(fixture) = TaintFixture::start("taint-quiet", Rights::Manifest) else { return };
    for number in 0..20 {
        fixture.create_ready_node(&format!("n{number}"), &json!([]));
        fixture.create_ready_pod(&format!("p{number}"), &format!("n{number}"));
    }
    let daemon = fixture.controller();
    daemon_knows_all(&fixture, &daemon);
    for number in 0..20 {
        let path = fixture.node_path(&format!("n{number}"));
        fixture.api.admin().patch(&path, &json!({"metadata": {"labels": {"news": "yes"}}}));
        fixture.api.admin().patch_status(&path, &json!({"capacity": {"pods": "110"}}));
        let annotated = json!({"metadata": {"annotations": {"news": "yes"}}});
        fixture.api.admin().patch(&fixture.pod_path(&format!("p{number}")), &annotated);
    }
    fixture.create_ready_node("canary", &json!([]));
    fixture.wait_until("canary", true);
    let changes = fixture.requests("nodes");
    let changes: Vec<_> =
        changes.iter().filter(|one| !["list", "watch"].contains(&one.verb.as_str())).collect();
    let canary = format!("/api/v1/nodes/{}", fixture.node_name("canary"));
    assert!(changes.iter().all(|one| one.uri == canary), "{changes:?}");
    let added = || daemon.logged("taint added", &fixture.node_name("canary"));
    kit::until("it is logged", || added() > 0);
    assert_eq!(added(), 1, "{}", daemon.log());
}

/// Adds a taint to a node, as another controller does: based on the version that it read, with retries.
fn add_taint(fixture: &TaintFixture, node: &str, key: &str) {
    let (admin, path) = (fixture.api.admin(), fixture.node_path(node));
    kit::until("the other's taint", || {
        let mut shown = admin.get(&path);
        let mut taints = shown["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.push(json!({"key": key, "effect": "NoExecute"}));
        shown["spec"]["taints"] = Value::Array(taints);
        admin.request("PUT", &path, Some(&shown)).status == 200
    });
}

#[test]
fn no_taint_of_another_component_is_lost_however_many_write() {
    let Some(fixture) = TaintFixture::start("taint-together", Rights::Manifest) else { return };
    // With the same key but another effect: not ours.
    fixture.create_ready_node("a", &json!([{"key": "NodeReadiness", "effect": "NoExecute"}]));
    fixture.create_pod("p", "a");
    let daemon = fixture.controller();
    fixture.wait_until("a", true);
    let is_done = AtomicBool::new(false);
    let written: Vec<String> = thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let (fixture, is_done) = (&fixture, &is_done);
                scope.spawn(move || {
                    let mut keys = Vec::new();
                    // A minimum number, however busy the machine is.
                    while !is_done.load(Ordering::Relaxed) || keys.len() < 7 {
                        keys.push(format!("other-{writer}-{}", keys.len()));
                        add_taint(fixture, "a", keys.last().unwrap());
                    }
                    keys
                })
            })
            .collect();
        // Ends the writers even if a wait fails.
        let flips = scope.spawn(|| {
            (0..4).for_each(|flip| {
                fixture.set_pod_ready("p", flip % 2 == 0);
                fixture.wait_until("a", flip % 2 == 1);
            });
        });
        let flipped = flips.join();
        is_done.store(true, Ordering::Relaxed);
        flipped.unwrap();
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    let taints = fixture.taints("a");
    for key in written.iter().map(|key| format!("{key}:NoExecute")) {
        assert_eq!(taints.iter().filter(|taint| **taint == key).count(), 1, "{key}: {taints:?}");
    }
    assert!(taints.iter().any(|taint| taint == "NodeReadiness:NoExecute"), "{taints:?}");
    let news = daemon.has_logged("cannot change the taint; trying again", &[]);
    assert!(!news, "a conflict is no news: {}", daemon.log());
}

/// With as many nodes as are changed concurrently, and more.
#[test]
fn all_nodes_are_evaluated_when_a_replica_begins_to_lead() {
    let Some(fixture) = TaintFixture::start("taint-many", Rights::Istio) else { return };
    for number in 0..30 {
        fixture.create_ready_node(&format!("n{number}"), &json!([]));
    }
    fixture.create_ready_pod("p", "n7");
    let daemon = fixture.controller();
    for number in (0..30).filter(|number| *number != 7) {
        fixture.wait_until(&format!("n{number}"), true);
    }
    assert!(!fixture.is_tainted("n7"));
    let added = || daemon.logged("taint added", "no ready pod");
    kit::until("all are logged", || added() >= 29);
    assert_eq!(added(), 29, "{}", daemon.log());
    fixture.assert_allowed();
}
