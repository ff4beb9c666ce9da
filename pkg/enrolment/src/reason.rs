//! Reasons why a pod is in the mesh or outside: one list, for the plugin, the agent, metrics, Events and documents.

model::word_enum! {
    /// Reason why a pod is enrolled in ambient mode. The messages are clauses about "it", the pod.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum EnrolmentReason {
        /// The pod's namespace is labelled.
        NamespaceLabel = "ambient-namespace", "its namespace is labelled istio.io/dataplane-mode=ambient",
        /// The pod itself is labelled.
        PodLabel = "ambient-pod", "it is labelled istio.io/dataplane-mode=ambient itself",
        /// One of the operator's selectors matches it.
        Selector = "ambient-selector", "a selector of the agent's configuration matches it",
    }
}

model::word_enum! {
    /// Reason why a pod is skipped: neither redirected to a sidecar nor enrolled in ambient mode. In the order of evaluation: those
    /// of the call, of ambient mode, of the sidecar. The messages are clauses about "it", the pod.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum SkipReason {
        /// The call names no pod.
        NoPod = "no-pod", "the call names no pod (K8S_POD_NAME or K8S_POD_NAMESPACE is empty)",
        /// The pod's own label is `none`.
        PodLabelNone = "pod-label-none", "it is labelled istio.io/dataplane-mode=none itself",
        /// The pod's namespace is unknown.
        NamespaceUnknown = "namespace-unknown", "its namespace is not known yet",
        /// Neither the pod nor its namespace is labelled.
        NotLabelled = "not-labelled", "its namespace is not labelled istio.io/dataplane-mode=ambient",
        /// No selector of the operator matches the pod.
        NotSelected = "not-selected", "no selector of the agent's configuration matches it",
        /// The pod's namespace is excluded.
        ExcludedNamespace = "excluded-namespace", "its namespace is in kubernetes.exclude_namespaces",
        /// The pod is the agent itself.
        AgentPod = "agent-pod", "it is the node agent itself",
        /// The pod is the node's proxy.
        Ztunnel = "ztunnel", "it is the node's ztunnel",
        /// The pod runs in the node's network namespace.
        HostNetwork = "host-network", "it uses the node's network namespace (hostNetwork)",
        /// The pod has ended, and its address may belong to another pod.
        Terminated = "terminated", "it has ended (its phase is Succeeded or Failed)",
        /// The pod was opted out by annotation.
        OptedOut = "opted-out", "its annotation ambient.istio.io/redirection is disabled",
        /// The pod is not in ambient mode, because it has a sidecar.
        HasSidecar = "sidecar", "it has a sidecar (annotation sidecar.istio.io/status)",
        /// `istio-init` installs the rules.
        HasIstioInit = "istio-init", "its own init container istio-init sets up the redirection to its sidecar",
        /// `DISABLE_ENVOY` is set on the proxy.
        EnvoyDisabled = "envoy-disabled", "its container istio-proxy has DISABLE_ENVOY=true, so no proxy would accept its traffic",
        /// The pod's annotation claims a sidecar, as Istio reads it, but it has none: its traffic is not captured.
        NoProxy = "no-proxy", "it was injected but has no container named istio-proxy, so no proxy would accept its traffic",
        /// The proxy is a gateway or waypoint.
        NotSidecarProxy = "not-a-sidecar", "its istio-proxy is a gateway or a waypoint and not a sidecar",
        /// The pod refuses injection.
        InjectionRefused = "injection-refused", "it requests no sidecar (sidecar.istio.io/inject is false)",
        /// The pod was not injected.
        NotInjected = "not-injected", "it was not injected (no annotation sidecar.istio.io/status)",
        /// Interception mode is `NONE`.
        InterceptionNone = "interception-none", "sidecar.istio.io/interceptionMode is NONE",
    }
}

impl SkipReason {
    /// Whether the labels of a pod or of its namespace request ambient mode, and this reason prevents it.
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
