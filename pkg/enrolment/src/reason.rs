//! Why a pod is in the mesh or outside of it: one list, for the plugin, the agent, metrics, Events and documents.

use std::fmt;

/// Why a pod is enrolled in ambient mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EnrolmentReason {
    /// The pod's namespace is labelled.
    NamespaceLabel,
    /// The pod is labelled itself.
    PodLabel,
    /// One of the operator's selectors matches it.
    Selector,
}

/// Why a pod is skipped: neither redirected to a sidecar nor enrolled in ambient mode. In the order in which the reasons
/// are looked for: those of the call, of ambient mode, of the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SkipReason {
    /// The call names no pod.
    NoPod,
    /// The pod's own label is `none`.
    PodLabelNone,
    /// The pod's namespace is not known.
    NamespaceUnknown,
    /// Neither the pod nor its namespace is labelled.
    NotLabelled,
    /// The pod is matched by none of the operator's selectors.
    NotSelected,
    /// The pod's namespace is excluded.
    ExcludedNamespace,
    /// The pod is the agent itself.
    AgentPod,
    /// The pod is the node's proxy.
    Ztunnel,
    /// The pod lives in the node's network namespace.
    HostNetwork,
    /// The pod has ended, and its address may be another pod's.
    Terminated,
    /// The pod was opted out by annotation.
    OptedOut,
    /// The pod is not in ambient mode, because it has a sidecar.
    HasSidecar,
    /// `istio-init` makes the rules.
    HasIstioInit,
    /// `DISABLE_ENVOY` is set on the proxy.
    EnvoyDisabled,
    /// The pod's annotation says that it has a sidecar, as Istio reads it, but it has none: nothing captures its traffic.
    NoProxy,
    /// The proxy is a gateway or waypoint.
    NotSidecarProxy,
    /// The pod refuses injection.
    InjectionRefused,
    /// The pod was not injected.
    NotInjected,
    /// Interception mode is `NONE`.
    InterceptionNone,
}

/// Every reason to be enrolled, for tests, metrics and documentation.
pub const ALL_ENROLLED: [EnrolmentReason; 3] =
    [EnrolmentReason::NamespaceLabel, EnrolmentReason::PodLabel, EnrolmentReason::Selector];

/// Every reason to be skipped, in their order.
pub const ALL_SKIPPED: [SkipReason; 19] = [
    SkipReason::NoPod,
    SkipReason::PodLabelNone,
    SkipReason::NamespaceUnknown,
    SkipReason::NotLabelled,
    SkipReason::NotSelected,
    SkipReason::ExcludedNamespace,
    SkipReason::AgentPod,
    SkipReason::Ztunnel,
    SkipReason::HostNetwork,
    SkipReason::Terminated,
    SkipReason::OptedOut,
    SkipReason::HasSidecar,
    SkipReason::HasIstioInit,
    SkipReason::EnvoyDisabled,
    SkipReason::NoProxy,
    SkipReason::NotSidecarProxy,
    SkipReason::InjectionRefused,
    SkipReason::NotInjected,
    SkipReason::InterceptionNone,
];

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

impl SkipReason {
    /// A short, stable name for logs and metrics.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            SkipReason::NoPod => "no-pod",
            SkipReason::PodLabelNone => "pod-label-none",
            SkipReason::NamespaceUnknown => "namespace-unknown",
            SkipReason::NotLabelled => "not-labelled",
            SkipReason::NotSelected => "not-selected",
            SkipReason::ExcludedNamespace => "excluded-namespace",
            SkipReason::AgentPod => "agent-pod",
            SkipReason::Ztunnel => "ztunnel",
            SkipReason::HostNetwork => "host-network",
            SkipReason::Terminated => "terminated",
            SkipReason::OptedOut => "opted-out",
            SkipReason::HasSidecar => "sidecar",
            SkipReason::HasIstioInit => "istio-init",
            SkipReason::EnvoyDisabled => "envoy-disabled",
            SkipReason::NoProxy => "no-proxy",
            SkipReason::NotSidecarProxy => "not-a-sidecar",
            SkipReason::InjectionRefused => "injection-refused",
            SkipReason::NotInjected => "not-injected",
            SkipReason::InterceptionNone => "interception-none",
        }
    }

    /// The labels of a pod or of its namespace ask for ambient mode, and this speaks against it.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        use SkipReason::{
            AgentPod, ExcludedNamespace, HasSidecar, HostNetwork, NoProxy, OptedOut, Terminated, Ztunnel,
        };
        matches!(
            self,
            ExcludedNamespace
                | AgentPod
                | Ztunnel
                | HostNetwork
                | Terminated
                | OptedOut
                | HasSidecar
                | NoProxy
        )
    }
}

/// Half a sentence, about "it", the pod.
impl fmt::Display for EnrolmentReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EnrolmentReason::NamespaceLabel => "its namespace is labelled istio.io/dataplane-mode=ambient",
            EnrolmentReason::PodLabel => "it is labelled istio.io/dataplane-mode=ambient itself",
            EnrolmentReason::Selector => "a selector of the agent's configuration matches it",
        })
    }
}

/// Half a sentence, about "it", the pod.
impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SkipReason::NoPod => "the call names no pod (K8S_POD_NAME or K8S_POD_NAMESPACE is empty)",
            SkipReason::PodLabelNone => "it is labelled istio.io/dataplane-mode=none itself",
            SkipReason::NamespaceUnknown => "its namespace is not known yet",
            SkipReason::NotLabelled => "its namespace is not labelled istio.io/dataplane-mode=ambient",
            SkipReason::NotSelected => "no selector of the agent's configuration matches it",
            SkipReason::ExcludedNamespace => "its namespace is in kubernetes.exclude_namespaces",
            SkipReason::AgentPod => "it is the node agent itself",
            SkipReason::Ztunnel => "it is the node's ztunnel",
            SkipReason::HostNetwork => "it lives in the node's network namespace (hostNetwork)",
            SkipReason::Terminated => "it has ended (its phase is Succeeded or Failed)",
            SkipReason::OptedOut => "its annotation ambient.istio.io/redirection is disabled",
            SkipReason::HasSidecar => "it has a sidecar (annotation sidecar.istio.io/status)",
            SkipReason::HasIstioInit => "its istio-init container sets up redirection",
            SkipReason::EnvoyDisabled => "DISABLE_ENVOY is true on its istio-proxy",
            SkipReason::NoProxy => {
                "its annotation sidecar.istio.io/status says that it has a sidecar, and it has no container istio-proxy"
            }
            SkipReason::NotSidecarProxy => "its istio-proxy is not a sidecar (second argument)",
            SkipReason::InjectionRefused => "sidecar.istio.io/inject is false",
            SkipReason::NotInjected => "it was not injected (no annotation sidecar.istio.io/status)",
            SkipReason::InterceptionNone => "sidecar.istio.io/interceptionMode is NONE",
        })
    }
}
