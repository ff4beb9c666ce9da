//! Who belongs to ambient mode: Istio 1.20's predicate, which the plugin asks at ADD and the agent at every change,
//! and what upstream forgot.
//!
//! First what the mesh's users say, which is the pod's label `istio.io/dataplane-mode` if it is `ambient` or `none`
//! (as newer versions of Istio have it), else its namespace's label, which must be exactly `ambient`. Then what speaks
//! against it. So a reason that is [`NotEnrolled::refused`] always means a pod that somebody wants in the mesh.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use model::{Namespace, Pod};

use crate::{
    enrolment::{PROXY, STATUS},
    selector::{Enablement, are_labels},
    ztunnel::ZtunnelSelector,
};

/// Label of ambient mode, of a namespace or a pod.
pub const DATAPLANE_MODE: &str = "istio.io/dataplane-mode";
/// Pod annotation of ambient mode; the user's `disabled` opts out.
pub const AMBIENT_REDIRECTION: &str = "ambient.istio.io/redirection";
/// Pods of the agent's DaemonSet are named after it.
const AGENT_PREFIX: &str = "istio-cni-node-";

/// What the operator configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AmbientPolicy {
    /// Which pods are the node's proxy.
    pub ztunnel: ZtunnelSelector,
    /// Namespaces whose pods are never touched.
    pub excluded_namespaces: Vec<String>,
    /// The namespace that the agent runs in, when known.
    pub agent_namespace: Option<String>,
    /// Who is meant, in place of the labels; any of them.
    pub enablement: Option<Vec<Enablement>>,
    /// The user's annotation `ambient.istio.io/redirection: disabled` has no meaning, as in Istio since 1.21.
    pub ignores_opt_out: bool,
}

/// Whether a pod belongs to ambient mode. It says nothing of addresses, because at ADD the API knows none; see
/// [`AmbientStanding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmbientMembership {
    /// It does.
    In(EnrolmentReason),
    /// It does not.
    Out(NotEnrolled),
}

/// What the agent is to do with a pod that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AmbientStanding {
    /// Its addresses go through the proxy.
    Member {
        /// Why.
        reason: EnrolmentReason,
        /// At least one.
        ips: Vec<IpAddr>,
    },
    /// It belongs to the mesh, and the API knows no address of it yet: its own are those that the plugin enrolled, if it
    /// did. Nothing may be released because of this.
    Pending(EnrolmentReason),
    /// Nothing of it may go through the proxy.
    Out(NotEnrolled),
}

/// Why a pod is enrolled in ambient mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EnrolmentReason {
    /// Its namespace is labelled.
    NamespaceLabel,
    /// It is labelled itself.
    PodLabel,
    /// One of the operator's selectors matches it.
    Selector,
}

/// Why a pod is not enrolled in ambient mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotEnrolled {
    /// Its own label is `none`.
    PodLabel,
    /// Its namespace is not known.
    NamespaceUnknown,
    /// Its namespace is not labelled, nor is it.
    NotLabelled,
    /// None of the operator's selectors matches it.
    NotSelected,
    /// Its namespace is excluded.
    ExcludedNamespace,
    /// It is the agent itself.
    AgentPod,
    /// It is the node's proxy.
    Ztunnel,
    /// It lives in the node's network namespace.
    HostNetwork,
    /// It has ended, and its address may be another pod's.
    Terminated,
    /// It was opted out by annotation.
    OptedOut,
    /// It has a sidecar.
    Sidecar,
    /// Its annotation says that it has a sidecar, as Istio reads it, and it has none: nobody takes its traffic.
    NoProxy,
}

/// Every reason to be enrolled, for tests, metrics and documentation.
pub const ALL_ENROLLED: [EnrolmentReason; 3] =
    [EnrolmentReason::NamespaceLabel, EnrolmentReason::PodLabel, EnrolmentReason::Selector];

/// Every reason not to be, in the order in which they are looked for.
pub const ALL_LEFT: [NotEnrolled; 12] = [
    NotEnrolled::PodLabel,
    NotEnrolled::NamespaceUnknown,
    NotEnrolled::NotLabelled,
    NotEnrolled::NotSelected,
    NotEnrolled::ExcludedNamespace,
    NotEnrolled::AgentPod,
    NotEnrolled::Ztunnel,
    NotEnrolled::HostNetwork,
    NotEnrolled::Terminated,
    NotEnrolled::OptedOut,
    NotEnrolled::Sidecar,
    NotEnrolled::NoProxy,
];

/// Whether a pod belongs to ambient mode. `namespace`: none if it is not known.
#[must_use]
pub fn membership(pod: &Pod, namespace: Option<&Namespace>, policy: &AmbientPolicy) -> AmbientMembership {
    let reason = match exempt(pod, policy) {
        Some(exempt) => asked_for(pod, namespace, policy).and(Err(exempt)),
        None => wanted(pod, namespace, policy),
    };
    reason.map_or_else(AmbientMembership::Out, AmbientMembership::In)
}

/// What to do with a pod as the API knows it now.
#[must_use]
pub fn standing(pod: &Pod, namespace: Option<&Namespace>, policy: &AmbientPolicy) -> AmbientStanding {
    match membership(pod, namespace, policy) {
        AmbientMembership::Out(reason) => AmbientStanding::Out(reason),
        AmbientMembership::In(reason) => match pod.status.ips() {
            ips if ips.is_empty() => AmbientStanding::Pending(reason),
            ips => AmbientStanding::Member { reason, ips },
        },
    }
}

/// The predicate without the rows on names, which [`crate::decide`] has in its own table.
pub(crate) fn wanted(
    pod: &Pod,
    namespace: Option<&Namespace>,
    policy: &AmbientPolicy,
) -> Result<EnrolmentReason, NotEnrolled> {
    let reason = asked_for(pod, namespace, policy)?;
    refusal(pod, policy).map_or(Ok(reason), Err)
}

/// What the operator's selectors say, or the labels.
fn asked_for(
    pod: &Pod,
    namespace: Option<&Namespace>,
    policy: &AmbientPolicy,
) -> Result<EnrolmentReason, NotEnrolled> {
    // Whoever asks why wants to read of the labels, not of selectors that nobody wrote.
    if let Some(selectors) = policy.enablement.as_ref().filter(|selectors| !are_labels(selectors)) {
        let namespace = namespace.ok_or(NotEnrolled::NamespaceUnknown)?;
        let meant = |entry: &Enablement| entry.matches(&pod.metadata.labels, &namespace.metadata.labels);
        return if selectors.iter().any(meant) {
            Ok(EnrolmentReason::Selector)
        } else {
            Err(NotEnrolled::NotSelected)
        };
    }
    if has_refused(pod) {
        return Err(NotEnrolled::PodLabel);
    }
    let namespace = namespace.ok_or(NotEnrolled::NamespaceUnknown)?;
    if mode(&pod.metadata.labels) == Some("ambient") {
        return Ok(EnrolmentReason::PodLabel);
    }
    let labelled = mode(&namespace.metadata.labels) == Some("ambient");
    if labelled { Ok(EnrolmentReason::NamespaceLabel) } else { Err(NotEnrolled::NotLabelled) }
}

/// The pod's own label keeps it out, whatever its namespace says.
pub(crate) fn has_refused(pod: &Pod) -> bool {
    mode(&pod.metadata.labels) == Some("none")
}

fn mode(labels: &BTreeMap<String, String>) -> Option<&str> {
    labels.get(DATAPLANE_MODE).map(String::as_str)
}

fn exempt(pod: &Pod, policy: &AmbientPolicy) -> Option<NotEnrolled> {
    let meta = &pod.metadata;
    if policy.excluded_namespaces.contains(&meta.namespace) {
        return Some(NotEnrolled::ExcludedNamespace);
    }
    is_agent(&meta.namespace, &meta.name, policy.agent_namespace.as_deref()).then_some(NotEnrolled::AgentPod)
}

pub(crate) fn is_agent(namespace: &str, name: &str, agent_namespace: Option<&str>) -> bool {
    agent_namespace == Some(namespace) && name.starts_with(AGENT_PREFIX)
}

/// What in the pod itself speaks against it.
fn refusal(pod: &Pod, policy: &AmbientPolicy) -> Option<NotEnrolled> {
    let annotations = &pod.metadata.annotations;
    // Istio looks at the annotation alone. So do we, but a pod without any proxy is no pod with a sidecar.
    let injected = annotations.contains_key(STATUS);
    let has_proxy = injected && pod.all_containers().any(|container| container.name == PROXY);
    let rows = [
        (NotEnrolled::Ztunnel, policy.ztunnel.matches(pod)),
        (NotEnrolled::HostNetwork, pod.spec.host_network),
        (NotEnrolled::Terminated, matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")),
        (NotEnrolled::OptedOut, !policy.ignores_opt_out && opted_out(annotations)),
        (NotEnrolled::Sidecar, has_proxy),
        (NotEnrolled::NoProxy, injected),
    ];
    rows.into_iter().find_map(|(reason, holds)| holds.then_some(reason))
}

pub(crate) fn opted_out(annotations: &BTreeMap<String, String>) -> bool {
    annotations.get(AMBIENT_REDIRECTION).is_some_and(|value| value == "disabled")
}

impl AmbientMembership {
    /// A short, stable name of the reason.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            AmbientMembership::In(reason) => reason.code(),
            AmbientMembership::Out(reason) => reason.code(),
        }
    }
}

impl AmbientStanding {
    /// A short, stable name of the reason; of a pending pod that it is so.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            AmbientStanding::Member { reason, .. } => reason.code(),
            AmbientStanding::Pending(_) => "no-address",
            AmbientStanding::Out(reason) => reason.code(),
        }
    }
}

impl EnrolmentReason {
    /// A short, stable name for logs and metrics.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            EnrolmentReason::NamespaceLabel => "ambient-namespace",
            EnrolmentReason::PodLabel => "ambient-pod",
            EnrolmentReason::Selector => "ambient-selector",
        }
    }
}

impl NotEnrolled {
    /// A short, stable name for logs and metrics.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            NotEnrolled::PodLabel => "pod-label-none",
            NotEnrolled::NamespaceUnknown => "namespace-unknown",
            NotEnrolled::NotLabelled => "not-labelled",
            NotEnrolled::NotSelected => "not-selected",
            NotEnrolled::ExcludedNamespace => "excluded-namespace",
            NotEnrolled::AgentPod => "agent-pod",
            NotEnrolled::Ztunnel => "ztunnel",
            NotEnrolled::HostNetwork => "host-network",
            NotEnrolled::Terminated => "terminated",
            NotEnrolled::OptedOut => "opted-out",
            NotEnrolled::Sidecar => "sidecar",
            NotEnrolled::NoProxy => "no-proxy",
        }
    }

    /// Its labels, or its namespace's, ask for ambient mode, and something else speaks against it.
    #[must_use]
    pub fn refused(self) -> bool {
        !matches!(
            self,
            NotEnrolled::PodLabel
                | NotEnrolled::NamespaceUnknown
                | NotEnrolled::NotLabelled
                | NotEnrolled::NotSelected
        )
    }
}

/// One sentence: what is, and why.
impl fmt::Display for AmbientMembership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AmbientMembership::In(reason) => write!(f, "in ambient mode: {reason}"),
            AmbientMembership::Out(reason) => write!(f, "not in ambient mode: {reason}"),
        }
    }
}

/// One sentence: what is, and why.
impl fmt::Display for AmbientStanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AmbientStanding::Member { reason, .. } => AmbientMembership::In(*reason).fmt(f),
            AmbientStanding::Pending(reason) => {
                write!(f, "in ambient mode, but without an address yet: {reason}")
            }
            AmbientStanding::Out(reason) => AmbientMembership::Out(*reason).fmt(f),
        }
    }
}

impl fmt::Display for EnrolmentReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EnrolmentReason::NamespaceLabel => "its namespace is labelled istio.io/dataplane-mode=ambient",
            EnrolmentReason::PodLabel => "it is labelled istio.io/dataplane-mode=ambient itself",
            EnrolmentReason::Selector => "a selector of the agent's configuration matches it",
        })
    }
}

impl fmt::Display for NotEnrolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotEnrolled::PodLabel => "it is labelled istio.io/dataplane-mode=none itself",
            NotEnrolled::NamespaceUnknown => "its namespace is not known yet",
            NotEnrolled::NotLabelled => "its namespace is not labelled istio.io/dataplane-mode=ambient",
            NotEnrolled::NotSelected => "no selector of the agent's configuration matches it",
            NotEnrolled::ExcludedNamespace => "its namespace is in kubernetes.exclude_namespaces",
            NotEnrolled::AgentPod => "it is the node agent itself",
            NotEnrolled::Ztunnel => "it is the node's ztunnel",
            NotEnrolled::HostNetwork => "it lives in the node's network namespace (hostNetwork)",
            NotEnrolled::Terminated => "it has ended (its phase is Succeeded or Failed)",
            NotEnrolled::OptedOut => "its annotation ambient.istio.io/redirection is disabled",
            NotEnrolled::Sidecar => "it has a sidecar (annotation sidecar.istio.io/status)",
            NotEnrolled::NoProxy => {
                "its annotation sidecar.istio.io/status says that it has a sidecar, and it has no container istio-proxy"
            }
        })
    }
}
