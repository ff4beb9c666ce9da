//! `millrace`, the command for the whole cluster, with a real kubelet's port-forwarding.

use std::process::Command;

use serde_json::Value;

use crate::fixture::Fixture;
use crate::kinds::Expected;
use crate::scenarios::Pods;

/// Runs `millrace` as an administrator; returns exit status and output.
fn millrace(fixture: &Fixture, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new("dist/millrace");
    command.args(arguments).arg("--kubeconfig").arg(fixture.control.kubeconfig());
    let output = command.output().expect("hack/build has built dist/millrace");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text + &String::from_utf8_lossy(&output.stderr))
}

/// Checks that it reaches the agent, finds no fault, and knows the state of each pod.
pub(crate) fn check(fixture: &mut Fixture, pods: &Pods) {
    let (status, text) = millrace(fixture, &["check"]);
    let reads = text.lines().any(|line| line.contains('√')) && !text.contains('×');
    if !fixture.checks.check(reads && status == Some(0), format!("millrace check: exit status {status:?}")) {
        fixture.checks.note(&text);
    }
    let (status, text) = millrace(fixture, &["list", "-o", "json"]);
    let list: Value = serde_json::from_str(&text).unwrap_or_default();
    let rows = list["pods"].as_array().map_or(0, Vec::len);
    let is_whole = status == Some(0) && list["partial"] == false && rows >= pods.len();
    fixture.checks.check(is_whole, format!("millrace list: {rows} pods, exit status {status:?}"));
    for via in ["port-forward", "exec"] {
        for (pod, expected) in pods.iter().filter(|(_, expected)| *expected != Expected::Direct) {
            let meta = &pod["metadata"];
            let name = format!(
                "{}/{}",
                meta["namespace"].as_str().unwrap_or_default(),
                meta["name"].as_str().unwrap_or_default()
            );
            let (status, text) = millrace(fixture, &["explain", &name, "--via", via]);
            let is_told = status == Some(0) && text.starts_with(&format!("{name}: captured"));
            let claim = format!("millrace explain {name} --via {via}: captured, as {expected:?} requires");
            if !fixture.checks.check(is_told, claim) {
                fixture.checks.note(text);
            }
        }
    }
    for (pod, _) in pods.iter().filter(|(_, expected)| *expected == Expected::Ztunnel) {
        prove(fixture, &pod["metadata"]);
    }
}

/// Checks proofs through the API server, with real packets. With node-level capture, pods cannot be tested.
fn prove(fixture: &mut Fixture, pod: &Value) {
    let text = |key: &str| pod[key].as_str().unwrap_or_default();
    let name = format!("{}/{}", text("namespace"), text("name"));
    let (status, text) = millrace(fixture, &["prove", &name]);
    let is_proven = status == Some(0) && text.starts_with(&format!("{name}: proven"));
    let is_of_node = status == Some(2) && text.contains("the node redirects its traffic");
    let claim = format!("millrace prove {name}: proven, or redirected by the node");
    if !fixture.checks.check(is_proven || is_of_node, claim) {
        fixture.checks.note(text);
    }
}
