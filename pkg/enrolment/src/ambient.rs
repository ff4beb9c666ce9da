//! Membership in ambient mode: Istio 1.20's predicate, evaluated by the plugin at ADD and by the agent at every change, with cases
//! that upstream omits.
//!
//! First the request: the pod's label `istio.io/dataplane-mode` if it is `ambient` or `none` (as in newer versions of Istio), else
//! its namespace's label, which must be exactly `ambient`. Then the conditions against it. A refusal ([`SkipReason::is_refusal`])
//! therefore always means a pod for which the mesh was requested.

use std::{collections::BTreeMap, net::IpAddr};

use model::{Namespace, Pod};

use crate::{
    decision::{EnrolmentPolicy, PROXY, STATUS},
    reason::{EnrolmentReason, SkipReason},
    selector::{Enablement, are_labels},
};

/// Label of ambient mode, on a namespace or a pod.
pub const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";
/// Pod annotation of ambient mode; `disabled`, set by the user, opts out.
pub const AMBIENT_REDIRECTION: &str = "ambient.istio.io/redirection";
/// Name prefix of the agent's pods, given by their DaemonSet.
const AGENT_PREFIX: &str = "istio-cni-node-";

/// Standing of a running pod in ambient mode, on which the agent acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AmbientStanding {
    /// The pod belongs to the mesh, and traffic of its addresses passes through the proxy.
    Member {
        /// Reason.
        reason: EnrolmentReason,
        /// Addresses, at least one.
        ips: Vec<IpAddr>,
    },
    /// The pod belongs to the mesh, but the API shows no address of it yet. Its addresses are those that the plugin enrolled, if it
    /// did. None may be released in this state.
    Pending(EnrolmentReason),
    /// No traffic of the pod may pass through the proxy.
    Out(SkipReason),
}

impl AmbientStanding {
    /// Returns the standing of a pod with this membership.
    pub fn for_pod(pod: &Pod, membership: Result<EnrolmentReason, SkipReason>) -> AmbientStanding {
        match membership {
            Err(reason) => AmbientStanding::Out(reason),
            Ok(reason) => match pod.status.ips() {
                ips if ips.is_empty() => AmbientStanding::Pending(reason),
                ips => AmbientStanding::Member { reason, ips },
            },
        }
    }
}

/// Decides whether a pod belongs to ambient mode, with the reason. `namespace`: `None` if unknown.
///
/// Addresses are not considered, because the API shows none at ADD; see [`AmbientStanding`].
///
/// # Errors
/// The reason why the pod does not belong to ambient mode.
pub fn evaluate_membership(
    pod: &Pod,
    namespace: Option<&Namespace>,
    policy: &EnrolmentPolicy,
) -> Result<EnrolmentReason, SkipReason> {
    match name_exemption(&pod.metadata.namespace, &pod.metadata.name, policy) {
        // Also in an excluded namespace, as Istio's own usually is, the more specific reason is reported.
        Some(_) if policy.ztunnel.matches(pod) => {
            asked_for(pod, namespace, policy).and(Err(SkipReason::Ztunnel))
        }
        Some(exempt) => asked_for(pod, namespace, policy).and(Err(exempt)),
        None => membership_by_pod(pod, namespace, policy),
    }
}

/// Returns the standing of a pod by the API's current state.
pub fn pod_standing(pod: &Pod, namespace: Option<&Namespace>, policy: &EnrolmentPolicy) -> AmbientStanding {
    AmbientStanding::for_pod(pod, evaluate_membership(pod, namespace, policy))
}

/// Evaluates the predicate without the conditions on names.
pub(crate) fn membership_by_pod(
    pod: &Pod,
    namespace: Option<&Namespace>,
    policy: &EnrolmentPolicy,
) -> Result<EnrolmentReason, SkipReason> {
    let reason = asked_for(pod, namespace, policy)?;
    pod_refusal(pod, policy).map_or(Ok(reason), Err)
}

/// Evaluates the operator's selectors, or the labels if there are none.
fn asked_for(
    pod: &Pod,
    namespace: Option<&Namespace>,
    policy: &EnrolmentPolicy,
) -> Result<EnrolmentReason, SkipReason> {
    // Default selectors are evaluated as labels, so that the reason refers to labels.
    if let Some(selectors) = policy.enablement.as_ref().filter(|selectors| !are_labels(selectors)) {
        let namespace = namespace.ok_or(SkipReason::NamespaceUnknown)?;
        let meant = |entry: &Enablement| entry.matches(&pod.metadata.labels, &namespace.metadata.labels);
        return if selectors.iter().any(meant) {
            Ok(EnrolmentReason::Selector)
        } else {
            Err(SkipReason::NotSelected)
        };
    }
    if has_refused(pod) {
        return Err(SkipReason::PodLabelNone);
    }
    let namespace = namespace.ok_or(SkipReason::NamespaceUnknown)?;
    if dataplane_mode(&pod.metadata.labels) == Some("ambient") {
        return Ok(EnrolmentReason::PodLabel);
    }
    let labelled = dataplane_mode(&namespace.metadata.labels) == Some("ambient");
    if labelled { Ok(EnrolmentReason::NamespaceLabel) } else { Err(SkipReason::NotLabelled) }
}

/// Whether the pod's own label excludes it, regardless of its namespace's label.
pub(crate) fn has_refused(pod: &Pod) -> bool {
    dataplane_mode(&pod.metadata.labels) == Some("none")
}

fn dataplane_mode(labels: &BTreeMap<String, String>) -> Option<&str> {
    labels.get(DATAPLANE_MODE).map(String::as_str)
}

/// Returns why a pod is exempt by its name alone.
pub(crate) fn name_exemption(namespace: &str, name: &str, policy: &EnrolmentPolicy) -> Option<SkipReason> {
    let is_of_agents = policy.agent_namespaces.iter().any(|of_agents| of_agents == namespace);
    if is_of_agents && name.starts_with(AGENT_PREFIX) {
        return Some(SkipReason::AgentPod);
    }
    let is_excluded = policy.excluded_namespaces.iter().any(|excluded| excluded == namespace);
    is_excluded.then_some(SkipReason::ExcludedNamespace)
}

/// Whether a pod has a sidecar. Istio checks the annotation alone, but a pod without any proxy has none.
pub fn has_sidecar(pod: &Pod) -> bool {
    let is_injected = pod.metadata.annotations.contains_key(STATUS);
    is_injected && pod.all_containers().any(|container| container.name == PROXY)
}

/// Returns the first property of the pod itself that excludes it from ambient mode.
fn pod_refusal(pod: &Pod, policy: &EnrolmentPolicy) -> Option<SkipReason> {
    let annotations = &pod.metadata.annotations;
    let rows = [
        (SkipReason::Ztunnel, policy.ztunnel.matches(pod)),
        (SkipReason::HostNetwork, pod.spec.host_network),
        (SkipReason::Terminated, pod.status.has_ended()),
        (SkipReason::OptedOut, !policy.ignores_opt_out && opted_out(annotations)),
        (SkipReason::HasSidecar, has_sidecar(pod)),
        (SkipReason::NoProxy, annotations.contains_key(STATUS)),
    ];
    rows.into_iter().find_map(|(reason, holds)| holds.then_some(reason))
}

pub(crate) fn opted_out(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(AMBIENT_REDIRECTION).is_some_and(|value| value == "disabled")
}
