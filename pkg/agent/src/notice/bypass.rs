//! Notices about pods that can bypass the mesh, and pods with foreign rules that do.

use std::{collections::BTreeMap, time::Instant};

use model::{EventLevel, EventSubject, NOTICE_INTERVAL, NetworkPrivilege, PodName, PodUid};
use pod_status::lifecycle::{UNSTABLE, describe_conflict};

use super::NoticeTracker;

/// Maximum length of the reported rules, in characters.
const LONGEST: usize = 500;

/// Reported bypasses of the mesh, and privileges that permit one, by UID of the pod.
#[derive(Debug, Default)]
pub(super) struct BypassNotices {
    privileges: BTreeMap<PodUid, NetworkPrivilege>,
    overruled: BTreeMap<PodUid, OverruledPod>,
    unstable: BTreeMap<PodUid, UnstablePod>,
    refused_exceptions: BTreeMap<PodUid, Vec<String>>,
}

impl BypassNotices {
    /// Whether rules of the pod are removed repeatedly.
    pub(super) fn is_unstable(&self, uid: &PodUid) -> bool {
        self.unstable.get(uid).is_some_and(|known| known.persists)
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
        if self.bypasses.privileges.get(uid) == Some(&privilege) {
            return;
        }
        self.bypasses.privileges.insert(uid.clone(), privilege);
        let message = format!(
            "One of its containers {by}, so the pod can make its traffic bypass the mesh. Rules that do so are reported."
        );
        self.emit_notice(pod_subject(pod, uid), (EventLevel::Warning, "CanBypassMesh", message));
    }

    /// Reports exceptions that annotations request and that are not applied, unless reported before.
    pub fn refused_exceptions(&mut self, pod: &PodName, uid: &PodUid, refused: &[String]) {
        let known = self.bypasses.refused_exceptions.get(uid).map(Vec::as_slice).unwrap_or_default();
        if known == refused {
            return;
        }
        self.bypasses.refused_exceptions.insert(uid.clone(), refused.to_vec());
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
        if what.is_empty() {
            self.bypasses.overruled.remove(uid);
            return;
        }
        let known = self.bypasses.overruled.get(uid);
        if known.is_some_and(|known| known.what == what && now < known.next) {
            return;
        }
        let entry = OverruledPod { what: what.to_owned(), next: now + NOTICE_INTERVAL };
        self.bypasses.overruled.insert(uid.clone(), entry);
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
        let next = self.bypasses.unstable.get(uid).map(|known| known.next).filter(|next| now < *next);
        let entry = UnstablePod { persists: true, next: next.unwrap_or(now + NOTICE_INTERVAL) };
        self.bypasses.unstable.insert(uid.clone(), entry);
        if next.is_some() {
            return;
        }
        let message = describe_conflict("ztunnel", what, writer, repairs);
        self.emit_notice(pod_subject(pod, uid), (EventLevel::Warning, UNSTABLE, message));
    }

    /// Records that the rules of a pod are stable again.
    pub fn clear_unstable(&mut self, uid: &PodUid) {
        if let Some(known) = self.bypasses.unstable.get_mut(uid) {
            known.persists = false;
        }
    }

    /// Forgets all pods that are not known.
    pub fn forget_bypasses(&mut self, is_known: impl Fn(&PodUid) -> bool) {
        self.bypasses.privileges.retain(|uid, _| is_known(uid));
        self.bypasses.overruled.retain(|uid, _| is_known(uid));
        self.bypasses.unstable.retain(|uid, _| is_known(uid));
        self.bypasses.refused_exceptions.retain(|uid, _| is_known(uid));
    }
}

fn pod_subject(pod: &PodName, uid: &PodUid) -> EventSubject {
    EventSubject::Pod { name: pod.clone(), uid: uid.clone() }
}
