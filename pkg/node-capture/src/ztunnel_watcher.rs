//! Detection of changes in the network namespaces of ztunnels.

use std::{
    collections::BTreeMap,
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use netns::{Netns, NetnsId};
use netns_changes::{ChangeWatcher, NetnsWatch};

/// Watches the network namespaces of the ztunnels that a [`NodePath`](crate::NodePath) has located. All clones share
/// one watcher, and may be used from any thread.
#[derive(Clone, Debug)]
pub struct ZtunnelWatcher {
    watcher: ChangeWatcher<()>,
    watched: Arc<Mutex<BTreeMap<NetnsId, WatchedNetns>>>,
}

/// A watched namespace, and the file to which the container runtime has bound it.
#[derive(Debug)]
struct WatchedNetns {
    place: PathBuf,
    _watch: NetnsWatch<()>,
}

impl ZtunnelWatcher {
    /// Creates a watcher without namespaces.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn new() -> io::Result<ZtunnelWatcher> {
        Ok(ZtunnelWatcher { watcher: ChangeWatcher::new()?, watched: Arc::default() })
    }

    /// Starts watching a namespace, unless it is watched. Changes before this returns must be observed afterwards. A
    /// namespace that cannot be watched is left to regular observations.
    pub(crate) fn watch_netns(&self, place: &Path, netns: &Netns) {
        let mut watched = self.lock_watched();
        if watched.contains_key(&netns.id()) {
            return;
        }
        if let Ok(watch) = self.watcher.watch((), netns) {
            watched.insert(netns.id(), WatchedNetns { place: place.to_owned(), _watch: watch });
        }
    }

    /// Ends the watches of all other namespaces.
    pub(crate) fn keep_only(&self, ids: &[NetnsId]) {
        self.lock_watched().retain(|id, _| ids.contains(id));
    }

    /// Returns whether something changed in one of the namespaces since the last call, without blocking.
    ///
    /// A watch keeps its namespace alive, and with it the links to it, over which traffic is sent to a ztunnel that has
    /// ended. So a watch ends here if the runtime has removed the namespace: call this several times a second.
    pub fn take_changes(&self) -> bool {
        self.lock_watched().retain(|id, netns| is_bound(*id, &netns.place));
        self.watcher
            .wait_for_changes(Some(Duration::ZERO))
            .ok()
            .flatten()
            .is_some_and(|changes| !changes.is_empty())
    }

    fn lock_watched(&self) -> MutexGuard<'_, BTreeMap<NetnsId, WatchedNetns>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the file at this path is still the namespace.
fn is_bound(id: NetnsId, place: &Path) -> bool {
    place.metadata().is_ok_and(|file| (file.dev(), file.ino()) == (id.dev, id.ino))
}
