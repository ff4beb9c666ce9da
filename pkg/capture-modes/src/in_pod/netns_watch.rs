//! Notifications of the kernel about changes of captured pods' network namespaces.
//!
//! A namespace is watched from the first observation of the pod's rules until the pod leaves it. Where it cannot be, the clock
//! alone leads to observations.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use model::PodUid;
use netns::Netns;
use netns_changes::{Change, ChangeKinds, ChangeWatcher, Writer};
use rustix::process::{Resource, getrlimit};

use super::worker::{JobResult, JobResultSender};

/// Changes within this time after a notification are taken together, so that a pod that changes its namespace all the time
/// wakes the agent no more often.
const COALESCE: Duration = Duration::from_millis(20);
/// Descriptors of a watched namespace, and the share of the process's limit that all of them may take: ADDs need some, too.
const DESCRIPTORS: u64 = 2;
const SHARE: u64 = 2;

/// A pod, and a number that no other watch has: a pod may have another namespace later.
pub(super) type WatchKey = (PodUid, u64);

/// The watch over all captured pods' namespaces; its thread ends when this is dropped.
#[derive(Debug)]
pub(super) struct NetnsWatch(Arc<WatchedNamespaces>);

/// The namespaces that are watched now.
pub(super) struct WatchedNamespaces {
    watcher: ChangeWatcher<WatchKey>,
    numbers: AtomicU64,
}

impl std::fmt::Debug for WatchedNamespaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchedNamespaces").finish_non_exhaustive()
    }
}

impl NetnsWatch {
    /// Watches nothing yet. Each change goes to `results` as [`JobResult::Changed`].
    ///
    /// # Errors
    /// There is no descriptor or no thread left.
    pub(super) fn start(results: JobResultSender) -> io::Result<NetnsWatch> {
        let watched = WatchedNamespaces { watcher: ChangeWatcher::new()?, numbers: AtomicU64::new(0) };
        let watch = NetnsWatch(Arc::new(watched));
        let watched = watch.watched();
        let body = move || watched.pass_on(&results);
        thread::Builder::new().name("netns-watch".to_owned()).stack_size(256 * 1024).spawn(body)?;
        Ok(watch)
    }

    pub(super) fn watched(&self) -> Arc<WatchedNamespaces> {
        Arc::clone(&self.0)
    }
}

impl Drop for NetnsWatch {
    fn drop(&mut self) {
        self.0.watcher.close();
    }
}

impl WatchedNamespaces {
    /// Watches a pod's namespace until the result is dropped. `None`, after a line in the log: it cannot be watched.
    pub(super) fn watch(self: &Arc<Self>, uid: &PodUid, netns: &Netns) -> Option<WatchedNetns> {
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / (DESCRIPTORS * SHARE);
        if u64::try_from(self.watcher.len()).is_ok_and(|len| len >= most) {
            return None;
        }
        let key = (uid.clone(), self.numbers.fetch_add(1, Ordering::Relaxed));
        match self.watcher.watch(key.clone(), netns) {
            Ok(()) => Some(WatchedNetns { watched: Arc::clone(self), key }),
            Err(error) => {
                tracing::debug!(target: "ambient", pod_uid = %uid, %error, "the pod's network namespace cannot be watched for changes");
                None
            }
        }
    }

    fn pass_on(&self, results: &JobResultSender) {
        loop {
            match self.watcher.wait(None) {
                Ok(Some(changes)) => {
                    changes.into_iter().for_each(|change| results.send(JobResult::Changed(change)));
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(target: "ambient", %error, "cannot wait for changes of pods' network namespaces; observing them at intervals");
                    return;
                }
            }
            thread::sleep(COALESCE);
        }
    }
}

/// A namespace that is watched until this is dropped.
#[derive(Debug)]
pub(super) struct WatchedNetns {
    watched: Arc<WatchedNamespaces>,
    key: WatchKey,
}

impl WatchedNetns {
    /// The change is one of this namespace.
    pub(super) fn is_of(&self, change: &Change<WatchKey>) -> bool {
        self.key == change.key
    }
}

impl Drop for WatchedNetns {
    fn drop(&mut self) {
        self.watched.watcher.unwatch(&self.key);
    }
}

/// A change by somebody else that an observation follows.
#[derive(Clone, Debug)]
pub(super) struct NetnsDisturbance {
    /// When it was noticed first.
    pub(super) noticed: Instant,
    kinds: ChangeKinds,
    generation: Option<u32>,
    writer: Option<Writer>,
}

impl NetnsDisturbance {
    pub(super) fn new(change: Change<WatchKey>) -> NetnsDisturbance {
        let Change { kinds, generation, writer, .. } = change;
        NetnsDisturbance { noticed: Instant::now(), kinds, generation, writer }
    }

    /// Both: the first time that it was noticed, and the last writer.
    pub(super) fn and(self, later: NetnsDisturbance) -> NetnsDisturbance {
        NetnsDisturbance {
            noticed: self.noticed,
            kinds: self.kinds | later.kinds,
            generation: later.generation.or(self.generation),
            writer: later.writer.or(self.writer),
        }
    }

    /// All of it was observed: only firewall rules changed, and these were read since. So are those that we changed ourselves.
    pub(super) fn was_observed(&self, generation: Option<u32>) -> bool {
        self.kinds == ChangeKinds::FIREWALL && generation.is_some() && self.generation == generation
    }

    /// The kind of objects that changed, as a label of metrics.
    pub(super) fn label(&self) -> &'static str {
        const LABELS: [(ChangeKinds, &str); 5] = [
            (ChangeKinds::FIREWALL, "firewall"),
            (ChangeKinds::POLICY_RULES, "policy_rules"),
            (ChangeKinds::ROUTES, "routes"),
            (ChangeKinds::ADDRESSES, "addresses"),
            (ChangeKinds::LINKS, "links"),
        ];
        LABELS.iter().find(|(kind, _)| self.kinds.contains(*kind)).map_or("unknown", |(_, label)| label)
    }

    /// Who changed firewall rules, for people.
    pub(super) fn writer(&self) -> Option<String> {
        self.writer.as_ref().map(|writer| format!("{} (process {})", writer.name, writer.pid))
    }
}
