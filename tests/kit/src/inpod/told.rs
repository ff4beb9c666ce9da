//! Reports of an in-pod ztunnel about pods and its agent.

use std::collections::BTreeMap;

use serde_json::Value;

/// State of a pod at ztunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkloadState {
    /// All listeners are open.
    Up,
    /// Listeners cannot be opened. The stub retries every five seconds.
    Refused,
    /// No longer served: deleted, absent from a snapshot, or dropped with the connection before it was up.
    Gone,
}

/// Last known state of a pod at ztunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// State of the pod.
    pub state: WorkloadState,
    /// Pod name.
    pub name: String,
    /// Kubernetes namespace.
    pub namespace: String,
    /// Service account.
    pub service_account: String,
    /// Reason of a refusal.
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

/// Number of events of this kind in the lines.
pub(super) fn events(lines: &[Value], event: &str) -> usize {
    lines.iter().filter(|line| line["event"] == event).count()
}

/// Whether ztunnel is ready after these lines.
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

/// Last state of every pod in the lines.
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

/// Messages of the agent in the lines.
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
