//! Situations of a pod explained by its ztunnel.

use pod_status::{CaptureState, RedirectionMode};

use super::{RESTART, pod_title, traffic_consequence};
use crate::{
    explain::finding::Finding,
    pod::PodState,
    state::{Observer, StatePart, StateReport},
    text::to_clause,
};

pub(super) fn refused_by_ztunnel(_: &StateReport, pod: &PodState) -> Option<Finding> {
    let why = to_clause(pod.ztunnel.as_ref()?.error.as_ref()?);
    let (why, advice) = match taken_port(&why) {
        Some(port) => (
            format!("a process in it has port {port}, which ztunnel needs there ({why})"),
            [FREE_PORT, OPT_OUT],
        ),
        None => (why, ["Read ztunnel's log on this node: it has the reason of the refusal.", RESTART]),
    };
    let message = format!("ztunnel refused the pod {}: {why}. {}", pod_title(pod), traffic_consequence(pod));
    Some(Finding::new_unhealthy("ztunnel-refused", message, &advice))
}

/// Finds a pod that ztunnel serves, but whose DNS queries nothing answers.
pub(super) fn dns_unanswered(_: &StateReport, pod: &PodState) -> Option<Finding> {
    let message = format!(
        "The DNS queries of the pod {} are redirected to ztunnel, which does not answer any: nothing receives them at port 15053 in \
         the pod's network namespace.",
        pod_title(pod)
    );
    let advice = ["Turn on ztunnel's DNS proxy: ISTIO_META_DNS_CAPTURE=true in its environment.", DNS_OFF];
    pod.kernel.dns_unanswered.then(|| Finding::new_unhealthy("dns-unanswered", message, &advice))
}

const DNS_OFF: &str = "Or leave DNS outside: for the pod with the annotation ambient.istio.io/dns-capture=false, for the node with \
                       AMBIENT_DNS_CAPTURE=false.";
const FREE_PORT: &str =
    "Let the application listen on another port: ztunnel tries again until the port is free.";
const OPT_OUT: &str = "Or keep the pod out of ambient mode by the label istio.io/dataplane-mode=none.";

/// Returns the port of the pod that ztunnel could not bind, from its error: `Bind([::]:15008, Os { code: 98, kind: AddrInUse, ..
/// })`.
fn taken_port(error: &str) -> Option<u16> {
    let (address, kind) = error.split_once("Bind(")?.1.split_once(',')?;
    let (_, port) = address.rsplit_once(':').filter(|_| kind.contains("AddrInUse"))?;
    port.parse().ok()
}

/// Clause about a missing ztunnel, and advice.
pub(crate) type MissingZtunnel = (&'static str, &'static [&'static str]);

/// Returns the ztunnel that pods of this capture mode lack; `None`: one serves them, or unknown.
fn missing_ztunnel(state: &StateReport, mode: RedirectionMode) -> Option<MissingZtunnel> {
    let ztunnels = &state.ztunnels;
    match mode {
        RedirectionMode::Sidecar => None,
        RedirectionMode::Node => {
            let is_active = state.node.active_slot.is_some() || ztunnels.iter().any(|ztunnel| ztunnel.active);
            // A ztunnel is ready, but its links or routes could not be created: the node's problem has the reason.
            let has_problem = state.node.problem.is_some() && ztunnels.iter().any(|ztunnel| ztunnel.ready);
            let is_unread = state.observation.unobserved.iter().any(|one| one.part == StatePart::Network);
            (!is_active && !has_problem && !is_unread)
                .then_some(("No ztunnel is ready on this node", &[READY, TAINTS]))
        }
        // ztunnel connects to an agent, never to a command. Of several ztunnels, the connected one cannot always be identified.
        RedirectionMode::InPod => {
            let is_missing = ztunnels.iter().all(|ztunnel| ztunnel.connected == Some(false));
            let there = if ztunnels.is_empty() {
                "There is no ztunnel on this node"
            } else {
                "No ztunnel is connected to the agent"
            };
            (is_missing && state.observation.observer == Observer::Agent)
                .then_some((there, &[READY, TAINTS, SOCKET]))
        }
    }
}

/// Returns the ztunnel that this node lacks; `None`: it has one, needs none, or unknown.
pub(crate) fn node_without_ztunnel(state: &StateReport) -> Option<MissingZtunnel> {
    let is_needed = state.node.ambient_enabled && state.observation.observer == Observer::Agent;
    // While no capture mode is in use, a ztunnel need not be connected, but must exist.
    let mode = state.node.mode.unwrap_or(RedirectionMode::InPod);
    is_needed.then(|| missing_ztunnel(state, mode)).flatten()
}

const READY: &str =
    "Find out why no ztunnel of this node is ready: kubectl get pods -A -o wide -l app=ztunnel, and its log.";
const TAINTS: &str = "If there is none, check whether its DaemonSet tolerates this node's taints.";
const SOCKET: &str =
    "Check whether agent and ztunnel share the socket that the setting ztunnel-uds-address names.";

/// With node-level capture: finds a pod without a ready ztunnel.
pub(super) fn no_ztunnel(state: &StateReport, pod: &PodState) -> Option<Finding> {
    let mode = pod.mode.filter(|mode| *mode == RedirectionMode::Node)?;
    let (there, advice) = missing_ztunnel(state, mode)?;
    // A document made without an agent does not record which ztunnel is ready.
    if state.observation.observer == Observer::Command && pod.capture == CaptureState::Captured {
        return None;
    }
    let (code, then) = match state.node.no_ztunnel_policy.as_deref() {
        Some("reject") => (
            "no-ztunnel-reject",
            "its connections are refused until one is, by the setting no-ztunnel-policy",
        ),
        Some("open") => (
            "no-ztunnel-open",
            "its traffic bypasses the mesh until one is, by the setting no-ztunnel-policy",
        ),
        _ => ("no-ztunnel-hold", "its connections are held back until one is"),
    };
    let message = format!("{there}, so the pod {} has no proxy: {then}.", pod_title(pod));
    Some(Finding::new_unhealthy(code, message, advice))
}

/// With in-pod capture: finds a pod without a ztunnel connected to the agent.
pub(super) fn not_connected(state: &StateReport, pod: &PodState) -> Option<Finding> {
    let serves = pod.ztunnel.as_ref().is_some_and(|ztunnel| ztunnel.acknowledged);
    let mode = pod.mode.filter(|mode| *mode == RedirectionMode::InPod && !serves)?;
    let (there, advice) = missing_ztunnel(state, mode)?;
    let message = format!(
        "{there}, so ztunnel does not serve the pod {}. {}",
        pod_title(pod),
        traffic_consequence(pod)
    );
    Some(Finding::new_unhealthy("ztunnel-not-connected", message, advice))
}
