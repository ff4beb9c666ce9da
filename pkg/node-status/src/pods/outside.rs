//! Pods outside of ambient mode, which may have a sidecar.

use agent::KnownPod;
use enrolment::{
    AmbientStanding, EnrolmentPolicy, InvalidAnnotation, PodDecision, SidecarRedirect, SkipReason,
};
use model::{Namespace, Pod};
use pod_status::{Evidence, MeshMembership};
use report::{PodState, RedirectionMode, StateReason};

use super::state_reason;

/// Returns the reason for a pod that has a sidecar.
pub(crate) fn sidecar_reason() -> StateReason {
    StateReason {
        code: "sidecar".to_owned(),
        message: "it has an injected sidecar (annotation sidecar.istio.io/status)".to_owned(),
    }
}

/// Decides as the plugin does at the pod's ADD. Only a sidecar's annotations can be invalid.
pub(crate) fn decide_sidecar(
    pod: &Pod,
    namespace: Option<&Namespace>,
    policy: &EnrolmentPolicy,
) -> Result<PodDecision, InvalidAnnotation> {
    // Labels first: a user who is advised to change labels must not do so in vain.
    if pod.status.has_ended() {
        return Ok(PodDecision::Skip(SkipReason::Terminated));
    }
    if policy.ztunnel.matches(pod) {
        return Ok(PodDecision::Skip(SkipReason::Ztunnel));
    }
    enrolment::decide(pod, namespace, policy)
}

/// Evaluates a pod outside of ambient mode, which may have a sidecar, by repeating the plugin's decision at its ADD from the same
/// facts; returns its redirection, if any.
pub(super) fn judge_without_ambient(
    known: &KnownPod,
    policy: &EnrolmentPolicy,
    shown: &mut PodState,
    evidence: &mut Evidence,
) -> Option<Box<SidecarRedirect>> {
    let redirect = match decide_sidecar(&known.pod, known.namespace.as_ref(), policy) {
        Ok(PodDecision::Skip(reason)) => {
            shown.reason = state_reason(&AmbientStanding::Out(reason));
            return None;
        }
        // The plugin enrolled it in ambient mode, contrary to the current labels.
        Ok(PodDecision::Ambient(_)) => return None,
        Ok(PodDecision::Sidecar(redirect)) => Some(redirect),
        Err(error) => {
            shown.problem =
                Some(format!("its annotations cannot be read, so it cannot start again: {error}"));
            None
        }
    };
    shown.mode = Some(RedirectionMode::Sidecar);
    shown.reason = sidecar_reason();
    // Its rules are observed by `sidecar::observe_sidecars`; those of an unreadable one may be of earlier annotations.
    evidence.membership = MeshMembership::Member;
    redirect
}
