//! The next request to a ztunnel: the desired state minus what it has acknowledged, in an order that ztunnel accepts.
//!
//! Every ztunnel gets its snapshot: it is not ready before. Order: workloads that changed since it connected, workloads
//! that are no longer desired, the others, the end of the snapshot (once). After that the newest ztunnel gets changes,
//! and retries of what it refused. Older ones are about to end: they get only deletions of workloads that are no longer
//! desired, and workloads that each newer one has refused, or cannot serve before the end of its snapshot.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use model::PodUid;
use netns::{Netns, NetnsId};
use prost::Message as _;

use crate::connection_state::{AckedWorkload, ZtunnelConnection};
use crate::ledger::{DesiredWorkload, WorkloadLedger};
use crate::message::{AddWorkload, DelWorkload, KeepWorkload, RequestPayload, SnapshotSent, WorkloadRequest};

/// Next action of a ztunnel's thread.
#[derive(Debug)]
pub(crate) enum NextAction {
    Send(ZdsRequest),
    /// Wait until something changes, or this time has come.
    Wait(Option<Instant>),
}

/// Meaning of a request, recorded when the request is acknowledged.
#[derive(Debug)]
pub(crate) enum RequestStep {
    Add { uid: PodUid, revision: u64, netns: NetnsId },
    Keep { uid: PodUid, revision: u64 },
    Del { uid: PodUid },
    SnapshotSent,
}

/// A message and the network namespace that is sent with it.
#[derive(Debug)]
pub(crate) struct ZdsRequest {
    pub(crate) step: RequestStep,
    pub(crate) bytes: Vec<u8>,
    pub(crate) netns: Option<Arc<Netns>>,
}

impl fmt::Display for RequestStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestStep::Add { uid, netns, .. } => write!(f, "to serve {uid} in net:[{}]", netns.ino),
            RequestStep::Keep { uid, .. } => write!(f, "to keep {uid}"),
            RequestStep::Del { uid } => write!(f, "to serve {uid} no more"),
            RequestStep::SnapshotSent => f.write_str("the end of the snapshot"),
        }
    }
}

impl ZdsRequest {
    fn new(step: RequestStep, payload: RequestPayload) -> Self {
        Self { step, bytes: WorkloadRequest { payload: Some(payload) }.encode_to_vec(), netns: None }
    }

    fn snapshot_sent() -> Self {
        Self::new(RequestStep::SnapshotSent, RequestPayload::SnapshotSent(SnapshotSent {}))
    }

    fn del_workload(uid: &PodUid) -> Self {
        let message = DelWorkload { uid: uid.to_string() };
        Self::new(RequestStep::Del { uid: uid.clone() }, RequestPayload::Del(message))
    }

    /// Creates a request to serve a workload, or to keep it if its network namespace is not known.
    fn add_or_keep(desired: &DesiredWorkload) -> Self {
        let (workload, revision, uid) = (&desired.workload, desired.revision, desired.workload.uid.clone());
        let Some(netns) = &workload.netns else {
            let message = KeepWorkload { uid: uid.to_string() };
            return Self::new(RequestStep::Keep { uid, revision }, RequestPayload::Keep(message));
        };
        let message = AddWorkload { uid: uid.to_string(), workload_info: Some(workload.to_info()) };
        let step = RequestStep::Add { uid, revision, netns: netns.id() };
        Self { netns: Some(Arc::clone(netns)), ..Self::new(step, RequestPayload::Add(message)) }
    }
}

impl WorkloadLedger {
    /// Returns the next request to this ztunnel, or how long to wait for one.
    pub(crate) fn next_action(&self, id: u64, now: Instant) -> NextAction {
        let Some(connection) = self.connections.get(&id).filter(|_| self.open) else {
            return NextAction::Wait(None);
        };
        let request = self
            .fresh_request(id, connection)
            .or_else(|| self.delete_request(id, connection))
            .or_else(|| self.missing_request(id, connection))
            .or_else(|| (!connection.in_sync).then(ZdsRequest::snapshot_sent));
        request.map_or_else(|| self.retry_action(id, connection, now), NextAction::Send)
    }

    /// Returns the first workload that changed since this ztunnel became due for all of them, by connecting or as the
    /// newest.
    fn fresh_request(&self, id: u64, connection: &ZtunnelConnection) -> Option<ZdsRequest> {
        let fresh = self.desired.values().filter(|desired| desired.revision > connection.fresh_after);
        let lacking = fresh.filter(|desired| connection.lacks_workload(desired) && self.is_for(id, desired));
        lacking.min_by_key(|desired| desired.revision).map(ZdsRequest::add_or_keep)
    }

    fn missing_request(&self, id: u64, connection: &ZtunnelConnection) -> Option<ZdsRequest> {
        let mut lacking = self.desired.values().filter(|desired| connection.lacks_workload(desired));
        lacking.find(|desired| self.is_for(id, desired)).map(ZdsRequest::add_or_keep)
    }

    /// Returns a deletion for an acknowledged workload that is no longer desired, or has moved and is not to be served
    /// by this ztunnel.
    fn delete_request(&self, id: u64, connection: &ZtunnelConnection) -> Option<ZdsRequest> {
        let stale = connection.acked.iter().find(|(uid, acked)| {
            let desired = self.desired.get(*uid);
            desired.is_none_or(|desired| has_moved(acked, desired) && !self.is_for(id, desired))
        });
        stale.map(|(uid, _)| ZdsRequest::del_workload(uid))
    }

    /// Returns the retry of a refused workload that is due, or when the next one is.
    fn retry_action(&self, id: u64, connection: &ZtunnelConnection, now: Instant) -> NextAction {
        let refused = self.desired.values().filter_map(|desired| {
            let refusal = connection.acked.get(&desired.workload.uid)?.refusal.as_ref()?;
            let is_due = desired.workload.netns.is_some() && self.is_for(id, desired);
            is_due.then_some((refusal.again, desired))
        });
        match refused.min_by_key(|(again, _)| *again) {
            Some((again, desired)) if again <= now => NextAction::Send(ZdsRequest::add_or_keep(desired)),
            first => NextAction::Wait(first.map(|(again, _)| again)),
        }
    }
}

/// Returns whether the pod has another network namespace by now: a ztunnel that is about to end must not keep the old
/// one open.
fn has_moved(acked: &AckedWorkload, desired: &DesiredWorkload) -> bool {
    let now = desired.workload.netns.as_ref().map(|netns| netns.id());
    acked.netns.is_some() && now.is_some() && acked.netns != now
}
