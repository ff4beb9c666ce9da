//! State that the agent and the thread of each ztunnel share.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use model::{PodUid, Reason};
use netns::{Netns, NetnsId};
use tracing::{info, warn};

use crate::ledger::WorkloadLedger;
use crate::notices::{Notice, NoticeBudget};
use crate::peer::{PeerNetns, PeerStanding, ZtunnelPeer, ZtunnelPod};
use crate::places::PlaceTable;
use crate::plan::{NextAction, RequestStep};
use crate::{ConnectionState, Workload, ZdsDeadlines};

/// Event for the agent. Events do not follow the order of the agent's own calls: the desired state may have changed
/// meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZdsEvent {
    /// Numbers of ztunnels.
    Connections {
        /// Ztunnels that are connected and have sent their hello.
        connected: usize,
        /// Of these, ztunnels that have acknowledged their snapshot.
        synced: usize,
        /// Of the connected ones, those that run in none of the node's ztunnel pods, as far as these are known.
        unknown: usize,
    },
    /// A ztunnel serves the workload; sent for the first that does, and again for the newest.
    Accepted {
        /// UID of the pod.
        uid: PodUid,
        /// Network namespace of the pod.
        netns: NetnsId,
    },
    /// The newest ztunnel could not serve the workload, and no other one does. The request is retried; the event is
    /// sent again when the error changes, and after each change of the workload.
    Refused {
        /// UID of the pod.
        uid: PodUid,
        /// Network namespace of the pod.
        netns: NetnsId,
        /// Error text of ztunnel.
        error: String,
    },
}

/// Returns the addresses of the network namespace from which a ztunnel connected, or why they are not known.
pub type PeerLocator = Box<dyn Fn(&Netns) -> Result<BTreeSet<IpAddr>, Reason> + Send + Sync>;

/// Desired workloads, and the ztunnels that are sent them. Clones share everything.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<HubState>,
}

struct HubState {
    /// Never locked while sending, waiting or reporting.
    ledger: Mutex<WorkloadLedger>,
    /// Held while the number of connections is reported, so that the last reported number is the current one.
    counting: Mutex<()>,
    places: Mutex<PlaceTable>,
    notices: Mutex<NoticeBudget>,
    event_sink: Box<dyn Fn(ZdsEvent) + Send + Sync>,
    locate: PeerLocator,
    deadlines: ZdsDeadlines,
}

impl Hub {
    /// Creates a hub without workloads that sends no snapshots yet. Events are sent on the threads of the ztunnels,
    /// which wait for that: `event_sink` should only pass them on. `locate` is called for connections whose namespace
    /// is not that of a known ztunnel pod, on the thread that accepts them.
    pub fn new(
        deadlines: ZdsDeadlines,
        event_sink: Box<dyn Fn(ZdsEvent) + Send + Sync>,
        locate: PeerLocator,
    ) -> Hub {
        let (ledger, counting) = (Mutex::default(), Mutex::default());
        let (places, notices) = (Mutex::default(), Mutex::default());
        let shared = HubState { ledger, counting, places, notices, event_sink, locate, deadlines };
        Hub { shared: Arc::new(shared) }
    }

    /// Sets the node's ztunnel pods. A connection is attributed to one by its network namespace, or by its address if
    /// the namespace is not known; creation times determine which one is the newest. A connection that cannot be
    /// attributed counts only while no connected ztunnel has a pod that stays, or is known by its namespace; of several
    /// such connections, the last one counts.
    pub fn set_ztunnels(&self, pods: Vec<ZtunnelPod>) {
        if self.lock_ledger().set_pods(pods) {
            self.report_unknown_peers();
            self.report_connections();
        }
    }

    fn report_unknown_peers(&self) {
        let unknown_peers = self.lock_ledger().new_unknown_peers();
        for id in unknown_peers.into_iter().filter(|_| self.may_log(Notice::UnknownPeer, true)) {
            warn!(
                target: "zds",
                connection = id,
                "connected ztunnel runs in none of the node's ztunnel pods: it receives new pods only while none of these is connected"
            );
        }
    }

    /// Returns since when a ztunnel waits for the end of its snapshot, and the UID of its pod, if known; `None`: none
    /// does. A ztunnel that reconnects repeatedly waits since its first connection.
    pub fn longest_unsynced(&self) -> Option<(Instant, Option<PodUid>)> {
        self.lock_ledger().longest_unsynced(Instant::now())
    }

    /// Adds a desired workload, or replaces the one with the same UID. The newest ztunnel is sent it before all other
    /// pending workloads, unless it has acknowledged an equal one; a refused one is retried immediately.
    pub fn set_workload(&self, workload: Workload) {
        self.lock_ledger().set_workload(workload);
    }

    /// Removes a desired workload. Every ztunnel that was sent it is sent its deletion.
    pub fn remove_workload(&self, uid: &PodUid) {
        self.lock_ledger().remove_workload(uid);
    }

    /// Starts sending to ztunnels. Must be called when every workload that existed at the start has been set: ztunnel
    /// stops serving all that are missing in the snapshot. Before that, ztunnels can connect and send their hello.
    pub fn start_snapshots(&self) {
        self.lock_ledger().start_snapshots();
    }

    /// Returns whether ztunnels are sent snapshots.
    pub fn is_open(&self) -> bool {
        self.lock_ledger().open
    }

    /// Returns whether a connected ztunnel serves a workload in the workload's present network namespace.
    pub fn is_served(&self, uid: &PodUid) -> bool {
        let ledger = self.lock_ledger();
        ledger.desired.get(uid).is_some_and(|desired| ledger.is_served(desired))
    }

    /// Returns the connected ztunnels in the order of their hellos.
    pub fn list_connections(&self) -> Vec<ConnectionState> {
        self.lock_ledger().connection_states()
    }

    pub(crate) fn deadlines(&self) -> &ZdsDeadlines {
        &self.shared.deadlines
    }

    /// Returns the network namespace of a connection's peer. Its addresses are left out where they are irrelevant. The
    /// peer's process ID is useless: a ztunnel is outside our PID namespace, for which the kernel reports 0.
    pub(crate) fn locate_peer(&self, socket: &OwnedFd, now: Instant) -> PeerNetns {
        let netns = Netns::from_socket(socket);
        let known = netns.as_ref().ok().map(Netns::id);
        let (is_ztunnels, by_address) = {
            let pods = &self.lock_ledger().pods;
            let is_ztunnels = known.is_some() && pods.iter().any(|pod| pod.netns == known);
            (is_ztunnels, pods.iter().any(|pod| pod.netns.is_none()))
        };
        let has_use = !is_ztunnels && (by_address || self.lock_places().has_room_for_unknown(now));
        let addresses = match netns {
            Ok(netns) if has_use => (self.shared.locate)(&netns),
            Ok(_) => Ok(BTreeSet::new()),
            Err(error) => Err(error.to_string().into()),
        };
        if let Err(error) = &addresses
            && self.may_log(Notice::Unlocated, !is_ztunnels)
        {
            warn!(target: "zds", %error, "cannot determine the pod of a connected ztunnel");
        }
        PeerNetns { id: known, addresses: addresses.unwrap_or_default() }
    }

    /// Identifies a peer by what is known now.
    pub(crate) fn identify_peer(&self, netns: PeerNetns) -> ZtunnelPeer {
        ZtunnelPeer::new(netns, &self.lock_ledger().pods)
    }

    /// Returns whether a message about a connection may be logged; otherwise it is counted, for
    /// [`Hub::log_suppressed`].
    pub(crate) fn may_log(&self, notice: Notice, of_unknown_peer: bool) -> bool {
        self.lock_notices().may_log(notice, of_unknown_peer, Instant::now())
    }

    /// Logs how many messages were suppressed in periods that have ended.
    pub(crate) fn log_suppressed(&self) {
        let all = self.lock_notices().drain_summaries(Instant::now());
        for (kind, of_unknown_peer, count) in all {
            let peers = if of_unknown_peer { "other processes" } else { "ztunnel pods" };
            warn!(target: "zds", %kind, peers, count, "ztunnel connection log lines suppressed");
        }
    }

    pub(crate) fn lock_places(&self) -> MutexGuard<'_, PlaceTable> {
        self.shared.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_notices(&self) -> MutexGuard<'_, NoticeBudget> {
        self.shared.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a ztunnel that has sent its hello. The connection is removed when the guard is dropped.
    pub(crate) fn add_connection(
        &self,
        version: i32,
        netns: PeerNetns,
        event: OwnedFd,
    ) -> ConnectionGuard<'_> {
        let id = self.lock_ledger().add_connection(version, netns, event);
        let guard = ConnectionGuard { hub: self, id };
        self.report_unknown_peers();
        self.report_connections();
        guard
    }

    fn report_connections(&self) {
        let _in_order = self.shared.counting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.lock_ledger().connections_event();
        (self.shared.event_sink)(count);
    }

    /// Locks the ledger. It is consistent even after a thread has panicked: no change of it can stop half-way.
    fn lock_ledger(&self) -> MutexGuard<'_, WorkloadLedger> {
        self.shared.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Registration of a connected ztunnel.
pub(crate) struct ConnectionGuard<'a> {
    hub: &'a Hub,
    /// The number by which logs identify this ztunnel.
    pub(crate) id: u64,
}

impl ConnectionGuard<'_> {
    /// Returns how the peer is known.
    pub(crate) fn peer_standing(&self) -> PeerStanding {
        self.hub
            .lock_ledger()
            .connections
            .get(&self.id)
            .map_or(PeerStanding::Unknown, |one| one.peer.standing)
    }

    /// Logs the connection.
    pub(crate) fn log_connected(&self, version: i32) {
        let standing = self.peer_standing();
        if self.hub.may_log(Notice::Connected, standing == PeerStanding::Unknown) {
            info!(target: "zds", connection = self.id, version, known_by = %standing, "ztunnel connected");
        }
    }

    pub(crate) fn next_action(&self) -> NextAction {
        self.hub.lock_ledger().next_action(self.id, Instant::now())
    }

    pub(crate) fn record_answer(&self, step: RequestStep, error: Option<&str>) {
        let event = self.hub.lock_ledger().record_answer(self.id, step, error, self.hub.deadlines());
        match event {
            // The number may have changed since the event was created.
            Some(ZdsEvent::Connections { .. }) => self.hub.report_connections(),
            Some(event) => (self.hub.shared.event_sink)(event),
            None => {}
        }
    }
}

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        let events = self.hub.lock_ledger().remove_connection(self.id);
        self.hub.report_connections();
        events.into_iter().for_each(|event| (self.hub.shared.event_sink)(event));
    }
}
