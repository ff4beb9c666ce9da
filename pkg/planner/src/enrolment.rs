//! The decision table of Istio's plugin (1.20), in its order.

use std::{collections::BTreeMap, fmt};

use model::{Container, Namespace, Pod, PodName, parse_go_bool};
use rules::sidecar;

pub use crate::ambient::{AMBIENT_REDIRECTION, DATAPLANE_MODE, EnrolmentReason};
use crate::{
    ambient::{self, AmbientPolicy},
    annotations::{self, InvalidAnnotation},
    selector::Enablement,
    ztunnel::ZtunnelSelector,
};

/// Set by the injector; without it a pod has no sidecar that expects redirected traffic.
pub const STATUS: &str = "sidecar.istio.io/status";
/// Label, or annotation: a pod's own word on injection.
pub const INJECT: &str = "sidecar.istio.io/inject";

pub(crate) const PROXY: &str = "istio-proxy";
pub(crate) const INIT: &str = "istio-init";

/// What the operator configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnrolmentPolicy {
    /// Namespaces whose pods are never touched.
    pub excluded_namespaces: Vec<String>,
    /// The namespace that the agent runs in, when known.
    pub agent_namespace: Option<String>,
    /// Ambient mode is on.
    pub ambient: bool,
    /// Which pods are the node's proxy, and so never enrolled in ambient mode.
    pub ztunnel: ZtunnelSelector,
    /// See [`AmbientPolicy::enablement`].
    pub enablement: Option<Vec<Enablement>>,
    /// See [`AmbientPolicy::ignores_opt_out`].
    pub ignores_opt_out: bool,
}

impl EnrolmentPolicy {
    /// What of it is about ambient mode, but for the names, which are looked at before.
    fn of_ambient(&self) -> AmbientPolicy {
        AmbientPolicy {
            ztunnel: self.ztunnel.clone(),
            enablement: self.enablement.clone(),
            ignores_opt_out: self.ignores_opt_out,
            ..AmbientPolicy::default()
        }
    }

    /// Ambient mode is on, and these annotations do not keep a pod out of it: it has no sidecar, and was not opted out.
    fn may_be_ambient(&self, annotations: &BTreeMap<String, String>) -> bool {
        let opted_out = !self.ignores_opt_out && ambient::opted_out(annotations);
        self.ambient && !annotations.contains_key(STATUS) && !opted_out
    }
}

/// What the container runtime's call tells without asking anybody.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeCall<'a> {
    /// Which pod, when the runtime says.
    pub pod: Option<&'a PodName>,
    /// All of the pod's annotations, where the runtime delivers them.
    pub annotations: Option<&'a BTreeMap<String, String>>,
}

/// What to do with a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing: it is none of our business.
    Pass(SkipReason),
    /// Redirect its traffic to its sidecar.
    Redirect(Box<SidecarRedirect>),
    /// Enrol it in ambient mode.
    Enrol(EnrolmentReason),
}

/// How to redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidecarRedirect {
    /// The rule set's parameters.
    pub config: sidecar::SidecarConfig,
    /// Redirect IPv6 also in a pod whose first address is IPv4.
    pub dual_stack: bool,
    /// Values that could not be read and count as unset.
    pub warnings: Vec<String>,
}

/// Why a pod is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SkipReason {
    /// The call names no pod.
    NoPod,
    /// Its namespace is excluded.
    ExcludedNamespace,
    /// It is the agent itself.
    AgentPod,
    /// It lives in the node's network namespace.
    HostNetwork,
    /// `istio-init` makes the rules.
    HasIstioInit,
    /// `DISABLE_ENVOY` is set on the proxy.
    EnvoyDisabled,
    /// There is no `istio-proxy` container.
    NoProxy,
    /// The proxy is a gateway or waypoint.
    NotSidecarProxy,
    /// The pod refuses injection.
    InjectionRefused,
    /// It was not injected.
    NotInjected,
    /// Interception mode is `NONE`.
    InterceptionNone,
}

/// Every reason to pass, for tests and documentation.
pub const ALL_PASSED: [SkipReason; 11] = [
    SkipReason::NoPod,
    SkipReason::ExcludedNamespace,
    SkipReason::AgentPod,
    SkipReason::HostNetwork,
    SkipReason::HasIstioInit,
    SkipReason::EnvoyDisabled,
    SkipReason::NoProxy,
    SkipReason::NotSidecarProxy,
    SkipReason::InjectionRefused,
    SkipReason::NotInjected,
    SkipReason::InterceptionNone,
];

impl SkipReason {
    /// A short, stable name for logs and metrics.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            SkipReason::NoPod => "no-pod",
            SkipReason::ExcludedNamespace => "excluded-namespace",
            SkipReason::AgentPod => "agent-pod",
            SkipReason::HostNetwork => "host-network",
            SkipReason::HasIstioInit => "istio-init",
            SkipReason::EnvoyDisabled => "envoy-disabled",
            SkipReason::NoProxy => "no-proxy",
            SkipReason::NotSidecarProxy => "not-a-sidecar",
            SkipReason::InjectionRefused => "injection-refused",
            SkipReason::NotInjected => "not-injected",
            SkipReason::InterceptionNone => "interception-none",
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SkipReason::NoPod => "the call names no pod (K8S_POD_NAME or K8S_POD_NAMESPACE is empty)",
            SkipReason::ExcludedNamespace => "its namespace is in kubernetes.exclude_namespaces",
            SkipReason::AgentPod => "it is the node agent itself",
            SkipReason::HostNetwork => "it lives in the node's network namespace (hostNetwork)",
            SkipReason::HasIstioInit => "its istio-init container sets up redirection",
            SkipReason::EnvoyDisabled => "DISABLE_ENVOY is true on its istio-proxy",
            SkipReason::NoProxy => "it has no istio-proxy container",
            SkipReason::NotSidecarProxy => "its istio-proxy is not a sidecar (second argument)",
            SkipReason::InjectionRefused => "sidecar.istio.io/inject is false",
            SkipReason::NotInjected => "it was not injected (no annotation sidecar.istio.io/status)",
            SkipReason::InterceptionNone => "sidecar.istio.io/interceptionMode is NONE",
        })
    }
}

impl Decision {
    /// A short, stable name of outcome and reason.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Decision::Pass(reason) => reason.code(),
            Decision::Redirect(_) => "sidecar",
            Decision::Enrol(reason) => reason.code(),
        }
    }
}

/// One sentence: what happens, and why.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decision::Pass(reason) => write!(f, "skipped: {reason}"),
            Decision::Redirect(_) => f.write_str("redirected to its sidecar: it was injected"),
            Decision::Enrol(reason) => write!(f, "enrolled in ambient mode: {reason}"),
        }
    }
}

/// Decides from the call alone, where that suffices; none means that the pod must be looked up.
#[must_use]
pub fn decide_early(call: &RuntimeCall<'_>, policy: &EnrolmentPolicy) -> Option<Decision> {
    let pass = |reason| Some(Decision::Pass(reason));
    let Some(pod) = call.pod else { return pass(SkipReason::NoPod) };
    if let Some(reason) = exempt(&pod.namespace, &pod.name, policy) {
        return pass(reason);
    }
    let annotations = call.annotations?;
    let injected = annotations.contains_key(STATUS);
    if injected && annotations::intercepts_nothing(annotations) {
        return pass(SkipReason::InterceptionNone);
    }
    if !injected && !policy.may_be_ambient(annotations) {
        return pass(SkipReason::NotInjected);
    }
    None
}

/// Why a pod is none of our business by its name alone.
fn exempt(namespace: &str, name: &str, policy: &EnrolmentPolicy) -> Option<SkipReason> {
    if policy.excluded_namespaces.iter().any(|excluded| excluded == namespace) {
        return Some(SkipReason::ExcludedNamespace);
    }
    ambient::is_agent(namespace, name, policy.agent_namespace.as_deref()).then_some(SkipReason::AgentPod)
}

/// True when [`decide`] needs the namespace of `pod`.
#[must_use]
pub fn needs_namespace(pod: &Pod, policy: &EnrolmentPolicy) -> bool {
    // To the operator's selectors, a pod's own label is one like any other.
    let has_refused = policy.enablement.is_none() && ambient::has_refused(pod);
    policy.may_be_ambient(&pod.metadata.annotations) && !has_refused
}

/// Decides from the pod itself. `namespace` is looked at in ambient mode only.
///
/// # Errors
/// An annotation of a pod that would be redirected has a value that cannot be read.
pub fn decide(
    pod: &Pod,
    namespace: Option<&Namespace>,
    policy: &EnrolmentPolicy,
) -> Result<Decision, InvalidAnnotation> {
    if let Some(reason) = exempt(&pod.metadata.namespace, &pod.metadata.name, policy) {
        return Ok(Decision::Pass(reason));
    }
    if pod.spec.host_network {
        return Ok(Decision::Pass(SkipReason::HostNetwork));
    }
    if policy.ambient
        && let Ok(reason) = ambient::wanted(pod, namespace, &policy.of_ambient())
    {
        return Ok(Decision::Enrol(reason));
    }
    match sidecar_of(pod) {
        Err(reason) => Ok(Decision::Pass(reason)),
        Ok(_) if annotations::intercepts_nothing(&pod.metadata.annotations) => {
            Ok(Decision::Pass(SkipReason::InterceptionNone))
        }
        Ok(proxy) => annotations::redirect(pod, proxy).map(|redirect| Decision::Redirect(Box::new(redirect))),
    }
}

/// The sidecar that expects this pod's traffic, or why there is none.
fn sidecar_of(pod: &Pod) -> Result<&Container, SkipReason> {
    if pod.all_containers().any(|container| container.name == INIT) {
        return Err(SkipReason::HasIstioInit);
    }
    let proxy = pod.all_containers().find(|container| container.name == PROXY);
    let disabled = proxy.and_then(|proxy| proxy.env_value("DISABLE_ENVOY")).and_then(parse_go_bool);
    if disabled == Some(true) {
        return Err(SkipReason::EnvoyDisabled);
    }
    let proxy = proxy.ok_or(SkipReason::NoProxy)?;
    if let [first, second, ..] = proxy.args.as_slice()
        && first == "proxy"
        && second != "sidecar"
    {
        return Err(SkipReason::NotSidecarProxy);
    }
    if refuses_injection(pod) {
        return Err(SkipReason::InjectionRefused);
    }
    if !pod.metadata.annotations.contains_key(STATUS) {
        return Err(SkipReason::NotInjected);
    }
    Ok(proxy)
}

/// The label counts before the annotation; what cannot be read is as if it were not there.
fn refuses_injection(pod: &Pod) -> bool {
    let word = pod.metadata.labels.get(INJECT).or_else(|| pod.metadata.annotations.get(INJECT));
    word.and_then(|word| parse_go_bool(word)) == Some(false)
}
