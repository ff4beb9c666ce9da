//! The node's condition.

use std::fs;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::allowed;
use crate::install_api::fixture::{ClusterFixture, DAEMON_SET};
use crate::install_manifests::documents::SIDECAR;

fn node(fixture: &ClusterFixture) -> String {
    format!("/api/v1/nodes/{}", fixture.name)
}

fn condition(fixture: &ClusterFixture, kind: &str) -> Value {
    let node = fixture.api.admin().get(&node(fixture));
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
}

/// Waits until the condition has this status and reason, and returns it.
fn says(fixture: &ClusterFixture, status: &str, reason: &str) -> Value {
    let is = |shown: &Value| shown["status"] == status && shown["reason"] == reason;
    kit::until(format_args!("{status} because of {reason}"), || {
        Some(condition(fixture, "IstioCNIReady")).filter(is)
    })
}

/// The time in whole seconds, as conditions have it.
fn now() -> String {
    let micros = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
    format!("{}Z", &agent_protocol::rfc3339_micros(i64::try_from(micros).unwrap())[..19])
}

#[test]
fn the_condition_is_as_the_daemon_is_and_outlives_upgrades() {
    let Some(fixture) = ClusterFixture::allowed("condition", &allowed(SIDECAR, true)) else { return };
    let fixture = fixture.with_env("NODE_CONDITION", "true");
    let others = json!([{"type": "DiskPressure", "status": "False", "reason": "KubeletHasNoDiskPressure"}]);
    fixture.api.admin().patch_status(&node(&fixture), &json!({"conditions": others}));
    fixture.create_daemon_set(DAEMON_SET);
    let daemon = fixture.daemon_that_knows(DAEMON_SET);
    let first = says(&fixture, "True", "Ready");
    assert_eq!(first["lastTransitionTime"], first["lastHeartbeatTime"]);

    let network = fs::read(fixture.conflist()).unwrap();
    fs::remove_file(fixture.conflist()).unwrap();
    let broken = says(&fixture, "False", "NotInstalled");
    assert_eq!(broken["message"], "no network configuration in /host/etc/cni/net.d yet", "{broken}");
    fs::write(fixture.conflist(), network).unwrap();
    let ready = says(&fixture, "True", "Ready");

    let (status, log) = daemon.terminate();
    assert!(status.success() && kit::logged(&log, "the plugin stays installed", "") == 1, "{log}");
    assert_eq!(condition(&fixture, "IstioCNIReady"), ready, "an upgrade");
    // The next agent's first update has a newer heartbeat, and no transition. Times are whole seconds.
    let told = ready["lastHeartbeatTime"].as_str().unwrap().to_owned();
    kit::until("another second", || now() > told);
    let next = fixture.daemon_that_knows(DAEMON_SET);
    kit::until("a heartbeat", || {
        condition(&fixture, "IstioCNIReady")["lastHeartbeatTime"] != ready["lastHeartbeatTime"]
    });
    let now = says(&fixture, "True", "Ready");
    assert_eq!(now["lastTransitionTime"], ready["lastTransitionTime"]);

    fixture.api.admin().delete(&fixture.daemon_set());
    let (status, log) = next.terminate();
    assert!(status.success() && kit::logged(&log, "the plugin is removed", "") == 1, "{log}");
    let _ = says(&fixture, "False", "Uninstalled");
    assert_eq!(condition(&fixture, "DiskPressure")["status"], "False", "others stay");
}

#[test]
fn without_the_flag_there_is_none_and_without_the_permission_it_is_said_once() {
    let Some(fixture) = ClusterFixture::allowed("condition-none", &allowed(SIDECAR, false)) else { return };
    fixture.create_daemon_set(DAEMON_SET);
    let daemon = fixture.daemon_that_knows(DAEMON_SET);
    let (_, log) = daemon.terminate();
    assert!(!log.contains("IstioCNIReady") && condition(&fixture, "IstioCNIReady").is_null(), "{log}");
    let fixture = fixture.with_env("NODE_CONDITION", "true");
    let mut daemon = fixture.daemon();
    let words = "cannot set the condition IstioCNIReady of node condition-none: ";
    daemon.wait_for("it is said", |daemon| daemon.log().contains(words));
    let tries = || {
        let of_us = |one: &kit::Request| one.verb == "patch" && one.resource == "nodes";
        fixture.requests().iter().filter(|one| of_us(one)).count()
    };
    kit::until("a second try", || tries() > 1);
    assert_eq!(daemon.log().matches(words).count(), 1, "{}", daemon.log());
    assert!(daemon.is_ready() && condition(&fixture, "IstioCNIReady").is_null());
}
