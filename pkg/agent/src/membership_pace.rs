//! Rate limit for changes of a pod's membership by labels and annotations.
//!
//! A client that may change the labels of a pod or of its namespace can do so many times a second, and each change costs the node
//! rules, messages to ztunnel, an annotation and log lines. The first change takes effect immediately, and a further one of the
//! same pod after [`OPTIONS`], with the labels of that time. Until then a pod that is to leave stays captured. An ADD, and the end
//! of a pod, are never delayed.
//!
//! Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use enrolment::{AmbientStanding, EnrolmentReason, SkipReason};
use model::{Pod, PodUid};
use pod_status::lifecycle::OPTIONS;

/// Number of changes in a series that are logged individually. Changes of one pod within [`CALM`] of each other form a series.
const LOGGED: u32 = 6;
/// Time without a change of membership after which a series ends.
const CALM: Duration = Duration::from_secs(60);

/// Membership of a pod in the mesh, with the reason.
type Membership = Result<EnrolmentReason, SkipReason>;

/// Effective membership of a pod.
#[derive(Debug)]
struct PacedPod {
    membership: Membership,
    /// Time of the last change.
    changed: Option<Instant>,
    /// Number of changes in the series.
    changes: u32,
    /// Whether the pod's labels differ from this, and will take effect later.
    waits: bool,
}

/// Beginning or end of a series of changes that is too long to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeriesNotice {
    /// Further changes are not logged.
    Begins,
    /// The series has ended, after this number of changes.
    Ends(u32),
}

/// Effective memberships, by UID.
#[derive(Debug, Default)]
pub(crate) struct MembershipPace {
    pods: BTreeMap<PodUid, PacedPod>,
    /// Time at which the next delayed change takes effect.
    pub(crate) due: Option<Instant>,
}

impl MembershipPace {
    /// Starts an observation of all pods; those that are not known are forgotten.
    pub(crate) fn begin_observation(&mut self, is_known: impl Fn(&PodUid) -> bool) {
        self.pods.retain(|uid, _| is_known(uid));
        self.due = None;
    }

    /// Applies the membership by a pod's current labels and annotations, unless it must be delayed.
    pub(crate) fn observe_pod(
        &mut self,
        uid: &PodUid,
        shown: &AmbientStanding,
        now: Instant,
    ) -> Option<SeriesNotice> {
        let Some(membership) = by_labels(shown) else {
            self.pods.remove(uid); // a later change is no change of labels
            return None;
        };
        let Some(pod) = self.pods.get_mut(uid) else {
            self.pods.insert(uid.clone(), PacedPod { membership, changed: None, changes: 0, waits: false });
            return None;
        };
        pod.waits = false;
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

    /// Resets a starting pod, so that its labels take effect immediately.
    pub(crate) fn reset_pod(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// Returns the effective standing. `shown`: that of labels and annotations.
    pub(crate) fn effective_standing(&self, pod: &Pod, shown: AmbientStanding) -> AmbientStanding {
        let known = self.pods.get(&pod.metadata.uid).map(|known| known.membership);
        match known {
            Some(known) if by_labels(&shown).is_some_and(|shown| shown.is_ok() != known.is_ok()) => {
                AmbientStanding::for_pod(pod, known)
            }
            _ => shown,
        }
    }

    /// Whether a delayed change of the pod is pending.
    pub(crate) fn is_waiting(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|pod| pod.waits)
    }

    /// Whether the pod's membership changes so often that changes are not logged individually.
    pub(crate) fn is_flapping(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|pod| pod.changes > LOGGED)
    }
}

/// Returns the membership by labels and annotations; `None`: other facts decide.
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
