//! Pods: whether each is in its desired state.

use report::{CaptureState, PodState, StateReport, explain_pod, is_captured_with_fault};

use super::lookup::Lookup;
use crate::{
    finding::{Code, Finding, ObjectName, Severity},
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
    let code = match pod.capture {
        CaptureState::Bypassing => Code::PodBypassing,
        CaptureState::Held => Code::PodHeld,
        CaptureState::Unknown => Code::PodUnknown,
        CaptureState::Leaving => Code::PodLeaving,
        CaptureState::Pending => Code::PodPending,
        CaptureState::Captured if is_captured_with_fault(state, pod) => Code::PodDiffers,
        CaptureState::Captured | CaptureState::Outside => return None,
    };
    let explained = explain_pod(state, &pod.namespace, &pod.name);
    let message = format!("{} [{}] (node {node})", explained.message, explained.code);
    let object = ObjectName::in_namespace("Pod", &pod.namespace, &pod.name);
    let mut finding = Finding::new(code, object, message).on_node(node);
    if let Some(advice) = explained.advice.first() {
        finding.hint.clone_from(advice);
    }
    Some(finding)
}

/// Returns findings about mesh pods that their node's agent does not report, or reports as they were before.
fn unreported_findings<'a>(lookup: &'a Lookup<'_>) -> impl Iterator<Item = Finding> + 'a {
    let running = lookup.mesh_pods().filter(|pod| pod.status.phase == "Running");
    running.filter_map(move |pod| {
        let state = lookup.cluster.node_state(&pod.spec.node_name)?;
        match state.pod(&pod.metadata.namespace, &pod.metadata.name) {
            Some(reported) => outdated_finding(state, pod, reported),
            None => missing_finding(state, pod),
        }
    })
}

/// Returns a finding about a pod that the agent of an ambient node reports by an earlier state of the API.
fn outdated_finding(state: &StateReport, pod: &Pod, reported: &PodState) -> Option<Finding> {
    if !state.node.ambient_enabled {
        return None;
    }
    let node = pod.spec.node_name.as_str();
    let uid = &pod.metadata.uid;
    let is_other = !uid.is_empty() && !reported.uid.is_empty() && *uid != reported.uid;
    let message = if is_other && is_older_than_observation(pod, state) {
        format!("the agent of node {node} reports an earlier pod of this name, with the UID {}", reported.uid)
    } else if reported.capture == CaptureState::Outside && reported.reason.code == "not-labelled" {
        format!("it is labelled for ambient mode, and by what the agent of node {node} knows it is not")
    } else {
        return None;
    };
    let object = ObjectName::in_namespace("Pod", &pod.metadata.namespace, &pod.metadata.name);
    Some(Finding::new(Code::PodUnknown, object, message).on_node(node))
}

/// Whether the pod started before the observation of its node.
fn is_older_than_observation(pod: &Pod, state: &StateReport) -> bool {
    let began = pod.status.start_time.as_deref();
    began.is_some_and(|began| truncate_to_second(began) < truncate_to_second(&state.observation.observed_at))
}

fn missing_finding(state: &StateReport, pod: &Pod) -> Option<Finding> {
    let node = pod.spec.node_name.as_str();
    // In ambient mode the agent may not have read its pods yet; otherwise it follows only pods with a sidecar.
    let is_followed = if state.node.ambient_enabled { state.node.synced } else { pod.has_sidecar() };
    let began = pod.status.start_time.as_deref()?;
    if !is_followed || !is_older_than_observation(pod, state) {
        return None;
    }
    let object = ObjectName::in_namespace("Pod", &pod.metadata.namespace, &pod.metadata.name);
    let started = state.node.agent_started_at.as_deref().map(truncate_to_second);
    let finding = match started.filter(|started| truncate_to_second(began) < *started) {
        Some(started) => {
            let message = format!(
                "it started at {began}, before the agent of node {node} ({started}), which has no record of it"
            );
            Finding::new(Code::PodOlderThanPlugin, object, message)
        }
        None => {
            let message = format!("the agent of node {node} does not report it");
            let finding = Finding::new(Code::PodNotReported, object, message);
            // Ambient mode lists every pod, so a missing one is excluded; otherwise perhaps only recorded pods are known.
            let severity = if state.node.ambient_enabled { finding.severity } else { Severity::Unknown };
            Finding { severity, ..finding }
        }
    };
    Some(finding.on_node(node))
}

/// Removes fraction and zone from a time, so that two UTC times compare as text.
fn truncate_to_second(time: &str) -> &str {
    time.get(..19).unwrap_or(time)
}
