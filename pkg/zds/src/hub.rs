//! The one place that everybody shares: the agent, and the thread of each ztunnel.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use model::PodUid;
use netns::NetnsId;
use tracing::warn;

use crate::ledger::WorkloadLedger;
use crate::peer::{ZtunnelPeer, ZtunnelPod};
use crate::plan::{NextAction, RequestStep};
use crate::{Workload, ZdsDeadlines, ZdsState};

/// What the agent is told. Not in the order of its own calls: what it wants may have changed meanwhile.
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
        /// Its network namespace.
        netns: NetnsId,
    },
    /// The newest ztunnel could not serve the workload, and no other one does. It is asked again; this is told again when
    /// the error is another one, and after each put.
    Refused {
        /// UID of the pod.
        uid: PodUid,
        /// Its network namespace.
        netns: NetnsId,
        /// In ztunnel's words.
        error: String,
    },
}

/// The addresses of the network namespace that a ztunnel dialled from, by its connection; `None`: they are not known.
pub type PeerLocator = Box<dyn Fn(BorrowedFd<'_>) -> BTreeSet<IpAddr> + Send + Sync>;

/// Workloads that are wanted, and the ztunnels that are told of them. Clones share everything.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<HubState>,
}

struct HubState {
    /// Never held while sending, waiting or telling.
    ledger: Mutex<WorkloadLedger>,
    /// Held while telling how many connections there are, so that the last number told is the right one.
    counting: Mutex<()>,
    tell: Box<dyn Fn(ZdsEvent) + Send + Sync>,
    locate: PeerLocator,
    deadlines: ZdsDeadlines,
}

impl Hub {
    /// Wants nothing yet, and is not open. Events are told on the threads of the ztunnels, which wait for that: `tell`
    /// should hand them on. `locate` is called on these threads, too, once for each connection.
    #[must_use]
    pub fn new(tell: Box<dyn Fn(ZdsEvent) + Send + Sync>, locate: PeerLocator) -> Hub {
        Hub::with_deadlines(ZdsDeadlines::default(), tell, locate)
    }

    /// As [`Hub::new`], with other deadlines.
    #[must_use]
    pub fn with_deadlines(
        deadlines: ZdsDeadlines,
        tell: Box<dyn Fn(ZdsEvent) + Send + Sync>,
        locate: PeerLocator,
    ) -> Hub {
        let shared =
            HubState { ledger: Mutex::default(), counting: Mutex::default(), tell, locate, deadlines };
        Hub { shared: Arc::new(shared) }
    }

    /// The node's ztunnel pods: by their addresses a connection is known to be one's, and by their creation times which one
    /// is the newest. One of which that cannot be determined counts only while none of those is connected that stay; of several
    /// such ones, the last to connect does.
    pub fn set_ztunnels(&self, pods: Vec<ZtunnelPod>) {
        if self.ledger().set_pods(pods) {
            self.report_strangers();
            self.tell_connections();
        }
    }

    fn report_strangers(&self) {
        let strangers = self.ledger().strangers();
        for id in strangers {
            warn!(
                target: "zds",
                connection = id,
                "connected ztunnel runs in none of the node's ztunnel pods: it receives new pods only while none of these is connected"
            );
        }
    }

    /// Since when a ztunnel waits for the end of its snapshot, and the UID of its pod, if it is known; `None`: none does. One
    /// that dials again and again waits since its first connection.
    #[must_use]
    pub fn unsynced(&self) -> Option<(Instant, Option<PodUid>)> {
        self.ledger().unsynced(Instant::now())
    }

    /// Wants a workload from now on, in the place of one with the same UID. The newest ztunnel is told of it before all
    /// else that waits, unless it has acknowledged the very same; what it refused, it is asked again at once.
    pub fn put(&self, workload: Workload) {
        self.ledger().put(workload);
    }

    /// Wants a workload no more. Every ztunnel that was told of it is told that.
    pub fn remove(&self, uid: &PodUid) {
        self.ledger().remove(uid);
    }

    /// Tells ztunnels from now on. Call it when every workload that existed at the start has been put: ztunnel ends all
    /// that is missing in the snapshot. Before that, ztunnels can connect and say hello.
    pub fn open(&self) {
        self.ledger().open();
    }

    /// How things stand.
    #[must_use]
    pub fn state(&self) -> ZdsState {
        self.ledger().state()
    }

    pub(crate) fn deadlines(&self) -> &ZdsDeadlines {
        &self.shared.deadlines
    }

    /// A ztunnel has said hello on this connection. It is forgotten when the guard is dropped.
    pub(crate) fn join(&self, version: i32, socket: &OwnedFd, event: OwnedFd) -> ConnectionGuard<'_> {
        let peer = ZtunnelPeer::new((self.shared.locate)(socket.as_fd()));
        let id = self.ledger().join(version, peer, event);
        let guard = ConnectionGuard { hub: self, id };
        self.report_strangers();
        self.tell_connections();
        guard
    }

    fn tell_connections(&self) {
        let _in_order = self.shared.counting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.ledger().count();
        (self.shared.tell)(count);
    }

    /// What a thread that panicked leaves is complete: no change of the ledger can stop half-way.
    fn ledger(&self) -> MutexGuard<'_, WorkloadLedger> {
        self.shared.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("ledger", &*self.ledger()).finish_non_exhaustive()
    }
}

/// The place of a connected ztunnel.
pub(crate) struct ConnectionGuard<'a> {
    hub: &'a Hub,
    id: u64,
}

impl ConnectionGuard<'_> {
    /// What this ztunnel is called in logs.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn next(&self) -> NextAction {
        self.hub.ledger().next(self.id, Instant::now())
    }

    pub(crate) fn acknowledged(&self, step: RequestStep, error: Option<&str>) {
        let retry = |attempts| self.hub.deadlines().retry(attempts);
        let event = self.hub.ledger().acknowledged(self.id, step, error, retry);
        match event {
            // Others may have come or gone since it was counted.
            Some(ZdsEvent::Connections { .. }) => self.hub.tell_connections(),
            Some(event) => (self.hub.shared.tell)(event),
            None => {}
        }
    }
}

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        let events = self.hub.ledger().leave(self.id);
        self.hub.tell_connections();
        events.into_iter().for_each(|event| (self.hub.shared.tell)(event));
    }
}
