//! The node's condition.

use std::fs;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::allowed;
use crate::install_api::scene::{DAEMON_SET, Scene, eventually};
use crate::install_manifests::documents::SIDECAR;

fn node(scene: &Scene) -> String {
    format!("/api/v1/nodes/{}", scene.name)
}

fn condition(scene: &Scene, kind: &str) -> Value {
    let node = scene.api.admin().get(&node(scene));
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
}

/// Waits until it says this, and returns it.
fn says(scene: &Scene, status: &str, reason: &str) -> Value {
    let is = |shown: &Value| shown["status"] == status && shown["reason"] == reason;
    eventually(&format!("{status} because of {reason}"), || is(&condition(scene, "IstioCNIReady")));
    condition(scene, "IstioCNIReady")
}

/// In whole seconds, as conditions have it.
fn now() -> String {
    let micros = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
    format!("{}Z", &wire::rfc3339_micros(i64::try_from(micros).unwrap())[..19])
}

#[test]
fn the_condition_is_as_the_daemon_is_and_outlives_upgrades() {
    let Some(scene) = Scene::allowed("condition", &allowed(SIDECAR, true)) else { return };
    let scene = scene.with_env("NODE_CONDITION", "true");
    let others = json!([{"type": "DiskPressure", "status": "False", "reason": "KubeletHasNoDiskPressure"}]);
    scene.api.admin().patch_status(&node(&scene), &json!({"conditions": others}));
    scene.create_daemon_set(DAEMON_SET);
    let daemon = scene.daemon_that_knows(DAEMON_SET);
    let first = says(&scene, "True", "Ready");
    assert_eq!(first["lastTransitionTime"], first["lastHeartbeatTime"]);

    let network = fs::read(scene.conflist()).unwrap();
    fs::remove_file(scene.conflist()).unwrap();
    let broken = says(&scene, "False", "NotInstalled");
    assert!(broken["message"].as_str().unwrap().contains("no network configuration"), "{broken}");
    fs::write(scene.conflist(), network).unwrap();
    let ready = says(&scene, "True", "Ready");

    let (status, log) = daemon.terminate();
    assert!(status.success() && log.contains("the plugin stays installed"), "{log}");
    assert_eq!(condition(&scene, "IstioCNIReady"), ready, "an upgrade");
    // The next one's first word has a younger heartbeat, and no transition. Times are whole seconds.
    let told = ready["lastHeartbeatTime"].as_str().unwrap().to_owned();
    eventually("another second", || now() > told);
    let next = scene.daemon_that_knows(DAEMON_SET);
    eventually("a heartbeat", || {
        condition(&scene, "IstioCNIReady")["lastHeartbeatTime"] != ready["lastHeartbeatTime"]
    });
    let now = says(&scene, "True", "Ready");
    assert_eq!(now["lastTransitionTime"], ready["lastTransitionTime"]);

    scene.api.admin().delete(&scene.daemon_set());
    let (status, log) = next.terminate();
    assert!(status.success() && log.contains("the plugin is removed"), "{log}");
    let _ = says(&scene, "False", "Uninstalled");
    assert_eq!(condition(&scene, "DiskPressure")["status"], "False", "others stay");
}

#[test]
fn without_the_flag_there_is_none_and_without_the_permission_it_is_said_once() {
    let Some(scene) = Scene::allowed("condition-none", &allowed(SIDECAR, false)) else { return };
    scene.create_daemon_set(DAEMON_SET);
    let daemon = scene.daemon_that_knows(DAEMON_SET);
    let (_, log) = daemon.terminate();
    assert!(!log.contains("IstioCNIReady") && condition(&scene, "IstioCNIReady").is_null(), "{log}");
    let scene = scene.with_env("NODE_CONDITION", "true");
    let mut daemon = scene.daemon();
    let words = "cannot set the condition IstioCNIReady of node condition-none: ";
    daemon.wait_for("it is said", |daemon| daemon.log().contains(words));
    let tries = || {
        let of_us = |one: &kit::Request| one.verb == "patch" && one.resource == "nodes";
        scene.requests().iter().filter(|one| of_us(one)).count()
    };
    eventually("a second try", || tries() > 1);
    assert_eq!(daemon.log().matches(words).count(), 1, "{}", daemon.log());
    assert!(daemon.is_ready() && condition(&scene, "IstioCNIReady").is_null());
}
