//! Pods: whether each is in its desired state.

use std::collections::BTreeSet;

use report::{CaptureState, PodState, PodVerdict, StateReport, explain_pod};

use super::lookup::Lookup;
use crate::{
    finding::{Code, Finding, ObjectName},
    objects::Pod,
};

pub(super) fn findings(lookup: &Lookup<'_>) -> Vec<Finding> {
    let reported = lookup.cluster.state_reports().flat_map(|(node, state)| {
        state.pods.iter().filter_map(move |pod| reported_finding(node, state, pod))
    });
    reported.chain(refused_exceptions(lookup)).chain(unreported_findings(lookup)).collect()
}

fn refused_exceptions<'a>(lookup: &'a Lookup<'_>) -> impl Iterator<Item = Finding> + 'a {
    let of_pod = |node: &str, pod: &PodState| {
        let message = pod.refused_exceptions.join("; ");
        let object = ObjectName::in_namespace("Pod", &pod.namespace, &pod.name);
        (!message.is_empty()).then(|| Finding::new(Code::ExceptionRefused, object, message).on_node(node))
    };
    let states = lookup.cluster.state_reports();
    states.flat_map(move |(node, state)| state.pods.iter().filter_map(move |pod| of_pod(node, pod)))
}

/// Returns the finding about a pod reported by its node's agent.
fn reported_finding(node: &str, state: &StateReport, pod: &PodState) -> Option<Finding> {
    let is_plain = pod.kernel.differences.is_empty()
        && pod.kernel.preceding_rules.is_empty()
        && pod.kernel.unobserved.is_none()
        && !pod.kernel.dns_unanswered
        && pod.problem.is_none();
    if is_plain && matches!(pod.capture, CaptureState::Captured | CaptureState::Outside) {
        return None;
    }
    let explained = explain_pod(state, &pod.namespace, &pod.name);
    let code = match (pod.capture, explained.verdict) {
        (CaptureState::Bypassing, _) => Code::PodBypassing,
        (CaptureState::Held, _) => Code::PodHeld,
        (CaptureState::Unknown, _) => Code::PodUnknown,
        (CaptureState::Leaving, _) => Code::PodLeaving,
        (CaptureState::Pending, _) => Code::PodPending,
        (_, PodVerdict::Unhealthy) => Code::PodDiffers,
        (_, PodVerdict::Unknown | PodVerdict::NotFound) => Code::PodUnknown,
        (_, PodVerdict::Healthy) => return None,
    };
    let message = format!("{} [{}] (node {node})", explained.message, explained.code);
    let object = ObjectName::in_namespace("Pod", &pod.namespace, &pod.name);
    let mut finding = Finding::new(code, object, message).on_node(node);
    if let Some(advice) = explained.advice.first() {
        finding.hint.clone_from(advice);
    }
    Some(finding)
}

/// Returns findings about mesh pods on nodes whose agent answered without reporting them.
fn unreported_findings(lookup: &Lookup<'_>) -> Vec<Finding> {
    let reported: BTreeSet<(&str, &str, &str)> = lookup
        .cluster
        .state_reports()
        .flat_map(|(node, state)| {
            state.pods.iter().map(move |pod| (node, pod.namespace.as_str(), pod.name.as_str()))
        })
        .collect();
    let is_reported = |pod: &Pod| {
        let meta = &pod.metadata;
        reported.contains(&(pod.spec.node_name.as_str(), meta.namespace.as_str(), meta.name.as_str()))
    };
    let missing = lookup.mesh_pods().filter(|pod| pod.status.phase == "Running" && !is_reported(pod));
    missing.filter_map(|pod| missing_finding(lookup, pod)).collect()
}

fn missing_finding(lookup: &Lookup<'_>, pod: &Pod) -> Option<Finding> {
    let node = pod.spec.node_name.as_str();
    let state = lookup.cluster.node_state(node)?;
    // In ambient mode the agent may not have read its pods yet; otherwise it follows only pods with a sidecar.
    let is_followed = if state.node.ambient_enabled { state.node.synced } else { pod.has_sidecar() };
    let began = pod.status.start_time.as_deref()?;
    if !is_followed || truncate_to_second(began) >= truncate_to_second(&state.observation.observed_at) {
        return None;
    }
    let is_older = state
        .node
        .agent_started_at
        .as_deref()
        .is_some_and(|started| truncate_to_second(began) < truncate_to_second(started));
    let object = ObjectName::in_namespace("Pod", &pod.metadata.namespace, &pod.metadata.name);
    let finding = if is_older {
        let started = state.node.agent_started_at.as_deref().unwrap_or_default();
        let message = format!(
            "it started at {began}, before the agent of node {node} ({}), which has no record of it",
            truncate_to_second(started)
        );
        Finding::new(Code::PodOlderThanPlugin, object, message)
    } else {
        let message = format!("the agent of node {node} does not report it");
        Finding::new(Code::PodNotReported, object, message)
    };
    Some(finding.on_node(node))
}

/// Removes fraction and zone from a time, so that two UTC times compare as text.
fn truncate_to_second(time: &str) -> &str {
    time.get(..19).unwrap_or(time)
}
