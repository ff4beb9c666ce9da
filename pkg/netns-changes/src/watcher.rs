//! One epoll set for all watched namespaces.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netns::Netns;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::notification::Observed;
use crate::rest::Rest;
use crate::sockets::{Sockets, Source};
use crate::{Change, ChangeKinds, Error, NetnsDisturbance};

/// Maximum number of sockets per wait; the kernel reports the others at the next one.
const EVENTS: usize = 64;
/// Size of the receive buffer. A notification of a link is about 2 KiB long, and others are shorter. A longer one
/// counts as lost.
const BUFFER: usize = 16 * 1024;
/// Value of the eventfd in the epoll set, which no namespace has.
const CLOSED: u64 = u64::MAX;
/// Divisor of the process's limit of descriptors: the watches of all watchers together use at most this fraction, and
/// the rest is for other purposes.
const SHARE: u64 = 2;

/// Watches any number of network namespaces. All clones share one watcher.
///
/// All methods may be called from any thread, even while another one waits. A watched namespace costs two descriptors,
/// 5 KiB of kernel memory at rest and at most 128 KiB more while notifications are pending, and no thread; all share
/// one buffer.
pub struct ChangeWatcher<K>(Arc<EpollSet<K>>);

/// A watched network namespace. Dropping this ends the watch, and closes its sockets; pending changes are not reported.
///
/// A watched namespace stays alive, with its links and addresses, after its last process has ended.
#[must_use = "the watch ends when this is dropped"]
pub struct NetnsWatch<K> {
    set: Arc<EpollSet<K>>,
    id: WatchId,
}

/// Identifies one watch of a watcher: another watch of the same namespace, or with the same key, has another ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchId(pub(crate) u64);

struct EpollSet<K> {
    epoll: OwnedFd,
    closed: OwnedFd,
    watched: Mutex<WatchedNamespaces<K>>,
}

struct WatchedNamespaces<K> {
    namespaces: BTreeMap<WatchId, Watched<K>>,
    next_id: u64,
    buffer: Vec<u8>,
}

struct Watched<K> {
    key: K,
    sockets: Sockets,
    /// The last transaction of nf_tables that was read; `None`: there was none, or notifications were lost.
    last_transaction: Option<NetnsDisturbance>,
    rest: Rest,
    /// Whether the sockets are out of the epoll set until the rest ends.
    is_resting: bool,
}

impl<K: Clone> ChangeWatcher<K> {
    /// Creates a watcher without namespaces.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let closed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &closed, EventData::new_u64(CLOSED), EventFlags::IN)?;
        let watched = WatchedNamespaces { namespaces: BTreeMap::new(), next_id: 0, buffer: vec![0; BUFFER] };
        Ok(Self(Arc::new(EpollSet { epoll, closed, watched: Mutex::new(watched) })))
    }

    /// Watches a namespace. Changes after this returns are reported with `key`, such as a pod's UID, so observe the
    /// namespace afterwards. The kernel loads nf_tables for this if necessary.
    ///
    /// # Errors
    ///
    /// The namespace cannot be entered, the sockets cannot be opened in it, or the watches of all watchers together
    /// would use more than half of the descriptors that the process may open.
    pub fn watch(&self, key: K, netns: &Netns) -> Result<NetnsWatch<K>, Error> {
        self.watch_sources(key, netns, &Source::ALL)
    }

    /// Watches everything except the firewall, like [`ChangeWatcher::watch`], without slowing down foreign
    /// transactions.
    ///
    /// # Errors
    ///
    /// As [`ChangeWatcher::watch`].
    pub fn watch_network(&self, key: K, netns: &Netns) -> Result<NetnsWatch<K>, Error> {
        self.watch_sources(key, netns, &[Source::Network])
    }

    fn watch_sources(&self, key: K, netns: &Netns, sources: &[Source]) -> Result<NetnsWatch<K>, Error> {
        let most = getrlimit(Resource::Nofile).current.map_or(u64::MAX, |limit| limit / SHARE);
        let needed = Sockets::open_count() + sources.len();
        if u64::try_from(needed).is_ok_and(|needed| needed > most) {
            return Err(Error::DescriptorShare { most });
        }
        let sockets = Sockets::open_in(netns, sources)?;
        let mut watched = self.0.lock_watched();
        let id = WatchId(watched.next_id);
        watched.next_id += 1;
        sockets.register(self.0.epoll.as_fd(), |source| event_data(id, source))?;
        let (last_transaction, rest) = (None, Rest::default());
        watched.namespaces.insert(id, Watched { key, sockets, last_transaction, rest, is_resting: false });
        drop(watched);
        Ok(NetnsWatch { set: Arc::clone(&self.0), id })
    }

    /// Waits for changes and returns the pending ones, one [`Change`] for each watch; `None` after
    /// [`ChangeWatcher::close`]. The list is empty at the timeout, after a signal, and if what arrived was no change.
    ///
    /// The work is limited: the remaining changes of a busy namespace, and of more than 64 sockets at a time, follow at the
    /// next call. A process in a pod can change its namespace all the time, so the caller must limit how often it calls
    /// this, or stop watching the namespace.
    ///
    /// # Errors
    ///
    /// The kernel refuses to wait, which should not happen.
    pub fn wait_for_changes(&self, timeout: Option<Duration>) -> io::Result<Option<Vec<Change<K>>>> {
        let Some(events) = self.0.wait_for_events(timeout)? else { return Ok(None) };
        Ok(Some(self.0.lock_watched().read_events(&events)))
    }

    /// Waits like [`ChangeWatcher::wait_for_changes`], but reads no namespace before its rest has ended. Meanwhile,
    /// notifications are queued in the kernel, or lost, which counts as one more change.
    pub(crate) fn wait_at_pace(&self) -> io::Result<Option<Vec<Change<K>>>> {
        let (epoll, now) = (self.0.epoll.as_fd(), Instant::now());
        let next = self.0.lock_watched().end_rests(epoll, now);
        let Some(events) = self.0.wait_for_events(next.map(|next| next - now))? else { return Ok(None) };
        let mut watched = self.0.lock_watched();
        watched.begin_rests(epoll, &events, Instant::now());
        Ok(Some(watched.read_events(&events)))
    }

    /// Returns a change of each watched namespace, as after a loss of notifications.
    pub(crate) fn presume_changes(&self) -> Vec<Change<K>> {
        let watched = self.0.lock_watched();
        let keys = watched.namespaces.iter().map(|(id, watched)| (*id, watched.key.clone()));
        let kinds = ChangeKinds::LOST;
        keys.map(|(watch, key)| Change { key, watch, kinds, generation: None, writer: None }).collect()
    }
}

impl<K> ChangeWatcher<K> {
    /// Returns the number of watches.
    pub fn len(&self) -> usize {
        self.0.lock_watched().namespaces.len()
    }

    /// Returns whether no namespace is watched.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends every [`ChangeWatcher::wait_for_changes`], including later ones.
    pub fn close(&self) {
        let _ = rustix::io::write(&self.0.closed, &1_u64.to_ne_bytes()); // fails only if it is already written
    }
}

impl<K> Clone for ChangeWatcher<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> NetnsWatch<K> {
    /// Returns the ID that changes of this watch have.
    pub fn id(&self) -> WatchId {
        self.id
    }
}

impl<K: Clone> NetnsWatch<K> {
    /// Returns the last transaction of nf_tables in the namespace, whether its change was reported or not; `None`: there
    /// was none since the watch began, or notifications were lost. Reads what the kernel has queued, whose changes are
    /// not reported any more, so observe the rules afterwards.
    pub fn last_transaction(&self) -> Option<NetnsDisturbance> {
        let mut watched = self.set.lock_watched();
        let WatchedNamespaces { namespaces, buffer, .. } = &mut *watched;
        let watched = namespaces.get_mut(&self.id)?;
        let mut observed = Observed::default();
        watched.sockets.read_notifications(Source::Firewall, buffer, &mut observed);
        let _ = watched.record_notifications(self.id, observed);
        watched.last_transaction.clone()
    }
}

impl<K> Drop for NetnsWatch<K> {
    fn drop(&mut self) {
        let removed = self.set.lock_watched().namespaces.remove(&self.id);
        if let Some(Watched { sockets, .. }) = removed {
            sockets.deregister(self.set.epoll.as_fd());
        }
    }
}

impl<K> EpollSet<K> {
    fn lock_watched(&self) -> MutexGuard<'_, WatchedNamespaces<K>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for events. `None` after [`ChangeWatcher::close`].
    fn wait_for_events(&self, timeout: Option<Duration>) -> io::Result<Option<Vec<Event>>> {
        // A timeout too long for the kernel means no timeout.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok((!events.iter().any(|event| event.data.u64() == CLOSED)).then_some(events))
    }
}

impl<K: Clone> WatchedNamespaces<K> {
    /// Reads the sockets with events. A namespace that is no longer watched is skipped.
    fn read_events(&mut self, events: &[Event]) -> Vec<Change<K>> {
        let mut observed: BTreeMap<WatchId, Observed> = BTreeMap::new();
        for event in events {
            let (id, source) = id_and_source(event.data.u64());
            if let Some(Watched { sockets, .. }) = self.namespaces.get(&id) {
                sockets.read_notifications(source, &mut self.buffer, observed.entry(id).or_default());
            }
        }
        let change = |(id, observed): (WatchId, Observed)| {
            self.namespaces.get_mut(&id).and_then(|watched| watched.record_notifications(id, observed))
        };
        observed.into_iter().filter_map(change).collect()
    }

    /// Removes the namespaces with events from the epoll set for a while.
    fn begin_rests(&mut self, epoll: BorrowedFd<'_>, events: &[Event], now: Instant) {
        for event in events {
            let (id, _) = id_and_source(event.data.u64());
            if let Some(watched) = self.namespaces.get_mut(&id).filter(|watched| !watched.is_resting) {
                watched.sockets.deregister(epoll);
                watched.rest.begin(now);
                watched.is_resting = true;
            }
        }
    }

    /// Ends rests that are over, and returns when the next one ends.
    fn end_rests(&mut self, epoll: BorrowedFd<'_>, now: Instant) -> Option<Instant> {
        for (id, watched) in self.namespaces.iter_mut().filter(|(_, watched)| watched.is_resting) {
            if watched.rest.ends.is_some_and(|ends| ends > now) {
                continue;
            }
            watched.is_resting = watched.sockets.register(epoll, |source| event_data(*id, source)).is_err();
            if watched.is_resting {
                watched.sockets.deregister(epoll); // the socket that could be added
                watched.rest.begin(now);
            }
        }
        let resting = self.namespaces.values().filter(|watched| watched.is_resting);
        resting.filter_map(|watched| watched.rest.ends).min()
    }
}

impl<K: Clone> Watched<K> {
    /// Returns the change that these notifications are about, and remembers its transaction.
    fn record_notifications(&mut self, id: WatchId, observed: Observed) -> Option<Change<K>> {
        let change = observed.into_change(self.key.clone(), id)?;
        if change.kinds.contains(ChangeKinds::LOST) {
            self.last_transaction = None;
        } else if change.kinds.contains(ChangeKinds::FIREWALL) {
            let transaction = Change { kinds: ChangeKinds::FIREWALL, ..change.clone() };
            self.last_transaction = Some(NetnsDisturbance::new(transaction));
        }
        Some(change)
    }
}

impl<K> fmt::Debug for ChangeWatcher<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeWatcher").finish_non_exhaustive()
    }
}

impl<K> fmt::Debug for NetnsWatch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetnsWatch").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Returns the value of a socket in the epoll set. IDs are never reused, so an event that was taken from the set before
/// its watch ended cannot concern another watch.
fn event_data(WatchId(id): WatchId, source: Source) -> u64 {
    id << 1 | u64::from(source == Source::Network)
}

fn id_and_source(data: u64) -> (WatchId, Source) {
    (WatchId(data >> 1), if data & 1 == 1 { Source::Network } else { Source::Firewall })
}
