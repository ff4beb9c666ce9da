//! How often a pod joins and leaves the mesh by labels and annotations.
//!
//! Whoever may change the labels of a pod or of its namespace may do so many times a second, and each change costs the node rules,
//! messages to ztunnel, an annotation and log lines. The first change takes effect at once, and a further one of the same pod
//! after [`OPTIONS`], with the labels of then. Until then a pod that is to leave stays captured. An ADD, and the end of a
//! pod, are never delayed.
//!
//! Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use enrolment::{AmbientStanding, EnrolmentReason, SkipReason};
use model::{Pod, PodUid};
use pod_status::lifecycle::OPTIONS;

/// Changes of one pod within [`CALM`] of each other are one series, and so many of it are logged one by one.
const LOGGED: u32 = 6;
/// A pod whose membership has not changed for so long has stopped changing it.
const CALM: Duration = Duration::from_secs(60);

/// Whether a pod belongs to the mesh.
type Membership = Result<EnrolmentReason, SkipReason>;

/// The membership of a pod that is in effect.
#[derive(Debug)]
struct PacedPod {
    membership: Membership,
    /// When it changed last.
    changed: Option<Instant>,
    /// Changes of the series.
    changes: u32,
    /// Whether the pod's labels say something else, which takes effect in a moment.
    waits: bool,
    round: u64,
}

/// The beginning or end of a series of changes that is too long to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeriesNotice {
    /// Further changes are not logged.
    Begins,
    /// The series has ended, after so many changes.
    Ends(u32),
}

/// The memberships that are in effect, by UID.
#[derive(Debug, Default)]
pub(crate) struct MembershipPace {
    pods: BTreeMap<PodUid, PacedPod>,
    /// When a change that was too early takes effect.
    pub(crate) due: Option<Instant>,
    round: u64,
}

impl MembershipPace {
    /// An observation of all pods begins.
    pub(crate) fn begin_observation(&mut self) {
        self.round += 1;
        self.due = None;
    }

    /// A pod, as labels and annotations are now: brings its membership into effect, unless it is too early.
    pub(crate) fn observe_pod(
        &mut self,
        uid: &PodUid,
        shown: &AmbientStanding,
        now: Instant,
    ) -> Option<SeriesNotice> {
        let Some(membership) = by_labels(shown) else {
            self.pods.remove(uid); // what follows is no change of labels
            return None;
        };
        let round = self.round;
        let Some(pod) = self.pods.get_mut(uid) else {
            self.pods
                .insert(uid.clone(), PacedPod { membership, changed: None, changes: 0, waits: false, round });
            return None;
        };
        (pod.round, pod.waits) = (round, false);
        let since = pod.changed.map(|changed| now.saturating_duration_since(changed));
        let is_calm = since.is_none_or(|since| since > CALM);
        if pod.membership.is_ok() == membership.is_ok() {
            pod.membership = membership;
            let ended = if is_calm { std::mem::take(&mut pod.changes) } else { 0 };
            return (ended > LOGGED).then_some(SeriesNotice::Ends(ended));
        }
        if let Some(due) = pod.changed.map(|changed| changed + OPTIONS).filter(|due| now < *due) {
            self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
            pod.waits = true;
            return None;
        }
        pod.membership = membership;
        pod.changed = Some(now);
        pod.changes = if is_calm { 1 } else { pod.changes.saturating_add(1) };
        (pod.changes == LOGGED + 1).then_some(SeriesNotice::Begins)
    }

    /// The observation has ended: pods that were not among the observed ones are forgotten.
    pub(crate) fn end_observation(&mut self) {
        self.pods.retain(|_, pod| pod.round == self.round);
    }

    /// A pod starts: its labels take effect at once.
    pub(crate) fn reset_pod(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// The standing that is in effect. `shown`: that of labels and annotations.
    pub(crate) fn effective_standing(&self, pod: &Pod, shown: AmbientStanding) -> AmbientStanding {
        let known = self.pods.get(&pod.metadata.uid).map(|known| known.membership);
        match known {
            Some(known) if by_labels(&shown).is_some_and(|shown| shown.is_ok() != known.is_ok()) => {
                AmbientStanding::of_pod(pod, known)
            }
            _ => shown,
        }
    }

    /// Whether the pod joins or leaves in a moment.
    pub(crate) fn is_waiting(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|pod| pod.waits)
    }

    /// Whether the pod's membership changes so often that the changes are not logged one by one.
    pub(crate) fn is_flapping(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|pod| pod.changes > LOGGED)
    }
}

/// The membership by labels and annotations; `None`: something else decides.
fn by_labels(standing: &AmbientStanding) -> Option<Membership> {
    match standing {
        AmbientStanding::Member { reason, .. } | AmbientStanding::Pending(reason) => Some(Ok(*reason)),
        AmbientStanding::Out(
            SkipReason::Terminated | SkipReason::NamespaceUnknown | SkipReason::HostNetwork,
        ) => None,
        AmbientStanding::Out(reason) => Some(Err(*reason)),
    }
}

#[cfg(test)]
mod tests;
