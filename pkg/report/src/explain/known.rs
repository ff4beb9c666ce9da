//! Situation of a pod that the document contains.

mod kernel;
mod ztunnel;

use pod_status::{CaptureState, RedirectionMode};

use kernel::{no_netns, not_in_set, rules_drifted, rules_overruled, rules_unstable, unobserved_pod};
pub(super) use ztunnel::node_without_ztunnel;
use ztunnel::{dns_unanswered, no_ztunnel, not_connected, refused_by_ztunnel};

use super::{finding::Finding, outside};
use crate::{
    pod::PodState,
    state::{Observer, StatePart, StateReport},
    text::{sanitize_text, to_clause},
};

/// Advice for any pod that can be restarted.
const RESTART: &str =
    "If it does not pass, delete the pod: its owner starts another one, which goes through the plugin.";
const WAIT: &str = "Wait a minute and ask again: the agent repairs this by itself.";
const RECURS: &str = "If it comes back, another program changes it: install-cni watch shows when, install-cni verify shows what.";

/// Returns advice on further diagnosis. The agent's container may see more than the place where a command runs; a command that
/// already runs there can only refer to the log.
pub(super) fn where_to_ask(state: &StateReport) -> &'static [&'static str] {
    let is_elsewhere =
        state.observation.unobserved.iter().any(|unobserved| unobserved.part == StatePart::Installation);
    if is_elsewhere { &["Run the command as root in the agent's container."] } else { &[LOG] }
}

const LOG: &str =
    "Read the agent's log of the last minutes: kubectl logs, or the container runtime's log on the node.";

/// Returns advice for a fault that an agent repairs by itself; empty if no agent runs.
pub(super) fn repair_advice(state: &StateReport) -> &'static [&'static str] {
    if state.observation.observer == Observer::Agent { &[WAIT, RECURS] } else { &[] }
}

pub(super) fn pod_finding(state: &StateReport, pod: &PodState) -> Finding {
    match pod.capture {
        CaptureState::Outside => outside::outside_finding(state, pod),
        CaptureState::Unknown if pod.reason.code == "namespace-unknown" => outside::namespace_unknown(pod),
        CaptureState::Leaving => leaving_finding(pod),
        CaptureState::Unknown => unobserved_pod(state, pod),
        CaptureState::Captured | CaptureState::Pending | CaptureState::Bypassing | CaptureState::Held => {
            mesh_pod_finding(state, pod)
        }
    }
}

/// Returns the first finding that applies to a pod that should be captured.
fn mesh_pod_finding(state: &StateReport, pod: &PodState) -> Finding {
    let checks = [
        refused_by_ztunnel,
        no_ztunnel,
        not_connected,
        not_started,
        no_address,
        not_in_set,
        no_netns,
        rules_overruled,
        rules_unstable,
        rules_drifted,
        dns_unanswered,
        last_attempt_failed,
        annotation_missing,
    ];
    checks.iter().find_map(|check| check(state, pod)).unwrap_or_else(|| capture_state_finding(pod))
}

fn pod_title(pod: &PodState) -> String {
    sanitize_text(&pod.title())
}

/// Describes the consequence for the pod's traffic.
fn traffic_consequence(pod: &PodState) -> &'static str {
    match pod.capture {
        CaptureState::Bypassing => "All or some of its traffic bypasses the mesh.",
        CaptureState::Held => "Its traffic is held back until that changes.",
        CaptureState::Pending => "It is not captured yet.",
        _ => "It is captured as it was before.",
    }
}

/// Finds a pod whose failed start explains missing addresses or rules.
fn not_started(state: &StateReport, pod: &PodState) -> Option<Finding> {
    if pod.capture == CaptureState::Pending { last_attempt_failed(state, pod) } else { None }
}

fn no_address(_: &StateReport, pod: &PodState) -> Option<Finding> {
    if !pod.ips.is_empty() || pod.capture != CaptureState::Pending {
        return None;
    }
    let message = format!("The pod {} has no address yet, so there is nothing to capture.", pod_title(pod));
    let advice = ["See in kubectl describe pod whether it has been scheduled and its network is set up."];
    Some(Finding::new_unhealthy("no-address", message, &advice))
}

/// Finds a pod whose last attempt to enrol failed.
fn last_attempt_failed(_: &StateReport, pod: &PodState) -> Option<Finding> {
    let problem = pod.problem.as_ref()?;
    let what = if pod.mode.is_some() { "could not be enrolled" } else { "could not start" };
    let message =
        format!("The pod {} {what}: {}. {}", pod_title(pod), to_clause(problem), traffic_consequence(pod));
    let advice =
        ["Fix the problem named above; the agent, or the kubelet at the next start, retries.", RESTART];
    Some(Finding::new_unhealthy("failed", message, &advice))
}

/// Finds a captured pod whose missing annotation hides this from the control plane.
fn annotation_missing(state: &StateReport, pod: &PodState) -> Option<Finding> {
    let is_ambient = matches!(pod.mode, Some(RedirectionMode::Node | RedirectionMode::InPod));
    let is_annotated = pod.redirection_annotation.as_deref() == Some("enabled");
    let is_asked = !has_no_api(state) && state.observation.observer == Observer::Agent;
    if !is_ambient || is_annotated || pod.capture != CaptureState::Captured || !is_asked {
        return None;
    }
    let message = format!(
        "The pod {} is captured, but the API does not show its annotation ambient.istio.io/redirection yet: istiod does not \
         know, and others do not reach it through the mesh.",
        pod_title(pod)
    );
    let advice = [
        "Wait some seconds and ask again.",
        "If it does not pass, check whether the agent's service account may patch pods, and whether the API server can be reached.",
    ];
    Some(Finding::new_unhealthy("annotation-missing", message, &advice))
}

/// Whether pods are read from a directory, so that no API server can be informed.
pub(super) fn has_no_api(state: &StateReport) -> bool {
    state.config.iter().any(|setting| setting.name == "pod-source" && setting.value.starts_with("dir:"))
}

/// Returns a clause that names the capture mode.
fn by_mode(mode: Option<RedirectionMode>) -> &'static str {
    match mode {
        Some(RedirectionMode::Sidecar) => {
            ": rules in its network namespace redirect its traffic to its own sidecar"
        }
        Some(RedirectionMode::Node) => ": rules of the node redirect its traffic to ztunnel",
        Some(RedirectionMode::InPod) => {
            ": rules in its network namespace redirect its traffic to ztunnel, which listens there"
        }
        None => "",
    }
}

/// Returns the finding that follows from the capture state alone.
fn capture_state_finding(pod: &PodState) -> Finding {
    let title = pod_title(pod);
    match pod.capture {
        CaptureState::Captured => {
            let code =
                if pod.mode == Some(RedirectionMode::Sidecar) { "captured-sidecar" } else { "captured" };
            Finding::new_healthy(code, format!("The pod {title} is captured{}.", by_mode(pod.mode)), &[])
        }
        CaptureState::Bypassing => {
            let message = format!(
                "The pod {title} should be captured, and all or some of its traffic bypasses the mesh."
            );
            Finding::new_unhealthy("bypassing", message, &[WAIT, RESTART])
        }
        CaptureState::Held => {
            let message = format!(
                "The pod {title} should be captured, and its traffic is held back: it reaches nothing through the mesh."
            );
            Finding::new_unhealthy("held", message, &["Check whether a ztunnel of this node is ready.", WAIT])
        }
        _ => {
            let message = format!("The pod {title} is being captured.");
            Finding::new_unhealthy("pending", message, &["Wait some seconds and ask again.", RESTART])
        }
    }
}

/// Describes a pod that should not be captured, but has capture left over.
fn leaving_finding(pod: &PodState) -> Finding {
    let left = pod.kernel.differences.first().or(pod.kernel.observed.first());
    let left = left.map(|first| format!(" ({})", to_clause(first))).unwrap_or_default();
    let message = format!(
        "The pod {} should not be captured, and the agent's rules or addresses for it still exist{left}: {}.",
        pod_title(pod),
        outside::reason_clause(pod)
    );
    let advice = [
        "Wait a minute and ask again: the agent removes them by itself.",
        "If they stay, the agent's log has the reason; install-cni plan shows what it would do.",
    ];
    Finding::new_unhealthy("leaving", message, &advice)
}
