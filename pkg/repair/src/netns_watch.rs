//! Notifications of the kernel about changes of sidecar pods' network namespaces, and when each pod's rules are compared.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use model::PodUid;
use netns::Netns;
use netns_changes::ChangeWatcher;
use retry::ChangePace;
use tokio::sync::mpsc;
use tracing::debug;

/// Changes within this time after a notification are taken together, so that a pod that changes its namespace all the time
/// wakes the agent no more often.
const COALESCE: Duration = Duration::from_millis(20);
/// Pods whose changes wait to be taken; those of more are left to the clock.
const WAITING: usize = 1024;

/// The watch over the namespaces of all sidecar pods; its thread ends when this is dropped.
#[derive(Debug)]
pub(crate) struct SidecarWatch {
    watched: WatchedSidecars,
    changed: mpsc::Receiver<PodUid>,
    started: Instant,
    paces: BTreeMap<PodUid, ChangePace>,
    /// When the rules of pods that changed are compared.
    due: BTreeMap<PodUid, Instant>,
}

/// Watches namespaces for a [`SidecarWatch`].
#[derive(Clone)]
pub(crate) struct WatchedSidecars(Arc<ChangeWatcher<PodUid>>);

impl std::fmt::Debug for WatchedSidecars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} watched namespaces", self.0.len())
    }
}

/// A namespace that is watched until this is dropped. A pod has one at a time.
#[derive(Debug)]
pub(crate) struct WatchedNetns {
    watched: WatchedSidecars,
    uid: PodUid,
}

impl Drop for WatchedNetns {
    fn drop(&mut self) {
        self.watched.0.unwatch(&self.uid);
    }
}

impl SidecarWatch {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// There is no descriptor or no thread left.
    pub(crate) fn start() -> io::Result<SidecarWatch> {
        let watcher = Arc::new(ChangeWatcher::new()?);
        let (sender, changed) = mpsc::channel(WAITING);
        let waited = Arc::clone(&watcher);
        let body = move || pass_on(&waited, &sender);
        thread::Builder::new().name("sidecar-watch".to_owned()).stack_size(256 * 1024).spawn(body)?;
        let (paces, due) = (BTreeMap::new(), BTreeMap::new());
        Ok(SidecarWatch { watched: WatchedSidecars(watcher), changed, started: Instant::now(), paces, due })
    }

    pub(crate) fn watched(&self) -> WatchedSidecars {
        self.watched.clone()
    }

    /// Waits until rules of pods are to be compared, and returns whose. Nothing is lost if it is dropped.
    pub(crate) async fn next(&mut self) -> BTreeSet<PodUid> {
        loop {
            let now = Instant::now();
            let begins: BTreeSet<PodUid> =
                self.due.iter().filter(|(_, due)| **due <= now).map(|(uid, _)| uid.clone()).collect();
            if !begins.is_empty() {
                self.due.retain(|uid, _| !begins.contains(uid));
                return begins;
            }
            let next = self.due.values().min().map(|due| tokio::time::Instant::from_std(*due));
            tokio::select! {
                changed = self.changed.recv() => match changed {
                    Some(uid) => self.pace(uid),
                    None => std::future::pending().await, // the thread has ended, after a line in the log
                },
                () = super::controller::wait_until(next) => {}
            }
        }
    }

    /// Forgets pods that are no longer there.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&PodUid) -> bool) {
        self.paces.retain(|uid, _| is_there(uid));
        self.due.retain(|uid, _| is_there(uid));
    }

    fn pace(&mut self, uid: PodUid) {
        let begins = self.paces.entry(uid.clone()).or_default();
        if let std::collections::btree_map::Entry::Vacant(entry) = self.due.entry(uid) {
            entry.insert(self.started + begins.next(self.started.elapsed()));
        }
    }
}

impl Drop for SidecarWatch {
    fn drop(&mut self) {
        self.watched.0.close();
    }
}

impl WatchedSidecars {
    /// Watches a pod's namespace until the result is dropped. `None`, after a line in the log: it cannot be watched.
    pub(crate) fn watch(&self, uid: &PodUid, netns: &Netns) -> Option<WatchedNetns> {
        match self.0.watch(uid.clone(), netns) {
            Ok(()) => Some(WatchedNetns { watched: self.clone(), uid: uid.clone() }),
            Err(error) => {
                debug!(target: "repair", pod_uid = %uid, %error, "the pod's network namespace cannot be watched for changes");
                None
            }
        }
    }
}

fn pass_on(watcher: &ChangeWatcher<PodUid>, changed: &mpsc::Sender<PodUid>) {
    loop {
        match watcher.wait(None) {
            Ok(Some(changes)) => {
                for change in changes {
                    drop(changed.try_send(change.key)); // the clock takes what does not fit
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(target: "repair", %error, "cannot wait for changes of pods' network namespaces; comparing rules at intervals");
                return;
            }
        }
        thread::sleep(COALESCE);
    }
}
