//! Differences between two consecutive state documents.

use std::collections::BTreeSet;

use pod_status::CaptureState;
use serde_json::{Value, json};

use crate::{
    pod::PodState,
    state::{ChangeRecord, ChangeStatus, StateReport, ZtunnelState},
    text::sanitize_text,
};

/// One change of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateChange {
    /// `node`, `agent`, `pod`, `ztunnel`, `difference`, `history`, or of several nodes `cluster`.
    kind: &'static str,
    /// Pod as `NAMESPACE/NAME`; `None`: the node.
    pod: Option<String>,
    message: String,
}

impl StateChange {
    /// Returns a change of the node as a whole.
    pub fn for_node(kind: &'static str, message: String) -> StateChange {
        StateChange { kind, pod: None, message }
    }

    /// Whether the change is one of a pod of this namespace, or of whether its pods are observed at all.
    pub fn concerns_namespace(&self, namespace: &str) -> bool {
        match self.pod.as_deref().and_then(|pod| pod.split_once('/')) {
            Some((of_pod, _)) => of_pod == namespace,
            None => ["agent", "cluster"].contains(&self.kind),
        }
    }

    fn for_pod(pod: &PodState, message: String) -> StateChange {
        StateChange { kind: "pod", pod: Some(pod.title()), message }
    }

    /// Formats the change for people.
    pub fn to_line(&self, time: &str) -> String {
        let pod = self.pod.as_ref().map_or_else(String::new, |pod| format!("{pod}: "));
        sanitize_text(&format!("{time}  {:<10}  {pod}{}", self.kind, self.message)) + "\n"
    }

    /// Formats the change for scripts.
    pub fn to_json(&self, time: &str) -> Value {
        json!({ "observedAt": time, "kind": self.kind, "pod": self.pod, "message": self.message })
    }
}

/// State of watching a node.
#[derive(Debug, Default)]
pub struct NodeWatch {
    last: Option<StateReport>,
    /// Reason why the agent does not answer, as last reported.
    silence: Option<String>,
}

impl NodeWatch {
    /// Whether the agent has answered so far.
    pub fn has_answered(&self) -> bool {
        self.last.is_some()
    }

    /// Whether the agent did not answer the last time.
    pub fn is_silent(&self) -> bool {
        self.silence.is_some()
    }

    /// Returns the changes since the previous answer; a reason why the agent does not answer is reported once.
    pub fn record_answer(&mut self, answer: Result<StateReport, String>) -> Vec<StateChange> {
        let for_agent = |message| StateChange::for_node("agent", message);
        match answer {
            Ok(state) => {
                let again = self.silence.take().map(|_| for_agent("the agent answers again".to_owned()));
                let changes = state_changes(self.last.as_ref(), &state);
                self.last = Some(state);
                again.into_iter().chain(changes).collect()
            }
            Err(why) if self.silence.as_ref() == Some(&why) => Vec::new(),
            Err(why) => {
                let change = for_agent(format!("the agent does not answer: {why}"));
                self.silence = Some(why);
                vec![change]
            }
        }
    }
}

/// Returns the changes from one document to the next. Without a previous document, these are the facts needed to understand later
/// changes: the node, and its faults.
fn state_changes(before: Option<&StateReport>, now: &StateReport) -> Vec<StateChange> {
    let Some(before) = before else { return initial_changes(now) };
    let kinds = [node_changes, pod_changes, ztunnel_changes, difference_changes, history_changes];
    kinds.iter().flat_map(|changes| changes(before, now)).collect()
}

fn initial_changes(now: &StateReport) -> Vec<StateChange> {
    let count = now.pods.iter().filter(|pod| pod.capture == CaptureState::Captured).count();
    let message = format!("watching {}: {} pods, {count} captured", now.node.name, now.pods.len());
    let problem = now.node.problem.iter().map(|problem| format!("problem: {problem}"));
    let of_node = std::iter::once(message).chain(problem);
    let wrong = now.pods.iter().filter(|pod| pod.capture.is_wrong());
    let differences = now.differences().into_iter().map(|what| format!("+ {what}"));
    of_node
        .map(|message| StateChange::for_node("node", message))
        .chain(wrong.map(|pod| StateChange::for_pod(pod, describe_pod(pod))))
        .chain(differences.map(|message| StateChange::for_node("difference", message)))
        .collect()
}

fn node_changes(before: &StateReport, now: &StateReport) -> Vec<StateChange> {
    let mut all = Vec::new();
    if before.node.agent_started_at != now.node.agent_started_at {
        let at = now.node.agent_started_at.as_deref().unwrap_or("an unknown time");
        all.push(StateChange::for_node("agent", format!("the agent was started at {at}")));
    }
    if before.node.problem != now.node.problem {
        all.push(StateChange::for_node("node", describe_problem(now.node.problem.as_deref())));
    }
    all
}

fn describe_problem(problem: Option<&str>) -> String {
    problem.map_or_else(|| "the problem is solved".to_owned(), |new| format!("problem: {new}"))
}

fn describe_pod(pod: &PodState) -> String {
    let mode = pod.mode.map_or_else(String::new, |mode| format!(" ({mode})"));
    format!("{}{mode}: {}", pod.capture, pod.message)
}

fn pod_changes(before: &StateReport, now: &StateReport) -> Vec<StateChange> {
    let mut all = Vec::new();
    for pod in &now.pods {
        let message = match before.pod(&pod.namespace, &pod.name) {
            None => format!("new, {}", describe_pod(pod)),
            Some(old) if old.uid != pod.uid => format!("another one of that name, {}", describe_pod(pod)),
            Some(old) if (old.capture, old.mode) != (pod.capture, pod.mode) => {
                format!("{} -> {}", old.capture, describe_pod(pod))
            }
            Some(old) if old.reason != pod.reason => format!("still {}", describe_pod(pod)),
            Some(old) if old.problem != pod.problem => describe_problem(pod.problem.as_deref()),
            Some(_) => continue,
        };
        all.push(StateChange::for_pod(pod, message));
    }
    let gone = before.pods.iter().filter(|pod| now.pod(&pod.namespace, &pod.name).is_none());
    all.extend(gone.map(|pod| StateChange::for_pod(pod, format!("gone, was {}", pod.capture))));
    all
}

fn ztunnel_changes(before: &StateReport, now: &StateReport) -> Vec<StateChange> {
    let describe_all = |state: &StateReport| state.ztunnels.iter().map(describe_ztunnel).collect();
    added_and_gone("ztunnel", &describe_all(before), &describe_all(now))
}

fn describe_ztunnel(ztunnel: &ZtunnelState) -> String {
    let on = |holds, word: &str| if holds { format!(", {word}") } else { String::new() };
    let ready = if ztunnel.ready { "ready" } else { "not ready" };
    let connected = on(ztunnel.connected == Some(true), "connected");
    format!("{} {ready}{}{connected}", ztunnel.name, on(ztunnel.active, "active"))
}

fn difference_changes(before: &StateReport, now: &StateReport) -> Vec<StateChange> {
    let set = |state: &StateReport| state.differences().into_iter().collect();
    added_and_gone("difference", &set(before), &set(now))
}

fn added_and_gone(kind: &'static str, before: &BTreeSet<String>, now: &BTreeSet<String>) -> Vec<StateChange> {
    let gone = before.difference(now).map(|message| StateChange::for_node(kind, format!("- {message}")));
    gone.chain(now.difference(before).map(|message| StateChange::for_node(kind, format!("+ {message}"))))
        .collect()
}

/// Returns new history entries, oldest first. A history that was restarted has nothing in common with the previous one.
fn history_changes(before: &StateReport, now: &StateReport) -> Vec<StateChange> {
    let mut new: Vec<&ChangeRecord> =
        now.history.iter().filter(|change| !before.history.contains(change)).collect();
    new.reverse();
    new.into_iter().map(convert_change).collect()
}

fn convert_change(change: &ChangeRecord) -> StateChange {
    let end = match (&change.error, change.outcome) {
        (Some(error), _) => format!("failed: {error}"),
        (None, ChangeStatus::Failed) => "failed".to_owned(),
        (None, ChangeStatus::Succeeded) => format!("{:.1} ms", change.duration_ms),
    };
    let message = format!("{} [{}] ({end})", change.action, change.cause);
    StateChange { kind: "history", pod: change.pod.clone(), message }
}

#[cfg(test)]
mod tests;
