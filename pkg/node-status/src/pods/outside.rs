//! Pods outside of ambient mode, which may have a sidecar.

use agent::KnownPod;
use planner::{EnrolmentPolicy, PodDecision, SidecarRedirect, SkipReason};
use pod_status::{Evidence, MeshMembership, RulesEvidence};
use report::{PodState, RedirectionMode, StateReason};

/// A pod outside of ambient mode: it may have a sidecar. The plugin's decision at its ADD is made here from the same facts;
/// returns how the pod is redirected, if it is.
pub(super) fn judge_without_ambient(
    known: &KnownPod,
    policy: &EnrolmentPolicy,
    shown: &mut PodState,
    evidence: &mut Evidence,
) -> Option<Box<SidecarRedirect>> {
    let show = |reason: SkipReason| StateReason { code: reason.code().to_owned(), words: reason.to_string() };
    // Labels come first, so that a user who is advised to change them does not do so in vain.
    let never = match () {
        () if matches!(shown.phase.as_str(), "Succeeded" | "Failed") => Some(SkipReason::Terminated),
        () if policy.ztunnel.matches(&known.pod) => Some(SkipReason::Ztunnel),
        () => None,
    };
    if let Some(reason) = never {
        shown.reason = show(reason);
        return None;
    }
    match planner::decide(&known.pod, known.namespace.as_ref(), policy) {
        Ok(PodDecision::Sidecar(redirect)) => {
            shown.way = Some(RedirectionMode::Sidecar);
            evidence.membership = MeshMembership::Member; // `sidecar::observe_sidecars` observes its rules
            shown.reason = StateReason {
                code: "sidecar".to_owned(),
                words: "it has an injected sidecar (annotation sidecar.istio.io/status)".to_owned(),
            };
            return Some(redirect);
        }
        Ok(PodDecision::Skip(reason)) => shown.reason = show(reason),
        Ok(PodDecision::Ambient(_)) => {}
        Err(error) => {
            shown.way = Some(RedirectionMode::Sidecar);
            evidence.membership = MeshMembership::Member;
            evidence.rules = RulesEvidence::Absent { failing: true };
            shown.trouble =
                Some(format!("its annotations cannot be read, so it cannot start again: {error}"));
        }
    }
    None
}
