//! Pods outside of ambient mode, which may have a sidecar.

use agent::KnownPod;
use enrolment::{
    AmbientStanding, EnrolmentPolicy, InvalidAnnotation, PodDecision, SidecarRedirect, SkipReason,
};
use model::{Namespace, Pod};
use pod_status::{Evidence, MeshMembership};
use report::{PodState, RedirectionMode, StateReason};

use super::state_reason;

/// Decision whether a pod outside of ambient mode has a sidecar.
pub(crate) enum SidecarDecision {
    /// Sidecar to which the pod's traffic is redirected.
    Redirected(Box<SidecarRedirect>),
    /// Sidecar whose annotations cannot be parsed.
    Unreadable(InvalidAnnotation),
    /// No sidecar.
    Outside(SkipReason),
    /// Enrolled in ambient mode by the plugin, contrary to the current labels.
    Ambient,
}

impl SidecarDecision {
    /// Returns the reason for a pod that has a sidecar.
    pub(crate) fn state_reason() -> StateReason {
        StateReason {
            code: "sidecar".to_owned(),
            message: "it has an injected sidecar (annotation sidecar.istio.io/status)".to_owned(),
        }
    }
}

/// Decides as the plugin does at the pod's ADD.
pub(crate) fn decide_sidecar(
    pod: &Pod,
    namespace: Option<&Namespace>,
    policy: &EnrolmentPolicy,
) -> SidecarDecision {
    // Labels first: a user who is advised to change labels must not do so in vain.
    if pod.status.has_ended() {
        return SidecarDecision::Outside(SkipReason::Terminated);
    }
    if policy.ztunnel.matches(pod) {
        return SidecarDecision::Outside(SkipReason::Ztunnel);
    }
    match enrolment::decide(pod, namespace, policy) {
        Ok(PodDecision::Sidecar(redirect)) => SidecarDecision::Redirected(redirect),
        Ok(PodDecision::Skip(reason)) => SidecarDecision::Outside(reason),
        Ok(PodDecision::Ambient(_)) => SidecarDecision::Ambient,
        Err(error) => SidecarDecision::Unreadable(error),
    }
}

/// Evaluates a pod outside of ambient mode, which may have a sidecar, by repeating the plugin's decision at its ADD from the same
/// facts; returns its redirection, if any.
pub(super) fn judge_without_ambient(
    known: &KnownPod,
    policy: &EnrolmentPolicy,
    shown: &mut PodState,
    evidence: &mut Evidence,
) -> Option<Box<SidecarRedirect>> {
    match decide_sidecar(&known.pod, known.namespace.as_ref(), policy) {
        SidecarDecision::Redirected(redirect) => {
            shown.mode = Some(RedirectionMode::Sidecar);
            evidence.membership = MeshMembership::Member; // rules are observed by `sidecar::observe_sidecars`
            shown.reason = SidecarDecision::state_reason();
            return Some(redirect);
        }
        SidecarDecision::Outside(reason) => shown.reason = state_reason(&AmbientStanding::Out(reason)),
        SidecarDecision::Ambient => {}
        SidecarDecision::Unreadable(error) => {
            shown.mode = Some(RedirectionMode::Sidecar);
            shown.reason = SidecarDecision::state_reason();
            evidence.membership = MeshMembership::Member; // its rules may be those of earlier annotations
            shown.problem =
                Some(format!("its annotations cannot be read, so it cannot start again: {error}"));
        }
    }
    None
}
