//! Situations of a pod visible in the kernel: in the node's sets, in the pod's network namespace, or in neither because it could
//! not be queried.

use pod_status::{CaptureState, RedirectionMode};

use super::{RESTART, pod_title, repair_advice, traffic_consequence, where_to_ask};
use crate::{
    compare::Comparison,
    explain::finding::Finding,
    network::SetMember,
    pod::PodState,
    state::{Observer, StateReport},
    text::{format_count, more_clause, to_clause},
};

pub(super) fn not_in_set(state: &StateReport, pod: &PodState) -> Option<Finding> {
    // With in-pod capture, a fault in the pod's network namespace is worse than a failing probe.
    let matters = match pod.mode {
        Some(RedirectionMode::Node) => pod.capture != CaptureState::Pending,
        Some(RedirectionMode::InPod) => matches!(pod.capture, CaptureState::Captured | CaptureState::Held),
        _ => false,
    };
    if !matters {
        return None;
    }
    let out = outside_the_set(&state.network.ipsets, pod)?;
    let title = pod_title(pod);
    let (code, message) = match pod.mode {
        Some(RedirectionMode::InPod) => (
            "probe-address-missing",
            format!(
                "The address {out} of the pod {title} is missing in the set of probed pods, so the node's probes of it may fail."
            ),
        ),
        _ => (
            "address-not-in-set",
            format!(
                "The address {out} of the pod {title} is missing in the set of captured addresses, so its traffic bypasses the mesh."
            ),
        ),
    };
    Some(Finding::new_unhealthy(code, message, repair_advice(state)))
}

/// Returns the first address of the pod that should be in a set and is in none.
fn outside_the_set(sets: &Comparison<SetMember>, pod: &PodState) -> Option<String> {
    let observed = sets.observed.as_ref()?;
    let is_desired = |ip| sets.desired.iter().any(|member| member.ip == ip);
    let is_there = |ip| observed.iter().any(|member| member.ip == ip);
    pod.ips.iter().copied().find(|ip| is_desired(*ip) && !is_there(*ip)).map(|ip| ip.to_string())
}

/// Finds a pod whose network namespace is unknown.
pub(super) fn no_netns(_: &StateReport, pod: &PodState) -> Option<Finding> {
    let is_missing = pod.kernel.netns.is_none() && pod.kernel.differences.is_empty();
    if !is_missing
        || !matches!(pod.mode, Some(RedirectionMode::InPod | RedirectionMode::Sidecar))
        || pod.capture == CaptureState::Captured
    {
        return None;
    }
    let why =
        pod.kernel.unobserved.as_deref().map_or_else(String::new, |why| format!(" ({})", to_clause(why)));
    let message = format!(
        "The network namespace of the pod {} was not found{why}. {}",
        pod_title(pod),
        traffic_consequence(pod)
    );
    let advice = [
        "Check whether the pod's containers run on this node, for instance with crictl ps.",
        "Check whether the agent sees the processes of the whole node (setting host-proc).",
        RESTART,
    ];
    Some(Finding::new_unhealthy("netns-not-found", message, &advice))
}

/// Finds a pod whose rules exist, but are preceded by foreign rules.
pub(super) fn rules_overruled(_: &StateReport, pod: &PodState) -> Option<Finding> {
    let first = to_clause(pod.kernel.preceding_rules.first()?);
    let more = more_clause(pod.kernel.preceding_rules.len() - 1);
    let is_on_node = pod.mode == Some(RedirectionMode::Node);
    let place = if is_on_node { "on the node" } else { "in its network namespace" };
    let message = format!(
        "The rules of the pod {} are in place, but rules of another component {place} precede them, so all or some of its traffic \
         bypasses the mesh ({first}{more}).",
        pod_title(pod)
    );
    let advice: &[&str] = if is_on_node {
        &["Remove what the message names: the agent leaves objects of other components alone."]
    } else {
        &[
            "Find out which container of the pod made these rules, and remove them: the agent leaves rules of other components \
             alone.",
            "Remove NET_ADMIN from its containers, for instance by Pod Security (level baseline), and delete the pod.",
        ]
    };
    Some(Finding::new_unhealthy("overruled", message, advice))
}

/// Finds a pod whose rules are removed again after each repair.
pub(super) fn rules_unstable(_: &StateReport, pod: &PodState) -> Option<Finding> {
    let is_pending = pod.capture == CaptureState::Pending;
    let repairs = Some(pod.kernel.repair_count).filter(|repairs| *repairs > 0 && is_pending)?;
    let message = format!(
        "The rules of the pod {} are removed repeatedly, and were restored {repairs} times in a row: all or some of its traffic \
         bypasses the mesh in between. It is pending until its rules stay in place.",
        pod_title(pod)
    );
    let advice = [
        "Find out which container of the pod, or which program of the node, removes them; the Event CaptureUnstable lists which.",
        "Remove NET_ADMIN from its containers, for instance by Pod Security (level baseline), and delete the pod.",
    ];
    Some(Finding::new_unhealthy("unstable", message, &advice))
}

pub(super) fn rules_drifted(state: &StateReport, pod: &PodState) -> Option<Finding> {
    let first = to_clause(pod.kernel.differences.first()?);
    let (title, number) = (pod_title(pod), pod.kernel.differences.len());
    let more = more_clause(number - 1);
    if pod.mode == Some(RedirectionMode::Sidecar) {
        let message = format!(
            "The pod {title} has a sidecar, and the rules that redirect its traffic there are missing or incomplete ({first}{more}). \
             {}",
            traffic_consequence(pod)
        );
        let advice = [
            "Delete the pod: its owner starts another one, which goes through the plugin.",
            "If the next one is the same, the plugin is not called: check the files of the installation in install-cni state.",
        ];
        return Some(Finding::new_unhealthy("sidecar-rules-missing", message, &advice));
    }
    let message = format!(
        "What the kernel shows for the pod {title} differs from the desired state in {} ({first}{more}). {}",
        format_count(number, "place"),
        traffic_consequence(pod)
    );
    Some(Finding::new_unhealthy("drifted", message, repair_advice(state)))
}

/// Returns the finding for a pod whose state the kernel could not report.
pub(super) fn unobserved_pod(state: &StateReport, pod: &PodState) -> Finding {
    let title = pod_title(pod);
    let why = match &pod.kernel.unobserved {
        Some(why) => to_clause(why),
        None if state.observation.observer == Observer::Command => "no agent answers".to_owned(),
        None => "it has not been observed yet".to_owned(),
    };
    let message = format!(
        "Whether the pod {title} is captured is unknown, because the kernel could not be queried: {why}."
    );
    let advice = where_to_ask(state);
    let has_namespace = pod.kernel.netns.is_some()
        || !matches!(pod.mode, Some(RedirectionMode::InPod | RedirectionMode::Sidecar));
    let code = match has_namespace {
        _ if pod.kernel.unobserved.is_none() => "unobserved",
        true => "kernel-unobserved",
        false => "netns-not-found",
    };
    Finding::new_unknown(code, message, advice)
}
