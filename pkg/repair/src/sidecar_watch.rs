//! Notifications of the kernel about changes of sidecar pods' network namespaces, and when each pod's rules are compared.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    time::Instant,
};

use model::PodUid;
use netns_changes::{Change, ChangeReporter, ChangeWatcher};
use retry::ChangePace;
use tokio::sync::mpsc;
use tracing::warn;

/// Pods whose changes wait to be taken; those of more are left to the clock.
const WAITING: usize = 1024;

/// The watch over the namespaces of all sidecar pods.
#[derive(Debug)]
pub(crate) struct SidecarWatch {
    reporter: ChangeReporter<PodUid>,
    changed: mpsc::Receiver<PodUid>,
    started: Instant,
    paces: BTreeMap<PodUid, ChangePace>,
    /// When the rules of pods that changed are compared.
    due: BTreeMap<PodUid, Instant>,
}

impl SidecarWatch {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// There is no descriptor or no thread left.
    pub(crate) fn start() -> io::Result<SidecarWatch> {
        let (sender, changed) = mpsc::channel(WAITING);
        let report = move |change: io::Result<Change<PodUid>>| match change {
            Ok(change) => drop(sender.try_send(change.key)), // the clock takes what does not fit
            Err(error) => {
                warn!(target: "repair", %error, "changes of pods' network namespaces are not reported; comparing rules at intervals");
            }
        };
        let reporter = ChangeReporter::start("sidecar-changes", report)?;
        let (paces, due) = (BTreeMap::new(), BTreeMap::new());
        Ok(SidecarWatch { reporter, changed, started: Instant::now(), paces, due })
    }

    pub(crate) fn watcher(&self) -> ChangeWatcher<PodUid> {
        self.reporter.watcher()
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
