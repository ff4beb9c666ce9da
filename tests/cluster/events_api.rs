//! Reports of the agent to users of the cluster, with the permissions of the manifests: Events about pods and about its own pod,
//! and the node's condition.

mod condition;
mod flood;
mod pods;

use serde_json::Value;

use crate::debug_state::ask;
use crate::install_api::fixture::ClusterFixture;
use crate::install_manifests::documents::rules_of;

/// Rules of a manifest; `whole` includes those in comments.
fn allowed(file: &str, whole: bool) -> Value {
    let mut rules = rules_of(file, whole);
    for rule in rules.as_array_mut().unwrap() {
        // The tests' objects have other names.
        rule.as_object_mut().unwrap().remove("resourceNames");
    }
    rules
}

/// Events about a pod with this UID.
fn events(fixture: &ClusterFixture, uid: &str, reason: &str) -> Vec<Value> {
    let fields = format!("fieldSelector=reason={reason},involvedObject.uid={uid},involvedObject.kind=Pod");
    let path = format!("{}?{fields}", fixture.path("v1", "events", ""));
    fixture.api.admin().get(&path)["items"].as_array().unwrap().clone()
}

/// Waits until an Event about a pod has this count, and returns it; there is only one.
fn event(fixture: &ClusterFixture, uid: &str, reason: &str, count: u64) -> Value {
    kit::until(format_args!("{reason}, {count} times"), || {
        events(fixture, uid, reason).iter().any(|event| event["count"].as_u64() == Some(count))
    });
    let mut all = events(fixture, uid, reason);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.remove(0)
}

/// Waits until the agent has seen a pod run. It reports joining only for a pod that it has seen outside the mesh.
fn wait_seen(fixture: &ClusterFixture, name: &str) {
    kit::until(format_args!("it has seen {name} run"), || {
        let (status, body) = ask(&fixture.node.run_dir().join("debug.sock"), "/debug/state");
        assert_eq!(status, 200, "{body}");
        let state: Value = serde_json::from_str(&body).unwrap();
        let pods = state["pods"].as_array().unwrap();
        pods.iter().any(|pod| pod["name"] == name && pod["phase"] == "Running")
    });
}

fn message(event: &Value) -> String {
    event["message"].as_str().unwrap().to_owned()
}
