//! The decision table of Istio's plugin (1.20), in its order.

use std::{collections::BTreeMap, fmt};

use model::{Container, Namespace, Pod, PodName, parse_go_bool};
use rules::sidecar;

use crate::{
    ambient::{self, name_exemption},
    annotations::{self, InvalidAnnotation},
    reason::{EnrolmentReason, SkipReason},
    selector::Enablement,
    ztunnel::ZtunnelSelector,
};

/// Annotation set by the injector; without it a pod has no sidecar that expects redirected traffic.
pub const STATUS: &str = "sidecar.istio.io/status";
/// Label, or annotation, by which a pod requests or refuses injection.
pub const INJECT: &str = "sidecar.istio.io/inject";

pub(crate) const PROXY: &str = "istio-proxy";
pub(crate) const INIT: &str = "istio-init";

/// The operator's configuration of enrolment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnrolmentPolicy {
    /// Namespaces whose pods are always skipped.
    pub excluded_namespaces: Vec<String>,
    /// Namespaces of the node's agents, as far as known.
    pub agent_namespaces: Vec<String>,
    /// Whether ambient mode is on.
    pub ambient: bool,
    /// Selects the pods of the node's proxy, which are never enrolled in ambient mode.
    pub ztunnel: ZtunnelSelector,
    /// Selectors of the pods for ambient mode, in place of the labels. A pod has to match one of them.
    pub enablement: Option<Vec<Enablement>>,
    /// Whether the user's annotation `ambient.istio.io/redirection: disabled` is ignored, as in Istio since 1.21.
    pub ignores_opt_out: bool,
}

impl EnrolmentPolicy {
    /// Whether ambient mode is on, and these annotations do not exclude a pod from it: it has no sidecar, and was not opted out.
    fn may_be_ambient(&self, annotations: &BTreeMap<String, String>) -> bool {
        let opted_out = !self.ignores_opt_out && ambient::opted_out(annotations);
        self.ambient && !annotations.contains_key(STATUS) && !opted_out
    }
}

/// Contents of the container runtime's call, known without a request to another component.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeCall<'a> {
    /// Pod of the call, if the runtime names it.
    pub pod: Option<&'a PodName>,
    /// All annotations of the pod, if the runtime passes them.
    pub annotations: Option<&'a BTreeMap<String, String>>,
}

/// Decision on a pod: skip it, redirect it or enrol it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodDecision {
    /// Skip the pod.
    Skip(SkipReason),
    /// Redirect its traffic to its sidecar.
    Sidecar(Box<SidecarRedirect>),
    /// Enrol it in ambient mode.
    Ambient(EnrolmentReason),
}

/// Redirection to a sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidecarRedirect {
    /// Parameters of the rule set.
    pub config: sidecar::SidecarConfig,
    /// Whether IPv6 is also redirected in a pod whose first address is IPv4.
    pub dual_stack: bool,
    /// Values that could not be parsed and count as unset.
    pub warnings: Vec<String>,
}

impl SidecarRedirect {
    /// Short, stable code of this decision.
    pub const CODE: &str = "sidecar";
}

impl PodDecision {
    /// Returns a short, stable code of outcome and reason.
    pub fn code(&self) -> &'static str {
        match self {
            PodDecision::Skip(reason) => reason.code(),
            PodDecision::Sidecar(_) => SidecarRedirect::CODE,
            PodDecision::Ambient(reason) => reason.code(),
        }
    }
}

/// Formats one sentence: the action, and the reason.
impl fmt::Display for PodDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PodDecision::Skip(reason) => write!(f, "skipped: {reason}"),
            PodDecision::Sidecar(_) => f.write_str("redirected to its sidecar: it was injected"),
            PodDecision::Ambient(reason) => write!(f, "enrolled in ambient mode: {reason}"),
        }
    }
}

/// Decides from the call alone, where that suffices; `None`: the pod must be fetched.
pub fn decide_early(call: &RuntimeCall<'_>, policy: &EnrolmentPolicy) -> Option<PodDecision> {
    let pass = |reason| Some(PodDecision::Skip(reason));
    let Some(pod) = call.pod else { return pass(SkipReason::NoPod) };
    if let Some(reason) = name_exemption(&pod.namespace, &pod.name, policy) {
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

/// Whether [`decide`] needs the namespace of `pod`.
pub fn needs_namespace(pod: &Pod, policy: &EnrolmentPolicy) -> bool {
    // With the operator's selectors, a pod's own label has no special meaning.
    let has_refused = policy.enablement.is_none() && ambient::has_refused(pod);
    policy.may_be_ambient(&pod.metadata.annotations) && !has_refused
}

/// Decides from the pod itself. `namespace` is used in ambient mode only.
///
/// # Errors
/// An annotation of a pod that would be redirected cannot be parsed.
pub fn decide(
    pod: &Pod,
    namespace: Option<&Namespace>,
    policy: &EnrolmentPolicy,
) -> Result<PodDecision, InvalidAnnotation> {
    if let Some(reason) = name_exemption(&pod.metadata.namespace, &pod.metadata.name, policy) {
        return Ok(PodDecision::Skip(reason));
    }
    if pod.spec.host_network {
        return Ok(PodDecision::Skip(SkipReason::HostNetwork));
    }
    let left = match policy.ambient.then(|| ambient::membership_by_pod(pod, namespace, policy)) {
        Some(Ok(reason)) => return Ok(PodDecision::Ambient(reason)),
        Some(Err(left)) => Some(left),
        None => None,
    };
    match find_sidecar(pod) {
        // For a pod without a sidecar, the reason from ambient mode is more specific.
        Err(SkipReason::NotInjected) => Ok(PodDecision::Skip(left.unwrap_or(SkipReason::NotInjected))),
        Err(reason) => Ok(PodDecision::Skip(reason)),
        Ok(_) if annotations::intercepts_nothing(&pod.metadata.annotations) => {
            Ok(PodDecision::Skip(SkipReason::InterceptionNone))
        }
        Ok(proxy) => {
            annotations::parse_redirect(pod, proxy).map(|redirect| PodDecision::Sidecar(Box::new(redirect)))
        }
    }
}

/// Returns the sidecar that expects this pod's traffic, or why there is none.
fn find_sidecar(pod: &Pod) -> Result<&Container, SkipReason> {
    if pod.all_containers().any(|container| container.name == INIT) {
        return Err(SkipReason::HasIstioInit);
    }
    let proxy = pod.all_containers().find(|container| container.name == PROXY);
    let disabled = proxy.and_then(|proxy| proxy.env_value("DISABLE_ENVOY")).and_then(parse_go_bool);
    if disabled == Some(true) {
        return Err(SkipReason::EnvoyDisabled);
    }
    let Some(proxy) = proxy else {
        let injected = pod.metadata.annotations.contains_key(STATUS);
        return Err(if injected { SkipReason::NoProxy } else { SkipReason::NotInjected });
    };
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

/// Whether the pod refuses injection. The label takes precedence over the annotation; values that cannot be parsed are ignored.
fn refuses_injection(pod: &Pod) -> bool {
    let word = pod.metadata.labels.get(INJECT).or_else(|| pod.metadata.annotations.get(INJECT));
    word.and_then(|word| parse_go_bool(word)) == Some(false)
}
