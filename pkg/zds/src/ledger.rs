//! What is desired, and who has acknowledged it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};

use model::PodUid;

use crate::{
    Workload, ZdsEvent,
    connection_state::ZtunnelConnection,
    peer::{PeerNetns, ZtunnelPeer, ZtunnelPod},
    plan::RequestStep,
    unsynced::UnsyncedZtunnels,
};

/// All that the hub knows.
#[derive(Debug, Default)]
pub(crate) struct WorkloadLedger {
    /// Whether ztunnels are sent anything.
    pub(crate) open: bool,
    /// By UID.
    pub(crate) desired: BTreeMap<PodUid, DesiredWorkload>,
    /// In the order of their hellos.
    pub(crate) connections: BTreeMap<u64, ZtunnelConnection>,
    /// The node's ztunnel pods, as the API shows them.
    pub(crate) pods: Vec<ZtunnelPod>,
    /// Ztunnels that have connected and have not acknowledged a snapshot.
    unsynced: UnsyncedZtunnels,
    /// Of the last put that changed something.
    revision: u64,
    joined: u64,
}

/// A workload that ztunnel shall serve.
#[derive(Debug)]
pub(crate) struct DesiredWorkload {
    pub(crate) workload: Workload,
    pub(crate) revision: u64,
    pub(crate) since: SystemTime,
}

impl DesiredWorkload {
    fn uid(&self) -> PodUid {
        self.workload.uid.clone()
    }
}

impl WorkloadLedger {
    pub(crate) fn set_workload(&mut self, workload: Workload) {
        let known = self.desired.get(&workload.uid);
        let is_same = known.is_some_and(|known| known.workload.is_same(&workload));
        if is_same && !self.is_refused(&workload.uid) {
            return;
        }
        self.revision += 1;
        let desired = DesiredWorkload { revision: self.revision, since: SystemTime::now(), workload };
        self.desired.insert(desired.workload.uid.clone(), desired);
        self.wake_all();
    }

    /// By the newest ztunnel.
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
            connection.fresh_after = self.revision; // what is there already is the snapshot
        }
        self.unsynced.begin_snapshots(Instant::now());
        self.wake_all();
    }

    /// The node's ztunnel pods; which of the connected ones is the newest follows from them. True if they are others than
    /// before.
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

    /// A ztunnel has said hello. What it is known by here.
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

    /// A ztunnel has gone. Answers with what the agent should know: a workload that only this one served, and that the
    /// newest has refused.
    pub(crate) fn remove_connection(&mut self, id: u64) -> Vec<ZdsEvent> {
        let Some(gone) = self.connections.get(&id) else { return Vec::new() };
        self.unsynced.record_disconnect(&gone.peer, Instant::now());
        let served: Vec<PodUid> = self
            .desired
            .values()
            .filter(|desired| gone.serves_workload(desired))
            .map(|desired| desired.uid())
            .collect();
        self.changing_newest(|ledger| drop(ledger.connections.remove(&id)));
        served.iter().filter_map(|uid| self.refusal_event(uid)).collect()
    }

    /// Whoever becomes the newest by this lacks what was put since its snapshot: that is many, and what comes is urgent.
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

    /// The ztunnel of the newest pod, or, where no connected one runs in a pod that is known and stays, the last one that
    /// connected.
    pub(crate) fn newest_connection(&self) -> Option<(u64, &ZtunnelConnection)> {
        let all = self.connections.iter().map(|(&id, connection)| (id, connection));
        all.max_by_key(|(id, connection)| (connection.peer.seniority(), *id))
    }

    /// Strangers, although it is known where the node's ztunnel pods run; each once.
    pub(crate) fn new_unknown_peers(&mut self) -> Vec<u64> {
        if !self.knows_places() {
            return Vec::new();
        }
        let news = |(id, one): (&u64, &mut ZtunnelConnection)| one.peer.take_unknown_notice().then_some(*id);
        self.connections.iter_mut().filter_map(news).collect()
    }

    /// Whether there are ztunnel pods, and a namespace or an address of each is known: a ztunnel that has just started dials before the
    /// API server has its address.
    fn knows_places(&self) -> bool {
        let is_known = |pod: &ZtunnelPod| pod.netns.is_some() || !pod.ips.is_empty();
        !self.pods.is_empty() && self.pods.iter().all(is_known)
    }

    pub(crate) fn is_newest(&self, id: u64) -> bool {
        self.newest_connection().is_some_and(|(newest, _)| newest == id)
    }

    /// Whether a ztunnel is to be sent a workload: within its snapshot, and after it the newest is. An older one is
    /// when each newer one has refused it, or has no whole snapshot yet and so is not ready.
    pub(crate) fn is_for(&self, id: u64, desired: &DesiredWorkload) -> bool {
        let Some(connection) = self.connections.get(&id) else { return false };
        if !connection.in_sync {
            return true;
        }
        let mut newer =
            self.connections.iter().filter(|(other, _)| **other != id && self.is_newer(**other, id));
        newer.all(|(_, newer)| !newer.in_sync || newer.refuses_workload(&desired.workload.uid))
    }

    /// Whether one connection counts as newer than another.
    fn is_newer(&self, one: u64, other: u64) -> bool {
        let rank = |id: u64| (self.connections.get(&id).map(|connection| connection.peer.seniority()), id);
        rank(one) > rank(other)
    }

    /// A connected ztunnel serves a workload where it is now: until a new one does, the old one carries its traffic.
    pub(crate) fn is_served(&self, desired: &DesiredWorkload) -> bool {
        self.connections.values().any(|connection| connection.serves_workload(desired))
    }

    /// Returns the event that nobody serves a workload, and nobody is about to: the newest has refused it, and so has every
    /// other that was sent it. `None` if that is not so.
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

    /// Notes that a ztunnel acknowledged a request, and tells what the agent should know of that.
    pub(crate) fn record_answer(
        &mut self,
        id: u64,
        step: RequestStep,
        error: Option<&str>,
        retry: impl Fn(u32) -> Duration,
    ) -> Option<ZdsEvent> {
        let is_sync = matches!(step, RequestStep::SnapshotSent);
        let subject = step.served_workload();
        let was_served = subject.as_ref().is_some_and(|(uid, ..)| self.is_served_by_another(id, uid));
        let is_newest = self.is_newest(id);
        let connection = self.connections.get_mut(&id)?;
        let is_news = connection.record_answer(step, error, retry);
        if is_sync {
            self.unsynced.record_sync(&connection.peer);
            return Some(self.connections_event());
        }
        let (uid, revision, netns) = subject?;
        // Meanwhile it may have been removed, or put again: then that is what counts.
        let is_current = self.desired.get(&uid).is_some_and(|desired| desired.revision == revision);
        if !is_news || !is_current {
            return None;
        }
        if error.is_some() {
            self.wake_all(); // an older one may be acked of it now
            return self.refusal_event(&uid);
        }
        (is_newest || !was_served).then_some(ZdsEvent::Accepted { uid, netns })
    }

    fn is_served_by_another(&self, id: u64, uid: &PodUid) -> bool {
        let Some(desired) = self.desired.get(uid) else { return false };
        self.connections.iter().any(|(other, connection)| *other != id && connection.serves_workload(desired))
    }

    /// How many ztunnels there are.
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

    /// Since when a ztunnel that is connected, or was a moment ago, waits for the end of its snapshot; and its pod's UID.
    /// Strangers do not count where the node's ztunnel pods are known: whether they are served is no matter of the node.
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
