//! Desired workloads, and the ztunnels that have acknowledged them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::Instant;

use model::PodUid;

use crate::{
    Workload, ZdsDeadlines, ZdsEvent,
    connection_state::ZtunnelConnection,
    peer::{PeerNetns, ZtunnelPeer, ZtunnelPod},
    plan::RequestStep,
    unsynced::UnsyncedZtunnels,
};

/// State of the hub.
#[derive(Debug, Default)]
pub(crate) struct WorkloadLedger {
    /// Whether ztunnels are sent requests.
    pub(crate) open: bool,
    /// Desired workloads by UID.
    pub(crate) desired: BTreeMap<PodUid, DesiredWorkload>,
    /// Connections in the order of their hellos.
    pub(crate) connections: BTreeMap<u64, ZtunnelConnection>,
    /// The node's ztunnel pods, as the API shows them.
    pub(crate) pods: Vec<ZtunnelPod>,
    /// Ztunnels that have connected and not acknowledged a snapshot.
    unsynced: UnsyncedZtunnels,
    /// Revision of the last change of a workload.
    revision: u64,
    joined: u64,
}

/// A workload that ztunnel shall serve.
#[derive(Debug)]
pub(crate) struct DesiredWorkload {
    pub(crate) workload: Workload,
    pub(crate) revision: u64,
}

impl WorkloadLedger {
    pub(crate) fn set_workload(&mut self, workload: Workload) {
        let known = self.desired.get(&workload.uid);
        let is_same = known.is_some_and(|known| known.workload.is_same(&workload));
        if is_same && !self.is_refused(&workload.uid) {
            return;
        }
        self.revision += 1;
        let desired = DesiredWorkload { revision: self.revision, workload };
        self.desired.insert(desired.workload.uid.clone(), desired);
        self.wake_all();
    }

    /// Returns whether the newest ztunnel refuses a workload.
    fn is_refused(&self, uid: &PodUid) -> bool {
        self.newest_connection().is_some_and(|(_, newest)| newest.refuses_workload(uid))
    }

    pub(crate) fn remove_workload(&mut self, uid: &PodUid) {
        if self.desired.remove(uid).is_some() {
            self.wake_all();
        }
    }

    pub(crate) fn start_snapshots(&mut self) {
        self.open = true;
        for connection in self.connections.values_mut() {
            connection.fresh_after = self.revision; // earlier workloads belong to the snapshot
        }
        self.unsynced.begin_snapshots(Instant::now());
        self.wake_all();
    }

    /// Sets the node's ztunnel pods, from which the newest connected ztunnel follows. Returns whether they changed.
    pub(crate) fn set_pods(&mut self, pods: Vec<ZtunnelPod>) -> bool {
        if self.pods == pods {
            return false;
        }
        self.pods = pods;
        self.changing_newest(|ledger| {
            for connection in ledger.connections.values_mut() {
                connection.peer.identify_pod(&ledger.pods);
            }
        });
        true
    }

    /// Adds a ztunnel that has sent its hello. Returns the number of its connection.
    pub(crate) fn add_connection(&mut self, version: i32, netns: PeerNetns, event: OwnedFd) -> u64 {
        self.joined += 1;
        let id = self.joined;
        let peer = ZtunnelPeer::new(netns, &self.pods);
        self.unsynced.record_connect(&peer, Instant::now());
        self.changing_newest(|ledger| {
            let connection = ZtunnelConnection::new(version, ledger.revision, peer, event);
            ledger.connections.insert(id, connection);
        });
        id
    }

    /// Removes the connection of a ztunnel. Returns events for the agent: workloads that only this one served, and that
    /// the newest has refused.
    pub(crate) fn remove_connection(&mut self, id: u64) -> Vec<ZdsEvent> {
        let Some(gone) = self.connections.get(&id) else { return Vec::new() };
        self.unsynced.record_disconnect(&gone.peer, Instant::now());
        let served = self.desired.iter().filter(|(_, desired)| gone.serves_workload(desired));
        let served: Vec<PodUid> = served.map(|(uid, _)| uid.clone()).collect();
        self.changing_newest(|ledger| drop(ledger.connections.remove(&id)));
        served.iter().filter_map(|uid| self.refusal_event(uid)).collect()
    }

    /// Applies a change that may make another ztunnel the newest, which then lacks all changes since its snapshot:
    /// these are many, and later ones are urgent.
    fn changing_newest(&mut self, change: impl FnOnce(&mut WorkloadLedger)) {
        let before = self.newest_connection().map(|(id, _)| id);
        change(self);
        let newest = self.newest_connection().map(|(id, _)| id);
        if let Some(next) =
            newest.filter(|id| Some(*id) != before).and_then(|id| self.connections.get_mut(&id))
        {
            next.fresh_after = self.revision;
        }
        self.wake_all();
    }

    /// Returns the ztunnel of the newest pod, or, if no connected one runs in a known pod that stays, the last one that
    /// connected.
    pub(crate) fn newest_connection(&self) -> Option<(u64, &ZtunnelConnection)> {
        let all = self.connections.iter().map(|(&id, connection)| (id, connection));
        all.max_by_key(|(id, connection)| (connection.peer.seniority(), *id))
    }

    /// Returns connections of unknown peers, each once, if the node's ztunnel pods are known.
    pub(crate) fn new_unknown_peers(&mut self) -> Vec<u64> {
        if !self.knows_places() {
            return Vec::new();
        }
        let news = |(id, one): (&u64, &mut ZtunnelConnection)| one.peer.take_unknown_notice().then_some(*id);
        self.connections.iter_mut().filter_map(news).collect()
    }

    /// Returns whether there are ztunnel pods, and a namespace or an address of each is known: a ztunnel that has just
    /// started connects before the API server has its address.
    fn knows_places(&self) -> bool {
        let is_known = |pod: &ZtunnelPod| pod.netns.is_some() || !pod.ips.is_empty();
        !self.pods.is_empty() && self.pods.iter().all(is_known)
    }

    pub(crate) fn is_newest(&self, id: u64) -> bool {
        self.newest_connection().is_some_and(|(newest, _)| newest == id)
    }

    /// Returns whether a ztunnel is to be sent a workload: within its snapshot, and afterwards if it is the newest. An
    /// older one is sent it if each newer one has refused it, or has not acknowledged its snapshot and so is not ready.
    pub(crate) fn is_for(&self, id: u64, desired: &DesiredWorkload) -> bool {
        let Some(connection) = self.connections.get(&id) else { return false };
        if !connection.in_sync {
            return true;
        }
        let mut newer =
            self.connections.iter().filter(|(other, _)| **other != id && self.is_newer(**other, id));
        newer.all(|(_, newer)| !newer.in_sync || newer.refuses_workload(&desired.workload.uid))
    }

    /// Returns whether one connection counts as newer than another.
    fn is_newer(&self, one: u64, other: u64) -> bool {
        let rank = |id: u64| (self.connections.get(&id).map(|connection| connection.peer.seniority()), id);
        rank(one) > rank(other)
    }

    /// Returns whether a connected ztunnel serves a workload in its present namespace: until a new ztunnel does, the
    /// old one carries its traffic.
    pub(crate) fn is_served(&self, desired: &DesiredWorkload) -> bool {
        self.connections.values().any(|connection| connection.serves_workload(desired))
    }

    /// Returns the event that no ztunnel serves a workload, or is about to: the newest has refused it, and so has every
    /// other one that was sent it. `None` otherwise.
    fn refusal_event(&self, uid: &PodUid) -> Option<ZdsEvent> {
        let desired = self.desired.get(uid)?;
        let netns = desired.workload.netns.as_ref()?.id();
        let (_, newest) = self.newest_connection()?;
        let refusal = newest.acked.get(uid)?.refusal.as_ref()?;
        let is_coming = |id: &u64, connection: &ZtunnelConnection| {
            connection.lacks_workload(desired) && self.is_for(*id, desired)
        };
        let is_open = self.is_served(desired) || self.connections.iter().any(|(id, one)| is_coming(id, one));
        (!is_open).then(|| ZdsEvent::Refused { uid: uid.clone(), netns, error: refusal.error.clone() })
    }

    /// Records the acknowledgement of a request. Returns the event for the agent, if any.
    pub(crate) fn record_answer(
        &mut self,
        id: u64,
        step: RequestStep,
        error: Option<&str>,
        deadlines: &ZdsDeadlines,
    ) -> Option<ZdsEvent> {
        let is_sync = matches!(step, RequestStep::SnapshotSent);
        let subject = match &step {
            RequestStep::Add { uid, revision, netns } => Some((uid.clone(), *revision, *netns)),
            _ => None,
        };
        let was_served = subject.as_ref().is_some_and(|(uid, ..)| self.is_served_by_another(id, uid));
        let is_newest = self.is_newest(id);
        let connection = self.connections.get_mut(&id)?;
        let is_news = connection.record_answer(step, error, deadlines);
        if is_sync {
            self.unsynced.record_sync(&connection.peer);
            return Some(self.connections_event());
        }
        let (uid, revision, netns) = subject?;
        // The workload may have been removed or changed meanwhile; then this answer is obsolete.
        let is_current = self.desired.get(&uid).is_some_and(|desired| desired.revision == revision);
        if !is_news || !is_current {
            return None;
        }
        if error.is_some() {
            self.wake_all(); // an older ztunnel may be sent the workload now
            return self.refusal_event(&uid);
        }
        (is_newest || !was_served).then_some(ZdsEvent::Accepted { uid, netns })
    }

    fn is_served_by_another(&self, id: u64, uid: &PodUid) -> bool {
        let Some(desired) = self.desired.get(uid) else { return false };
        self.connections.iter().any(|(other, connection)| *other != id && connection.serves_workload(desired))
    }

    /// Returns the numbers of ztunnels as an event.
    pub(crate) fn connections_event(&self) -> ZdsEvent {
        let number =
            |is: fn(&ZtunnelConnection) -> bool| self.connections.values().filter(|one| is(one)).count();
        let unknown = if self.knows_places() { number(|one| one.peer.is_unknown_peer()) } else { 0 };
        ZdsEvent::Connections {
            connected: self.connections.len(),
            synced: number(|one| one.in_sync),
            unknown,
        }
    }

    /// Returns since when a ztunnel that is connected, or was a moment ago, waits for the end of its snapshot; and its
    /// pod's UID. Unknown peers do not count if the node's ztunnel pods are known: serving them is not the node's
    /// concern.
    pub(crate) fn longest_unsynced(&mut self, now: Instant) -> Option<(Instant, Option<PodUid>)> {
        let connected: Vec<&ZtunnelPeer> =
            self.connections.values().map(|connection| &connection.peer).collect();
        self.unsynced.longest_waiting(now, &connected, !self.pods.is_empty()).filter(|_| self.open)
    }

    fn wake_all(&self) {
        for connection in self.connections.values() {
            connection.wake_thread();
        }
    }
}
