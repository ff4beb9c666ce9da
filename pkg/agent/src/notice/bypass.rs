//! Notices about pods that can bypass the mesh, and pods with foreign rules that do.

use std::{collections::BTreeMap, time::Instant};

use model::{EventLevel, EventSubject, NOTICE_INTERVAL, NetworkPrivilege, PodName, PodUid};
use pod_status::lifecycle::{UNSTABLE, describe_conflict};

use super::NoticeTracker;

/// Maximum length of the reported rules, in characters.
const LONGEST: usize = 500;

/// Reported bypasses of the mesh, and privileges that permit one, by UID of the pod.
#[derive(Debug, Default)]
pub(super) struct BypassNotices(BTreeMap<PodUid, ReportedBypasses>);

#[derive(Debug, Default)]
struct ReportedBypasses {
    privilege: Option<NetworkPrivilege>,
    overruled: Option<OverruledPod>,
    unstable: Option<UnstablePod>,
    refused_exceptions: Vec<String>,
}

impl BypassNotices {
    /// Whether rules of the pod are removed repeatedly.
    pub(super) fn is_unstable(&self, uid: &PodUid) -> bool {
        self.0.get(uid).and_then(|pod| pod.unstable.as_ref()).is_some_and(|known| known.persists)
    }

    fn pod_mut(&mut self, uid: &PodUid) -> &mut ReportedBypasses {
        self.0.entry(uid.clone()).or_default()
    }
}

/// A pod whose rules are, or were, removed repeatedly.
#[derive(Debug)]
struct UnstablePod {
    persists: bool,
    next: Instant,
}

/// Network namespace whose rules capture a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulesPlace {
    /// Network namespace of the pod.
    Pod,
    /// Network namespace of the node.
    Node,
}

#[derive(Debug)]
struct OverruledPod {
    what: String,
    next: Instant,
}

impl NoticeTracker {
    /// Reports a pod's privilege over its own network namespace, if it is unusual and not reported yet.
    pub fn can_bypass(&mut self, pod: &PodName, uid: &PodUid, privilege: NetworkPrivilege) {
        let by = match privilege {
            NetworkPrivilege::Privileged => "is privileged",
            NetworkPrivilege::NetAdmin => "has NET_ADMIN",
            _ => return,
        };
        if self.bypasses.pod_mut(uid).privilege.replace(privilege) == Some(privilege) {
            return;
        }
        let message = format!(
            "One of its containers {by}, so the pod can make its traffic bypass the mesh. Rules that do so are reported."
        );
        self.emit_notice(pod_subject(pod, uid), (EventLevel::Warning, "CanBypassMesh", message));
    }

    /// Reports exceptions that annotations request and that are not applied, unless reported before.
    pub fn refused_exceptions(&mut self, pod: &PodName, uid: &PodUid, refused: &[String]) {
        let known = &mut self.bypasses.pod_mut(uid).refused_exceptions;
        if known.as_slice() == refused {
            return;
        }
        refused.clone_into(known);
        if refused.is_empty() {
            return;
        }
        let shown: String = refused.join("; ").chars().take(LONGEST).collect();
        let message = format!("These exceptions are not applied: {shown}.");
        self.emit_notice(pod_subject(pod, uid), (EventLevel::Warning, "ExceptionRefused", message));
    }

    /// Reports foreign rules that precede ours in a pod's network namespace or on the node, as text; empty: none.
    pub fn report_overruled(
        &mut self,
        pod: &PodName,
        uid: &PodUid,
        (place, what): (RulesPlace, &str),
        now: Instant,
    ) {
        let known = &mut self.bypasses.pod_mut(uid).overruled;
        if what.is_empty() {
            *known = None;
            return;
        }
        if known.as_ref().is_some_and(|known| known.what == what && now < known.next) {
            return;
        }
        *known = Some(OverruledPod { what: what.to_owned(), next: now + NOTICE_INTERVAL });
        // The API server rejects messages longer than 1 KiB.
        let shown: String = what.chars().take(LONGEST).collect();
        let place = match place {
            RulesPlace::Pod => "in its network namespace",
            RulesPlace::Node => "on the node",
        };
        let message = format!(
            "Rules of another component {place} precede those of the mesh, so all or some of its traffic \
             bypasses the mesh: {shown}. Run `install-cni explain {pod}` on the node for details."
        );
        self.emit_notice(pod_subject(pod, uid), (EventLevel::Warning, "CaptureOverruled", message));
    }

    /// Reports that the network namespace of a pod could not be determined.
    pub fn ambiguous_netns(&self, pod: &PodName, uid: &PodUid, why: &str) {
        let message = format!(
            "The network namespace of the pod could not be determined, so a pod that is not captured yet stays so: {why}. Run \
             `install-cni explain {pod}` on the node for details."
        );
        self.emit_notice(pod_subject(pod, uid), (EventLevel::Warning, "AmbiguousNetns", message));
    }

    /// Reports rules of a pod that are removed repeatedly: which, by which process if known, and the number of consecutive repairs.
    /// Reported at most every 30 minutes, even if it stops and resumes.
    pub fn report_unstable(
        &mut self,
        pod: &PodName,
        uid: &PodUid,
        (what, writer): (&str, Option<&str>),
        repairs: u32,
        now: Instant,
    ) {
        let known = &mut self.bypasses.pod_mut(uid).unstable;
        let next = known.as_ref().map(|known| known.next).filter(|next| now < *next);
        *known = Some(UnstablePod { persists: true, next: next.unwrap_or(now + NOTICE_INTERVAL) });
        if next.is_some() {
            return;
        }
        let message = describe_conflict("ztunnel", what, writer, repairs);
        self.emit_notice(pod_subject(pod, uid), (EventLevel::Warning, UNSTABLE, message));
    }

    /// Records that the rules of a pod are stable again.
    pub fn clear_unstable(&mut self, uid: &PodUid) {
        if let Some(known) = &mut self.bypasses.pod_mut(uid).unstable {
            known.persists = false;
        }
    }

    /// Forgets all pods that are not known.
    pub fn forget_bypasses(&mut self, is_known: impl Fn(&PodUid) -> bool) {
        self.bypasses.0.retain(|uid, _| is_known(uid));
    }
}

fn pod_subject(pod: &PodName, uid: &PodUid) -> EventSubject {
    EventSubject::Pod { name: pod.clone(), uid: uid.clone() }
}
