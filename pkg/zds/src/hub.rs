//! The one place that everybody shares: the agent, and the thread of each ztunnel.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use model::{PodUid, Reason};
use netns::{Netns, NetnsId};
use tracing::{info, warn};

use crate::ledger::WorkloadLedger;
use crate::notices::{Notice, NoticeBudget};
use crate::peer::{PeerNetns, PeerStanding, ZtunnelPeer, ZtunnelPod};
use crate::place_holders::PlaceHolders;
use crate::plan::{NextAction, RequestStep};
use crate::{Workload, ZdsDeadlines, ZdsState};

/// Event that the agent is notified of. Not in the order of its own calls: what it wants may have changed meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZdsEvent {
    /// How many ztunnels there are.
    Connections {
        /// So many are connected and have said hello.
        connected: usize,
        /// Of these, so many have acknowledged their snapshot.
        synced: usize,
        /// So many of the connected ones run in none of the node's ztunnel pods, as far as these are known.
        unknown: usize,
    },
    /// A ztunnel serves the workload; told by the first that does, and again by the newest.
    Accepted {
        /// UID of the pod.
        uid: PodUid,
        /// Network namespace of the pod.
        netns: NetnsId,
    },
    /// The newest ztunnel could not serve the workload, and no other one does. It is asked again; this is told again when
    /// the error is another one, and after each put.
    Refused {
        /// UID of the pod.
        uid: PodUid,
        /// Network namespace of the pod.
        netns: NetnsId,
        /// In ztunnel's words.
        error: String,
    },
}

/// The addresses of the network namespace that a ztunnel dialled from, by its connection, or why they are not known.
pub type PeerLocator = Box<dyn Fn(BorrowedFd<'_>) -> Result<BTreeSet<IpAddr>, Reason> + Send + Sync>;

/// Workloads that are desired, and the ztunnels that are notified of them. Clones share everything.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<HubState>,
}

struct HubState {
    /// Never held while sending, waiting or telling.
    ledger: Mutex<WorkloadLedger>,
    /// Held while telling how many connections there are, so that the last number told is the right one.
    counting: Mutex<()>,
    holders: Mutex<PlaceHolders>,
    notices: Mutex<NoticeBudget>,
    event_sink: Box<dyn Fn(ZdsEvent) + Send + Sync>,
    locate: PeerLocator,
    deadlines: ZdsDeadlines,
}

impl Hub {
    /// Wants nothing yet, and is not open. Events are sent on the threads of the ztunnels, which wait for that: `event_sink`
    /// should hand them on. `locate` is called for connections whose namespace is not that of a known ztunnel pod, on the
    /// thread that accepts them.
    pub fn new(event_sink: Box<dyn Fn(ZdsEvent) + Send + Sync>, locate: PeerLocator) -> Hub {
        Hub::with_deadlines(ZdsDeadlines::default(), event_sink, locate)
    }

    /// As [`Hub::new`], with other deadlines.
    pub fn with_deadlines(
        deadlines: ZdsDeadlines,
        event_sink: Box<dyn Fn(ZdsEvent) + Send + Sync>,
        locate: PeerLocator,
    ) -> Hub {
        let (ledger, counting) = (Mutex::default(), Mutex::default());
        let (holders, notices) = (Mutex::default(), Mutex::default());
        let shared = HubState { ledger, counting, holders, notices, event_sink, locate, deadlines };
        Hub { shared: Arc::new(shared) }
    }

    /// The node's ztunnel pods: by their network namespaces, or where these are not known by their addresses, a connection is
    /// known to be one's, and by their creation times which one is the newest. One of which that cannot be determined counts
    /// only while none of those is connected that stay, or that are known by their namespaces; of several such ones, the last to
    /// connect does.
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

    /// Since when a ztunnel waits for the end of its snapshot, and the UID of its pod, if it is known; `None`: none does. One
    /// that dials again and again waits since its first connection.
    pub fn longest_unsynced(&self) -> Option<(Instant, Option<PodUid>)> {
        self.lock_ledger().longest_unsynced(Instant::now())
    }

    /// Wants a workload from now on, in the place of one with the same UID. The newest ztunnel is told of it before all
    /// else that waits, unless it has acknowledged the very same; what it refused, it is asked again at once.
    pub fn set_workload(&self, workload: Workload) {
        self.lock_ledger().set_workload(workload);
    }

    /// Wants a workload no more. Every ztunnel that was told of it is told that.
    pub fn remove_workload(&self, uid: &PodUid) {
        self.lock_ledger().remove_workload(uid);
    }

    /// Tells ztunnels from now on. Call it when every workload that existed at the start has been put: ztunnel ends all
    /// that is missing in the snapshot. Before that, ztunnels can connect and say hello.
    pub fn start_snapshots(&self) {
        self.lock_ledger().start_snapshots();
    }

    /// Whether a ztunnel that is connected now serves a workload where the workload is now.
    pub fn is_served(&self, uid: &PodUid) -> bool {
        let ledger = self.lock_ledger();
        ledger.desired.get(uid).is_some_and(|desired| ledger.is_served(desired))
    }

    /// How things stand.
    pub fn state(&self) -> ZdsState {
        self.lock_ledger().state()
    }

    pub(crate) fn deadlines(&self) -> &ZdsDeadlines {
        &self.shared.deadlines
    }

    /// The network namespace of a connection's peer. Its addresses are left out where they cannot matter.
    pub(crate) fn locate_peer(&self, socket: &OwnedFd, now: Instant) -> PeerNetns {
        let id = Netns::of_socket(socket).map(|netns| netns.id());
        let known = id.as_ref().ok().copied();
        let (is_ztunnels, by_address) = {
            let pods = &self.lock_ledger().pods;
            let is_ztunnels = known.is_some() && pods.iter().any(|pod| pod.netns == known);
            (is_ztunnels, pods.iter().any(|pod| pod.netns.is_none()))
        };
        let has_use = !is_ztunnels && (by_address || self.lock_holders().table.has_room_for_unknown(now));
        let addresses = if has_use { (self.shared.locate)(socket.as_fd()) } else { Ok(BTreeSet::new()) };
        let problem =
            id.err().map(|error| error.to_string()).or(addresses.as_ref().err().map(Reason::to_string));
        if let Some(error) = problem.filter(|_| self.may_log(Notice::Unlocated, !is_ztunnels)) {
            warn!(target: "zds", %error, "cannot determine the pod of a connected ztunnel");
        }
        PeerNetns { id: known, addresses: addresses.unwrap_or_default() }
    }

    /// A peer, as far as it is known now.
    pub(crate) fn identify_peer(&self, netns: PeerNetns) -> ZtunnelPeer {
        ZtunnelPeer::new(netns, &self.lock_ledger().pods)
    }

    /// Whether a line about a connection may be logged; else it is counted, for [`Hub::log_suppressed`].
    pub(crate) fn may_log(&self, notice: Notice, of_unknown_peer: bool) -> bool {
        self.lock_notices().may_log(notice, of_unknown_peer, Instant::now())
    }

    /// Logs how many lines of periods that are over were suppressed.
    pub(crate) fn log_suppressed(&self) {
        let all = self.lock_notices().drain_summaries(Instant::now());
        for one in all {
            let (kind, peers) =
                (one.notice, if one.of_unknown_peer { "other processes" } else { "ztunnel pods" });
            warn!(target: "zds", %kind, peers, count = one.count, "ztunnel connection log lines suppressed");
        }
    }

    pub(crate) fn lock_holders(&self) -> MutexGuard<'_, PlaceHolders> {
        self.shared.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_notices(&self) -> MutexGuard<'_, NoticeBudget> {
        self.shared.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ztunnel has said hello on this connection. It is forgotten when the guard is dropped.
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

    /// Locks the ledger. After a thread has panicked, it is complete nevertheless: no change of it can stop half-way.
    fn lock_ledger(&self) -> MutexGuard<'_, WorkloadLedger> {
        self.shared.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a connected ztunnel.
pub(crate) struct ConnectionGuard<'a> {
    hub: &'a Hub,
    /// The number by which logs identify this ztunnel.
    pub(crate) id: u64,
}

impl ConnectionGuard<'_> {
    /// How its peer is known.
    pub(crate) fn peer_standing(&self) -> PeerStanding {
        self.hub
            .lock_ledger()
            .connections
            .get(&self.id)
            .map_or(PeerStanding::Unknown, |one| one.peer.standing)
    }

    /// Logs that it has connected.
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
        let retry = |attempts| self.hub.deadlines().retry_delay(attempts);
        let event = self.hub.lock_ledger().record_answer(self.id, step, error, retry);
        match event {
            // Others may have come or gone since it was counted.
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
