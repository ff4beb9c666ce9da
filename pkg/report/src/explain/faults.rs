//! Faults of the node, independent of the pod in question.

use pod_status::RedirectionMode;

use super::{
    finding::Finding,
    known::{repair_advice, where_to_ask},
};
use crate::{
    pod::PodState,
    state::{InstalledFile, Observer, PartHealth, StatePart, StateReport},
    text::{format_count, more_clause, sanitize_text, to_clause},
};

/// A fault of the node.
pub(crate) struct NodeFault {
    pub(super) finding: Finding,
    /// Does not affect pods with a sidecar.
    ambient_only: bool,
}

impl NodeFault {
    pub(super) fn concerns_pod(&self, pod: &PodState) -> bool {
        !(self.ambient_only && pod.mode == Some(RedirectionMode::Sidecar))
    }
}

/// Returns the faults, the worst first.
pub(crate) fn node_faults(state: &StateReport) -> Vec<NodeFault> {
    let every = |finding| NodeFault { finding, ambient_only: false };
    let ambient = |finding| NodeFault { finding, ambient_only: true };
    let mut faults: Vec<NodeFault> = agent_down(state).map(every).into_iter().collect();
    faults.extend(not_synced(state).map(ambient));
    faults.extend(watch_failed(state).map(ambient));
    faults.extend(node_degraded(state).map(ambient));
    faults
        .extend(state.installation.iter().filter(|file| !file.correct).map(|file| every(file_finding(file))));
    faults.extend(node_drift(state).map(ambient));
    let is_news = |part: &&PartHealth| !part.healthy && state.node.problem.as_ref() != Some(&part.message);
    faults.extend(state.health.iter().filter(is_news).filter_map(unhealthy_component).map(every));
    faults.extend(foreign_objects(state).map(ambient));
    faults
}

pub(super) fn agent_down(state: &StateReport) -> Option<Finding> {
    if let Some(unobserved) =
        state.observation.unobserved.iter().find(|unobserved| unobserved.part == StatePart::Agent)
    {
        let message =
            format!("The agent of this node could not be queried: {}.", to_clause(&unobserved.message));
        return Some(Finding::new_unhealthy("agent-down", message, where_to_ask(state)));
    }
    let message = "The agent does not run on this node: pods that are captured stay so, nothing is repaired, and new pods may \
                not start.";
    let advice = [
        "Find the agent's pod of this node: kubectl get pods -A -o wide -l k8s-app=istio-cni-node.",
        "Find out why it ended: kubectl logs --previous, or the container runtime's log on the node.",
    ];
    (state.observation.observer == Observer::Command)
        .then(|| Finding::new_unhealthy("agent-down", message, &advice))
}

fn not_synced(state: &StateReport) -> Option<Finding> {
    if state.observation.observer == Observer::Command || state.node.synced || !state.node.ambient_enabled {
        return None;
    }
    let message = "The agent has not been able to read the list of pods and namespaces since it started: which pods belong to \
                the mesh is not known, so nothing is released and only new pods are added.";
    let advice = [
        "Check whether the API server can be reached from this node, and whether the agent's service account may list pods and namespaces.",
        "The agent's log names the error (scope kube or ambient).",
    ];
    Some(Finding::new_unhealthy("not-synced", message, &advice))
}

/// Returns a finding if changes of pods or namespaces are not received.
pub(super) fn watch_failed(state: &StateReport) -> Option<Finding> {
    let mut unobserved = state.observation.unobserved.iter();
    let found = unobserved.find(|unobserved| unobserved.part == StatePart::ApiObjects)?;
    let message = format!(
        "The agent may not know the node's pods and their namespaces as they are: {}.",
        to_clause(&found.message)
    );
    let advice = [
        "Check whether the API server can be reached from this node, and whether the agent's service account may watch pods and namespaces.",
    ];
    Some(Finding::new_unknown("watch-failed", message, &advice))
}

fn node_degraded(state: &StateReport) -> Option<Finding> {
    let problem = state.node.problem.as_ref()?;
    let message = format!("The node is degraded: {}.", to_clause(problem));
    Some(Finding::new_unhealthy(
        "node-degraded",
        message,
        &["Fix the problem named above; the agent retries."],
    ))
}

/// Returns a finding about our objects that differ from the desired state; files have findings of their own.
fn node_drift(state: &StateReport) -> Option<Finding> {
    let all: Vec<String> = state
        .network
        .differences()
        .map(|(kind, found)| format!("{kind}, {}", sanitize_text(&found.to_string())))
        .collect();
    let first = all.first()?;
    let more = more_clause(all.len() - 1);
    let message = format!(
        "The node's network differs from the desired state in {} ({first}{more}).",
        format_count(all.len(), "place")
    );
    Some(Finding::new_unhealthy("node-drift", message, repair_advice(state)))
}

fn foreign_objects(state: &StateReport) -> Option<Finding> {
    let mut conflicts = state.network.conflicts();
    let first = conflicts.next()?;
    let more = match conflicts.count() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let message = format!("Another program is in conflict with the agent: {}{more}.", to_clause(first));
    let advice = [
        "Remove what the message names, which the agent leaves alone, or change the settings ambient-tables or ambient-rule-priority.",
    ];
    Some(Finding::new_unhealthy("foreign", message, &advice))
}

fn unhealthy_component(part: &PartHealth) -> Option<Finding> {
    let component = sanitize_text(&part.component);
    let message = format!("The {component} is unhealthy: {}.", to_clause(&part.message));
    let (code, advice) = (format!("{component}-unhealthy"), "Read the agent's log of the last minutes.");
    (!part.message.is_empty()).then(|| Finding::new_unhealthy(&code, message, &[advice]))
}

/// Returns the consequence of a file that differs from the desired state, with advice.
fn file_finding(file: &InstalledFile) -> Finding {
    let (code, then, advice): (&str, &str, &[&str]) = match file.kind.as_str() {
        "plugin" => (
            "plugin",
            "The plugin's binary is missing or damaged, so new pods will not start",
            &[
                "Check whether the agent may write to the node's directory of plugins, and whether its disk is full.",
            ],
        ),
        "entry" => (
            "entry",
            "The container runtime's network configuration lacks our entry, or has it changed, so new pods will start \
             outside of the mesh, or not at all",
            &[
                "Find out which other program writes to the node's directory of network configurations.",
                "Pods that started meanwhile have to be restarted if they have a sidecar.",
            ],
        ),
        "kubeconfig" => (
            "kubeconfig",
            "The plugin's credential for the API server is missing or stale, so new pods may not start while the agent \
             does not answer",
            &["Check whether the agent's service account token is there and may be written to the node."],
        ),
        "shared-config" => (
            "shared-config",
            "The file that agent and plugin share is missing or damaged, so the plugin cannot enrol pods without the agent",
            &["Check whether the agent may write to its directory."],
        ),
        _ => ("installation", "A file of ours on the node is missing or damaged", &[]),
    };
    Finding::new_unhealthy(
        code,
        format!("{then} ({}: {}).", sanitize_text(&file.path), to_clause(&file.message)),
        advice,
    )
}
