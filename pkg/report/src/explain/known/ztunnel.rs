//! Situations of a pod that its ztunnel explains.

use pod_status::{CaptureState, RedirectionMode};

use super::{RESTART, title, traffic};
use crate::{
    explain::finding::Finding,
    pod::PodState,
    state::{Observer, StateReport},
    text::clause,
};

pub(super) fn refused(_: &StateReport, pod: &PodState) -> Option<Finding> {
    let why = pod.ztunnel.as_ref()?.refused.as_ref()?;
    let says = format!("ztunnel refused the pod {}: {}. {}", title(pod), clause(why), traffic(pod));
    let advice = ["Read ztunnel's log on this node: it says more about the refusal.", RESTART];
    Some(Finding::wrong("ztunnel-refused", says, &advice))
}

/// With capture on the node.
pub(super) fn no_ztunnel(state: &StateReport, pod: &PodState) -> Option<Finding> {
    let is_node = pod.way == Some(RedirectionMode::Node);
    if !is_node || state.node.active_slot.is_some() || state.ztunnels.iter().any(|ztunnel| ztunnel.active) {
        return None;
    }
    // There is one, and what leads to it could not be made: the node's trouble says why.
    if state.node.trouble.is_some() && state.ztunnels.iter().any(|ztunnel| ztunnel.ready) {
        return None;
    }
    // A document that was made without an agent cannot say which ztunnel is ready.
    if state.seen.by == Observer::Command && pod.capture == CaptureState::Captured {
        return None;
    }
    let (code, then) = match state.node.fallback.as_deref() {
        Some("reject") => (
            "no-ztunnel-reject",
            "its connections are refused until one is, as the setting no-ztunnel-policy says",
        ),
        Some("open") => (
            "no-ztunnel-open",
            "its traffic bypasses the mesh until one is, as the setting no-ztunnel-policy says",
        ),
        _ => ("no-ztunnel-hold", "its connections are held back until one is"),
    };
    let says = format!("No ztunnel is ready on this node, so the pod {} has no proxy: {then}.", title(pod));
    Some(Finding::wrong(code, says, &ZTUNNEL))
}

const ZTUNNEL: [&str; 2] = [
    "Find out why no ztunnel of this node is ready: kubectl get pods -A -o wide -l app=ztunnel, and its log.",
    "If there is none, see whether its DaemonSet tolerates this node's taints.",
];

/// With in-pod capture: no ztunnel talks to the agent.
pub(super) fn not_connected(state: &StateReport, pod: &PodState) -> Option<Finding> {
    let serves = pod.ztunnel.as_ref().is_some_and(|ztunnel| ztunnel.serves);
    let is_in_pod = pod.way == Some(RedirectionMode::InPod);
    if !is_in_pod || serves || state.ztunnels.iter().any(|ztunnel| ztunnel.connected == Some(true)) {
        return None;
    }
    if state.seen.by == Observer::Command {
        return None; // nobody to be connected to
    }
    // Of several, one that is connected cannot always be told by name.
    if state.ztunnels.iter().any(|ztunnel| ztunnel.connected.is_none()) && !state.ztunnels.is_empty() {
        return None;
    }
    let there = if state.ztunnels.is_empty() {
        "There is no ztunnel on this node"
    } else {
        "No ztunnel is connected to the agent"
    };
    let says = format!("{there}, so ztunnel does not serve the pod {}. {}", title(pod), traffic(pod));
    let [first, second] = ZTUNNEL;
    let advice = [
        first,
        second,
        "Check whether agent and ztunnel share the socket that the setting ztunnel-uds-address names.",
    ];
    Some(Finding::wrong("ztunnel-not-connected", says, &advice))
}
