//! One epoll set for all watched namespaces.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netns::Netns;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use crate::notification::Observed;
use crate::sockets::{Sockets, Source};
use crate::{Change, Error};

/// Sockets that one wait reads; the kernel reports the others at the next one.
const EVENTS: usize = 64;
/// A notification of a link is about 2 KiB long, and the others are shorter. One that is longer than this counts as lost.
const BUFFER: usize = 16 * 1024;
/// The value of the eventfd in the epoll set, which no namespace has.
const CLOSED: u64 = u64::MAX;

/// Watches any number of network namespaces, each under a key of the caller, such as a pod's UID.
///
/// All methods may be called from any thread, also while another one waits. A watched namespace lives on, with its links and
/// addresses, when its last process ends: it must be unwatched then. It costs two descriptors, 5 KiB of the kernel's memory at
/// rest and at most 128 KiB more while notifications are pending, and no thread; one buffer is shared by all.
pub struct ChangeWatcher<K> {
    epoll: OwnedFd,
    closed: OwnedFd,
    watched: Mutex<WatchedNamespaces<K>>,
}

struct WatchedNamespaces<K> {
    ids: BTreeMap<K, u64>,
    namespaces: BTreeMap<u64, (K, Sockets)>,
    next_id: u64,
    buffer: Vec<u8>,
}

impl<K: Ord + Clone> ChangeWatcher<K> {
    /// Makes a watcher of no namespace.
    ///
    /// # Errors
    ///
    /// If the process has no descriptor left.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let closed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &closed, EventData::new_u64(CLOSED), EventFlags::IN)?;
        let watched = WatchedNamespaces {
            ids: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            next_id: 0,
            buffer: vec![0; BUFFER],
        };
        Ok(Self { epoll, closed, watched: Mutex::new(watched) })
    }

    /// Watches a namespace. Whatever changes after this returns is reported, so observe the namespace after it. Replaces the
    /// namespace that is watched under this key, if there is one; it stays if this fails. The kernel loads nf_tables for this
    /// if it has not yet.
    ///
    /// # Errors
    ///
    /// If the namespace cannot be entered, or the sockets cannot be opened in it.
    pub fn watch(&self, key: K, netns: &Netns) -> Result<(), Error> {
        let sockets = Sockets::open_in(netns)?;
        let mut watched = self.watched();
        let id = watched.next_id;
        watched.next_id += 1;
        sockets.register(self.epoll.as_fd(), |source| event_data(id, source))?;
        watched.namespaces.insert(id, (key.clone(), sockets));
        let replaced = watched.ids.insert(key, id).and_then(|id| watched.namespaces.remove(&id));
        drop(watched);
        self.close_sockets(replaced);
        Ok(())
    }

    /// Ends the watch of a namespace and closes its sockets. Changes that are pending are not reported.
    pub fn unwatch(&self, key: &K) {
        let mut watched = self.watched();
        let removed = watched.ids.remove(key).and_then(|id| watched.namespaces.remove(&id));
        drop(watched);
        self.close_sockets(removed);
    }

    /// Returns the number of watched namespaces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.watched().ids.len()
    }

    /// Whether no namespace is watched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for changes and returns those that are pending, one [`Change`] for each namespace; `None` after
    /// [`ChangeWatcher::close`]. The list is empty at the timeout, after a signal, and when what came was no change.
    ///
    /// The work is bounded: what is left of a busy namespace, and of more than 32 at a time, follows at the next call. A
    /// process in a pod can change its namespace all the time, so the caller limits how often it calls this, or watches the
    /// namespace no longer.
    ///
    /// # Errors
    ///
    /// If the kernel refuses to wait, which it has no reason for.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<Vec<Change<K>>>> {
        // A timeout beyond what the kernel can count is none.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if events.iter().any(|event| event.data.u64() == CLOSED) {
            return Ok(None);
        }
        Ok(Some(self.watched().read(&events)))
    }

    /// Ends every [`ChangeWatcher::wait`], those to come included.
    pub fn close(&self) {
        let _ = rustix::io::write(&self.closed, &1_u64.to_ne_bytes()); // fails only if it is written already
    }

    fn close_sockets(&self, namespace: Option<(K, Sockets)>) {
        if let Some((_, sockets)) = namespace {
            sockets.deregister(self.epoll.as_fd());
        }
    }

    fn watched(&self) -> MutexGuard<'_, WatchedNamespaces<K>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord + Clone> WatchedNamespaces<K> {
    /// Reads the sockets that have something. A namespace that is no longer watched is passed over.
    fn read(&mut self, events: &[Event]) -> Vec<Change<K>> {
        let mut observed: BTreeMap<u64, Observed> = BTreeMap::new();
        for event in events {
            let (id, source) = id_and_source(event.data.u64());
            if let Some((_, sockets)) = self.namespaces.get(&id) {
                sockets.read(source, &mut self.buffer, observed.entry(id).or_default());
            }
        }
        let change = |(id, observed): (u64, Observed)| {
            self.namespaces.get(&id).and_then(|(key, _)| observed.into_change(key.clone()))
        };
        observed.into_iter().filter_map(change).collect()
    }
}

impl<K> fmt::Debug for ChangeWatcher<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeWatcher").finish_non_exhaustive()
    }
}

/// The value of a socket in the epoll set. An id is never used again, so an event that was taken from the set before its
/// namespace was unwatched concerns no other one.
fn event_data(id: u64, source: Source) -> u64 {
    id << 1 | u64::from(source == Source::Network)
}

fn id_and_source(data: u64) -> (u64, Source) {
    (data >> 1, if data & 1 == 1 { Source::Network } else { Source::Firewall })
}
