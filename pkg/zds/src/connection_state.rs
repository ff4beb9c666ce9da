//! State of one ztunnel's connection.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Instant, SystemTime};

use model::PodUid;
use netns::NetnsId;

use crate::{ZdsDeadlines, ledger::DesiredWorkload, peer::ZtunnelPeer, plan::RequestStep};

/// A ztunnel that has sent its hello.
#[derive(Debug)]
pub(crate) struct ZtunnelConnection {
    /// Time of its hello, and the protocol version in it.
    pub(crate) since: SystemTime,
    pub(crate) version: i32,
    /// Peer at the other end of the connection.
    pub(crate) peer: ZtunnelPeer,
    /// Whether it has acknowledged the end of the snapshot.
    pub(crate) in_sync: bool,
    /// Revision after which a changed workload is sent before everything else.
    pub(crate) fresh_after: u64,
    /// Acknowledged workloads by UID. A missing one was never acknowledged, or was deleted.
    pub(crate) acked: BTreeMap<PodUid, AckedWorkload>,
    /// Wakes its thread.
    event: OwnedFd,
}

/// Last answer of a ztunnel for one workload.
#[derive(Debug)]
pub(crate) struct AckedWorkload {
    /// Revision of the workload that was acknowledged.
    pub(crate) revision: u64,
    /// `None`: the ztunnel was asked to keep what it has.
    pub(crate) netns: Option<NetnsId>,
    /// Number of acknowledgements of this network namespace.
    pub(crate) attempts: u32,
    pub(crate) refusal: Option<WorkloadRefusal>,
}

/// Answer of a ztunnel that it cannot serve the workload (yet).
#[derive(Debug)]
pub(crate) struct WorkloadRefusal {
    pub(crate) error: String,
    /// Time of the next request.
    pub(crate) again: Instant,
}

impl ZtunnelConnection {
    pub(crate) fn new(version: i32, fresh_after: u64, peer: ZtunnelPeer, event: OwnedFd) -> Self {
        let since = SystemTime::now();
        Self { since, version, peer, in_sync: false, fresh_after, acked: BTreeMap::new(), event }
    }

    /// Wakes the connection's thread. Never blocks: the event counts.
    pub(crate) fn wake_thread(&self) {
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Returns whether the ztunnel has to be sent a workload, retries aside.
    pub(crate) fn lacks_workload(&self, desired: &DesiredWorkload) -> bool {
        let acked = self.acked.get(&desired.workload.uid);
        match (acked, &desired.workload.netns) {
            (None, Some(_)) => true,
            // A keep is possible within the snapshot only: afterwards ztunnel would exit.
            (None, None) => !self.in_sync,
            (Some(_), None) => false,
            // Kept: the ztunnel continues with what it has until the snapshot is complete.
            (Some(AckedWorkload { netns: None, .. }), Some(_)) => self.in_sync,
            (Some(acked), Some(_)) => acked.revision != desired.revision,
        }
    }

    /// Returns whether the ztunnel has acknowledged the workload in the workload's present network namespace.
    pub(crate) fn serves_workload(&self, desired: &DesiredWorkload) -> bool {
        let netns = desired.workload.netns.as_ref().map(|netns| netns.id());
        let acked = self.acked.get(&desired.workload.uid);
        netns.is_some() && acked.is_some_and(|acked| acked.netns == netns && acked.refusal.is_none())
    }

    /// Returns whether the ztunnel refused the workload when it was last sent.
    pub(crate) fn refuses_workload(&self, uid: &PodUid) -> bool {
        self.acked.get(uid).is_some_and(|acked| acked.refusal.is_some())
    }

    /// Records the acknowledgement of a request. Returns whether it is worth an event.
    pub(crate) fn record_answer(
        &mut self,
        step: RequestStep,
        error: Option<&str>,
        deadlines: &ZdsDeadlines,
    ) -> bool {
        match step {
            RequestStep::SnapshotSent => self.in_sync = true,
            // If the ztunnel refuses one of these, nothing more can be done.
            RequestStep::Del { uid } => drop(self.acked.remove(&uid)),
            RequestStep::Keep { uid, revision } => {
                let kept = AckedWorkload { revision, netns: None, attempts: 0, refusal: None };
                self.acked.insert(uid, kept);
            }
            RequestStep::Add { uid, revision, netns } => {
                return self.note_add(uid, revision, netns, error, deadlines);
            }
        }
        false
    }

    fn note_add(
        &mut self,
        uid: PodUid,
        revision: u64,
        netns: NetnsId,
        error: Option<&str>,
        deadlines: &ZdsDeadlines,
    ) -> bool {
        let before = self.acked.remove(&uid).filter(|acked| acked.netns == Some(netns));
        let attempts = before.as_ref().map_or(0, |acked| acked.attempts).saturating_add(1);
        let refusal = error.map(|error| WorkloadRefusal {
            error: error.to_owned(),
            again: Instant::now() + deadlines.retry_delay(attempts),
        });
        let is_news = before.is_none_or(|acked| {
            error.is_none()
                || acked.revision != revision
                || acked.refusal.as_ref().map(|r| &*r.error) != error
        });
        self.acked.insert(uid, AckedWorkload { revision, netns: Some(netns), attempts, refusal });
        is_news
    }
}
