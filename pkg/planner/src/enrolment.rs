//! The decision table of Istio's plugin (1.20), in its order.

use std::{collections::BTreeMap, fmt};

use model::{Container, Namespace, Pod, PodName, parse_go_bool};
use rules::sidecar;

pub use crate::ambient::{AMBIENT_REDIRECTION, DATAPLANE_MODE, Enrolled};
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
pub struct Policy {
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

impl Policy {
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
pub struct Call<'a> {
    /// Which pod, when the runtime says.
    pub pod: Option<&'a PodName>,
    /// All of the pod's annotations, where the runtime delivers them.
    pub annotations: Option<&'a BTreeMap<String, String>>,
}

/// What to do with a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing: it is none of our business.
    Pass(Skipped),
    /// Redirect its traffic to its sidecar.
    Redirect(Box<Redirect>),
    /// Enrol it in ambient mode.
    Enrol(Enrolled),
}

/// How to redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The rule set's parameters.
    pub config: sidecar::Config,
    /// Redirect IPv6 also in a pod whose first address is IPv4.
    pub dual_stack: bool,
    /// Values that could not be read and count as unset.
    pub warnings: Vec<String>,
}

/// Why a pod is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skipped {
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
pub const ALL_PASSED: [Skipped; 11] = [
    Skipped::NoPod,
    Skipped::ExcludedNamespace,
    Skipped::AgentPod,
    Skipped::HostNetwork,
    Skipped::HasIstioInit,
    Skipped::EnvoyDisabled,
    Skipped::NoProxy,
    Skipped::NotSidecarProxy,
    Skipped::InjectionRefused,
    Skipped::NotInjected,
    Skipped::InterceptionNone,
];

impl Skipped {
    /// A short, stable name for logs and metrics.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Skipped::NoPod => "no-pod",
            Skipped::ExcludedNamespace => "excluded-namespace",
            Skipped::AgentPod => "agent-pod",
            Skipped::HostNetwork => "host-network",
            Skipped::HasIstioInit => "istio-init",
            Skipped::EnvoyDisabled => "envoy-disabled",
            Skipped::NoProxy => "no-proxy",
            Skipped::NotSidecarProxy => "not-a-sidecar",
            Skipped::InjectionRefused => "injection-refused",
            Skipped::NotInjected => "not-injected",
            Skipped::InterceptionNone => "interception-none",
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Skipped::NoPod => "the call names no pod (K8S_POD_NAME or K8S_POD_NAMESPACE is empty)",
            Skipped::ExcludedNamespace => "its namespace is in kubernetes.exclude_namespaces",
            Skipped::AgentPod => "it is the node agent itself",
            Skipped::HostNetwork => "it lives in the node's network namespace (hostNetwork)",
            Skipped::HasIstioInit => "its istio-init container sets up redirection",
            Skipped::EnvoyDisabled => "DISABLE_ENVOY is true on its istio-proxy",
            Skipped::NoProxy => "it has no istio-proxy container",
            Skipped::NotSidecarProxy => "its istio-proxy is not a sidecar (second argument)",
            Skipped::InjectionRefused => "sidecar.istio.io/inject is false",
            Skipped::NotInjected => "it was not injected (no annotation sidecar.istio.io/status)",
            Skipped::InterceptionNone => "sidecar.istio.io/interceptionMode is NONE",
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
            Decision::Pass(reason) => write!(f, "left alone: {reason}"),
            Decision::Redirect(_) => f.write_str("redirected to its sidecar: it was injected"),
            Decision::Enrol(reason) => write!(f, "enrolled in ambient mode: {reason}"),
        }
    }
}

/// Decides from the call alone, where that suffices; none means that the pod must be looked up.
#[must_use]
pub fn decide_early(call: &Call<'_>, policy: &Policy) -> Option<Decision> {
    let pass = |reason| Some(Decision::Pass(reason));
    let Some(pod) = call.pod else { return pass(Skipped::NoPod) };
    if let Some(reason) = exempt(&pod.namespace, &pod.name, policy) {
        return pass(reason);
    }
    let annotations = call.annotations?;
    let injected = annotations.contains_key(STATUS);
    if injected && annotations::intercepts_nothing(annotations) {
        return pass(Skipped::InterceptionNone);
    }
    if !injected && !policy.may_be_ambient(annotations) {
        return pass(Skipped::NotInjected);
    }
    None
}

/// Why a pod is none of our business by its name alone.
fn exempt(namespace: &str, name: &str, policy: &Policy) -> Option<Skipped> {
    if policy.excluded_namespaces.iter().any(|excluded| excluded == namespace) {
        return Some(Skipped::ExcludedNamespace);
    }
    ambient::is_agent(namespace, name, policy.agent_namespace.as_deref()).then_some(Skipped::AgentPod)
}

/// True when [`decide`] needs the namespace of `pod`.
#[must_use]
pub fn needs_namespace(pod: &Pod, policy: &Policy) -> bool {
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
    policy: &Policy,
) -> Result<Decision, InvalidAnnotation> {
    if let Some(reason) = exempt(&pod.metadata.namespace, &pod.metadata.name, policy) {
        return Ok(Decision::Pass(reason));
    }
    if pod.spec.host_network {
        return Ok(Decision::Pass(Skipped::HostNetwork));
    }
    if policy.ambient
        && let Ok(reason) = ambient::wanted(pod, namespace, &policy.of_ambient())
    {
        return Ok(Decision::Enrol(reason));
    }
    match sidecar_of(pod) {
        Err(reason) => Ok(Decision::Pass(reason)),
        Ok(_) if annotations::intercepts_nothing(&pod.metadata.annotations) => {
            Ok(Decision::Pass(Skipped::InterceptionNone))
        }
        Ok(proxy) => annotations::redirect(pod, proxy).map(|redirect| Decision::Redirect(Box::new(redirect))),
    }
}

/// The sidecar that expects this pod's traffic, or why there is none.
fn sidecar_of(pod: &Pod) -> Result<&Container, Skipped> {
    if pod.all_containers().any(|container| container.name == INIT) {
        return Err(Skipped::HasIstioInit);
    }
    let proxy = pod.all_containers().find(|container| container.name == PROXY);
    let disabled = proxy.and_then(|proxy| proxy.env_value("DISABLE_ENVOY")).and_then(parse_go_bool);
    if disabled == Some(true) {
        return Err(Skipped::EnvoyDisabled);
    }
    let proxy = proxy.ok_or(Skipped::NoProxy)?;
    if let [first, second, ..] = proxy.args.as_slice()
        && first == "proxy"
        && second != "sidecar"
    {
        return Err(Skipped::NotSidecarProxy);
    }
    if refuses_injection(pod) {
        return Err(Skipped::InjectionRefused);
    }
    if !pod.metadata.annotations.contains_key(STATUS) {
        return Err(Skipped::NotInjected);
    }
    Ok(proxy)
}

/// The label counts before the annotation; what cannot be read is as if it were not there.
fn refuses_injection(pod: &Pod) -> bool {
    let word = pod.metadata.labels.get(INJECT).or_else(|| pod.metadata.annotations.get(INJECT));
    word.and_then(|word| parse_go_bool(word)) == Some(false)
}
