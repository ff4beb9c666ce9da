//! Pods: whether each is in its desired state.

use model::PodName;
use report::{CaptureState, PodState, StateReport, explain_pod, is_captured_with_fault};

use super::lookup::Lookup;
use crate::{
    cluster::Cluster,
    finding::{Code, Finding, ObjectName},
    objects::Pod,
};

pub(super) fn findings(lookup: &Lookup<'_>) -> Vec<Finding> {
    let reported = lookup.cluster.state_reports().flat_map(|(node, state)| {
        let of_pod = move |pod| [reported_finding(node, state, pod), refused_exceptions(node, pod)];
        state.pods.iter().flat_map(of_pod)
    });
    reported.flatten().chain(unreported_findings(lookup)).collect()
}

fn refused_exceptions(node: &str, pod: &PodState) -> Option<Finding> {
    let message = pod.refused_exceptions.join("; ");
    let object = ObjectName::in_namespace("Pod", &pod.namespace, &pod.name);
    (!message.is_empty()).then(|| Finding::new(Code::ExceptionRefused, object, message).on_node(node))
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

/// Returns the mesh pods that their nodes' agents do not report: they may have ended since they were read.
pub fn unreported_pods(cluster: &Cluster) -> Vec<PodName> {
    let lookup = Lookup::new(cluster);
    let missing = unreported_findings(&lookup).filter(|finding| finding.code != Code::PodUnknown);
    missing
        .map(|Finding { object: ObjectName { namespace, name, .. }, .. }| PodName { namespace, name })
        .collect()
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
    // An agent that has read its pods reports all of them. Without ambient mode, another one knows those whose ADD was recorded.
    let is_followed = state.node.synced || !state.node.ambient_enabled && pod.has_sidecar();
    let began = pod.status.start_time.as_deref()?;
    if !is_followed || !is_older_than_observation(pod, state) {
        return None;
    }
    let object = ObjectName::in_namespace("Pod", &pod.metadata.namespace, &pod.metadata.name);
    let recorded_since = state.node.agent_started_at.as_deref().filter(|_| !state.node.synced);
    let recorded_since = recorded_since.map(truncate_to_second);
    let finding = match recorded_since.filter(|since| truncate_to_second(began) < *since) {
        Some(since) => {
            let message = format!(
                "it started at {began}, before the agent of node {node} ({since}), which has no record of it"
            );
            Finding::new(Code::PodOlderThanPlugin, object, message)
        }
        None => {
            let message = format!("the agent of node {node} does not report it");
            Finding::new(Code::PodNotReported, object, message)
        }
    };
    Some(finding.on_node(node))
}

/// Removes fraction and zone from a time, so that two UTC times compare as text.
fn truncate_to_second(time: &str) -> &str {
    time.get(..19).unwrap_or(time)
}
