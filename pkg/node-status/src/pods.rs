//! Pods, each with the decision on it and its state in the kernel.

mod node_network;
mod outside;
mod ztunnels;

use std::collections::BTreeMap;

use agent::{AgentSnapshot, CaptureSnapshot, EnrolledPodView, KnownPod};
use capture_modes::CaptureSettings;
use enrolment::{
    AmbientStanding, EnrolmentPolicy, SidecarRedirect, SkipReason, ambient::AMBIENT_REDIRECTION,
};
use model::{Pod, PodUid};
use node_plan::ZtunnelFallback;
use pod_status::{Evidence, MeshMembership, PodLife, ProxyEvidence, RulesEvidence};
use report::{CaptureState, PodState, RedirectionMode, StateReason, ZtunnelView};

use crate::inpod;

use node_network::add_missing_probes;
use outside::judge_without_ambient;

pub(super) use node_network::{NodeNetwork, judge_on_node};
pub(super) use outside::{decide_sidecar, sidecar_reason};
pub(super) use ztunnels::ztunnel_states;

/// Redirection parameters of pods with a sidecar, by UID.
pub(super) type PodRedirects = BTreeMap<PodUid, Box<SidecarRedirect>>;

const DOUBT: &str = "the API server's list lacks it, or shows it as it was before, and the API server has not reported that \
                     it is gone: it stays as it was";

/// Sources of the state of pods.
pub(super) struct PodContext<'a> {
    pub(super) snapshot: &'a AgentSnapshot,
    /// Network of the node, which must have been observed in ambient mode.
    pub(super) network: NodeNetwork<'a>,
    pub(super) settings: &'a CaptureSettings,
    pub(super) policy: &'a EnrolmentPolicy,
}

impl PodContext<'_> {
    /// Returns the state of a pod, and adds the redirection of one with a sidecar, whose rules are yet to be observed.
    pub(super) fn pod_state(&self, known: &KnownPod, redirects: &mut PodRedirects) -> PodState {
        let mut shown = pod_from_api(known);
        let is_deleted = known.pod.metadata.deleted.is_some();
        if known.life == PodLife::Ending && is_deleted {
            shown.reason = StateReason {
                code: SkipReason::Terminated.code().to_owned(),
                message: "its containers have ended, and the API server is about to remove it".to_owned(),
            };
            shown.capture = Evidence::OUTSIDE.classify().state;
            return shown;
        }
        let mut evidence = Evidence { life: known.life, ..Evidence::OUTSIDE };
        match (&known.standing, &self.snapshot.capture) {
            (AmbientStanding::Out(_), _) => {
                let redirect = judge_without_ambient(known, self.policy, &mut shown, &mut evidence);
                redirects.extend(redirect.map(|redirect| (shown.uid.clone(), redirect)));
                if shown.reason.code == SkipReason::NamespaceUnknown.code() {
                    evidence = Evidence { life: evidence.life, ..Evidence::UNDETERMINED };
                }
            }
            (_, CaptureSnapshot::Node { .. }) => shown.mode = Some(RedirectionMode::Node),
            (_, CaptureSnapshot::InPod { .. }) => shown.mode = Some(RedirectionMode::InPod),
            (_, CaptureSnapshot::None) => evidence.membership = MeshMembership::Undetermined,
        }
        let is_in_pod = shown.mode == Some(RedirectionMode::InPod);
        match &self.snapshot.capture {
            CaptureSnapshot::Node { refused_exceptions, repairs, .. } => {
                shown
                    .refused_exceptions
                    .extend(refused_exceptions.get(&shown.uid).into_iter().flatten().cloned());
                judge_on_node(&self.network, self.is_open(), &mut shown, &mut evidence);
                if *repairs > 0 && evidence.rules == RulesEvidence::Verified {
                    evidence.rules = RulesEvidence::Unstable;
                    shown.kernel.repair_count = *repairs;
                }
            }
            CaptureSnapshot::InPod { enrolled, .. } => match enrolled.get(&known.pod.metadata.uid) {
                Some(enrolled_pod) => add_enrolment(enrolled_pod, &mut shown, &mut evidence),
                None if is_in_pod => evidence = not_enrolled_yet(evidence),
                None => {}
            },
            CaptureSnapshot::None => {}
        }
        if is_in_pod {
            shown.privilege = Some(known.pod.network_privilege().as_str().to_owned());
        }
        // Without a sandbox it waits for the next one, or for its end.
        if is_deleted && is_in_pod && shown.kernel.netns.is_none() {
            evidence.life = PodLife::Ending;
        }
        shown.capture = evidence.classify().state;
        match &self.snapshot.capture {
            CaptureSnapshot::Node { .. }
                if shown.mode == Some(RedirectionMode::Node) && shown.capture.is_wrong() =>
            {
                shown.problem.clone_from(&self.snapshot.problem);
            }
            CaptureSnapshot::InPod { .. } => add_missing_probes(&self.network, self.settings, &mut shown),
            _ => {}
        }
        // Repair in place reports pods with a sidecar separately.
        let is_ambient = is_in_pod || shown.mode == Some(RedirectionMode::Node);
        let is_as_reported = |(state, _): &(CaptureState, _)| match is_ambient {
            true => *state == shown.capture,
            false => !shown.capture.is_wrong(),
        };
        shown.last_transition_time =
            known.since.filter(is_as_reported).map(|(_, since)| agent_protocol::rfc3339(since));
        shown
    }

    /// Whether traffic bypasses the mesh without a ztunnel.
    fn is_open(&self) -> bool {
        matches!(self.snapshot.capture, CaptureSnapshot::Node { fallback: ZtunnelFallback::Open, .. })
    }
}

/// Returns a pod's state by the API server and the reconciler, without the kernel.
fn pod_from_api(known: &KnownPod) -> PodState {
    let meta = &known.pod.metadata;
    let mut ips = known.pod.status.ips();
    ips.extend(known.reported_ips.iter().filter(|ip| !ips.contains(ip)).copied().collect::<Vec<_>>());
    PodState {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        ips,
        phase: known.pod.status.phase.clone(),
        created_at: creation_time(&known.pod),
        reason: state_reason(&known.standing),
        redirection_annotation: meta.annotations.get(AMBIENT_REDIRECTION).cloned(),
        unconfirmed: known.unconfirmed.then(|| DOUBT.to_owned()),
        ..PodState::default()
    }
}

/// Returns when the pod was created, by the API server; `None`: unknown.
pub(super) fn creation_time(pod: &Pod) -> Option<String> {
    Some(pod.metadata.created.clone()).filter(|created| !created.is_empty())
}

pub(super) fn state_reason(standing: &AmbientStanding) -> StateReason {
    let (code, message) = match standing {
        AmbientStanding::Member { reason, .. } | AmbientStanding::Pending(reason) => {
            (reason.code(), reason.to_string())
        }
        AmbientStanding::Out(reason) => (reason.code(), reason.to_string()),
    };
    StateReason { code: code.to_owned(), message }
}

/// Adds the reconciler's state of a pod with in-pod capture.
fn add_enrolment(enrolled_pod: &EnrolledPodView, shown: &mut PodState, evidence: &mut Evidence) {
    *evidence = Evidence { life: evidence.life, ..enrolled_pod.evidence };
    if shown.ips.is_empty() {
        shown.ips.clone_from(&enrolled_pod.ips);
    }
    shown.kernel = inpod::last_observation(enrolled_pod);
    let serves = enrolled_pod.evidence.proxy == ProxyEvidence::Serves;
    shown.ztunnel = Some(ZtunnelView { acknowledged: serves, error: enrolled_pod.refused.clone() });
    shown.problem.clone_from(&enrolled_pod.problem);
    shown.exceptions = enrolled_pod.options.outside_descriptions();
    shown.refused_exceptions.clone_from(&enrolled_pod.refused_exceptions);
}

/// Returns the evidence for a mesh pod that the next pass will handle.
fn not_enrolled_yet(evidence: Evidence) -> Evidence {
    Evidence {
        membership: MeshMembership::Member,
        rules: RulesEvidence::Absent { failing: false },
        awaited: true,
        ..evidence
    }
}
