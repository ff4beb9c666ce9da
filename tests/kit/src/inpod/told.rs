//! What an in-pod ztunnel tells of pods and of its agent.

use std::collections::BTreeMap;

use serde_json::Value;

/// How a pod is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadState {
    /// Its listeners are there.
    Up,
    /// They cannot be had. It is tried again every five seconds.
    Refused,
    /// No more: deleted, not in a snapshot, or forgotten with the connection before it was up.
    Gone,
}

/// A pod as ztunnel was told of it last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// How it is served.
    pub state: WorkloadState,
    /// Its name.
    pub name: String,
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Its service account.
    pub service_account: String,
    /// Why it is refused.
    pub error: Option<String>,
}

/// A message of the agent; the UID is the pod's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ZdsMessage {
    /// `AddWorkload`.
    Add(String),
    /// `DelWorkload`.
    Del(String),
    /// `KeepWorkload`.
    Keep(String),
    /// `SnapshotSent`.
    SnapshotSent,
}

/// How many events of this kind are in the lines.
pub(super) fn events(lines: &[Value], event: &str) -> usize {
    lines.iter().filter(|line| line["event"] == event).count()
}

/// Whether the lines leave it ready.
pub(super) fn is_ready(lines: &[Value]) -> bool {
    let (mut connected, mut snapshot) = (false, false);
    for line in lines {
        match line["event"].as_str() {
            Some("connected") => (connected, snapshot) = (true, false),
            Some("disconnected") => connected = false,
            Some("snapshot") => snapshot = true,
            _ => {}
        }
    }
    let waits = |workload: &Workload| workload.state == WorkloadState::Refused;
    connected && snapshot && !workloads(lines).values().any(waits)
}

/// Every pod, as it was told of last.
pub(super) fn workloads(lines: &[Value]) -> BTreeMap<String, Workload> {
    let told = lines.iter().filter(|line| line["event"] == "workload");
    told.map(|line| (text(line, "uid"), workload(line))).collect()
}

fn workload(line: &Value) -> Workload {
    Workload {
        state: match line["state"].as_str() {
            Some("up") => WorkloadState::Up,
            Some("refused") => WorkloadState::Refused,
            Some("gone") => WorkloadState::Gone,
            other => panic!("no such state: {other:?}"),
        },
        name: text(line, "name"),
        namespace: text(line, "namespace"),
        service_account: text(line, "service_account"),
        error: line["error"].as_str().map(str::to_owned),
    }
}

/// Every message of the agent.
pub(super) fn messages(lines: &[Value]) -> Vec<ZdsMessage> {
    lines.iter().filter(|line| line["event"] == "message").map(message).collect()
}

fn message(line: &Value) -> ZdsMessage {
    match line["kind"].as_str() {
        Some("add") => ZdsMessage::Add(text(line, "uid")),
        Some("del") => ZdsMessage::Del(text(line, "uid")),
        Some("keep") => ZdsMessage::Keep(text(line, "uid")),
        Some("snapshot") => ZdsMessage::SnapshotSent,
        other => panic!("no such message: {other:?}"),
    }
}

fn text(line: &Value, key: &str) -> String {
    line[key].as_str().unwrap_or_else(|| panic!("no {key}: {line}")).to_owned()
}
