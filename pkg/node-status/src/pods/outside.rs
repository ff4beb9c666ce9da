//! Pods outside of ambient mode, which may have a sidecar.

use agent::KnownPod;
use enrolment::{
    AmbientStanding, EnrolmentPolicy, InvalidAnnotation, PodDecision, SidecarRedirect, SkipReason,
};
use model::{Namespace, Pod};
use pod_status::{Evidence, MeshMembership, RulesEvidence};
use report::{PodState, RedirectionMode, StateReason};

use super::reason_of;

/// Whether a pod outside of ambient mode has a sidecar.
pub(crate) enum SidecarDecision {
    /// The pod has one, to which its traffic is redirected.
    Redirected(Box<SidecarRedirect>),
    /// The pod has one, and its annotations cannot be read.
    Unreadable(InvalidAnnotation),
    /// The pod has none.
    Outside(SkipReason),
    /// The plugin would enrol it in ambient mode, which the labels of now do not.
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

/// Decides it as the plugin does at the pod's ADD.
pub(crate) fn decide_sidecar(
    pod: &Pod,
    namespace: Option<&Namespace>,
    policy: &EnrolmentPolicy,
) -> SidecarDecision {
    // Labels come first, so that a user who is advised to change them does not do so in vain.
    match () {
        () if pod.status.has_ended() => {
            return SidecarDecision::Outside(SkipReason::Terminated);
        }
        () if policy.ztunnel.matches(pod) => return SidecarDecision::Outside(SkipReason::Ztunnel),
        () => {}
    }
    match enrolment::decide(pod, namespace, policy) {
        Ok(PodDecision::Sidecar(redirect)) => SidecarDecision::Redirected(redirect),
        Ok(PodDecision::Skip(reason)) => SidecarDecision::Outside(reason),
        Ok(PodDecision::Ambient(_)) => SidecarDecision::Ambient,
        Err(error) => SidecarDecision::Unreadable(error),
    }
}

/// A pod outside of ambient mode: it may have a sidecar. The plugin's decision at its ADD is made here from the same facts;
/// returns how the pod is redirected, if it is.
pub(super) fn judge_without_ambient(
    known: &KnownPod,
    policy: &EnrolmentPolicy,
    shown: &mut PodState,
    evidence: &mut Evidence,
) -> Option<Box<SidecarRedirect>> {
    match decide_sidecar(&known.pod, known.namespace.as_ref(), policy) {
        SidecarDecision::Redirected(redirect) => {
            shown.mode = Some(RedirectionMode::Sidecar);
            evidence.membership = MeshMembership::Member; // `sidecar::observe_sidecars` observes its rules
            shown.reason = SidecarDecision::state_reason();
            return Some(redirect);
        }
        SidecarDecision::Outside(reason) => shown.reason = reason_of(&AmbientStanding::Out(reason)),
        SidecarDecision::Ambient => {}
        SidecarDecision::Unreadable(error) => {
            shown.mode = Some(RedirectionMode::Sidecar);
            evidence.membership = MeshMembership::Member;
            evidence.rules = RulesEvidence::Absent { failing: true };
            shown.problem =
                Some(format!("its annotations cannot be read, so it cannot start again: {error}"));
        }
    }
    None
}
