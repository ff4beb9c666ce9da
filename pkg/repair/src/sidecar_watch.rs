//! Notifications of the kernel about changes of sidecar pods' network namespaces, and when each pod's rules are compared.

use std::{collections::BTreeMap, io, time::Instant};

use futures_util::future::OptionFuture;
use model::PodUid;
use netns_changes::{Change, ChangeReporter, ChangeWatcher, NetnsDisturbance};
use retry::ChangePace;
use tokio::{sync::mpsc, time::sleep_until};
use tracing::warn;

/// Capacity for changes of pods that wait to be handled; further ones are left to the clock.
const WAITING: usize = 1024;

/// Watch on the namespaces of all sidecar pods.
#[derive(Debug)]
pub(crate) struct SidecarWatch {
    reporter: ChangeReporter<PodUid>,
    changed: mpsc::Receiver<Change<PodUid>>,
    started: Instant,
    paces: BTreeMap<PodUid, ChangePace>,
    /// When the rules of changed pods are compared, and their changes.
    due: BTreeMap<PodUid, (Instant, NetnsDisturbance)>,
}

impl SidecarWatch {
    /// Starts the watch, without namespaces.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn start() -> io::Result<SidecarWatch> {
        let (sender, changed) = mpsc::channel(WAITING);
        // Changes beyond the capacity are left to the clock.
        let report = move |change| drop(sender.try_send(change));
        let reporter = ChangeReporter::new("sidecar-changes", report)?;
        let (paces, due) = (BTreeMap::new(), BTreeMap::new());
        let mut watch = SidecarWatch { reporter, changed, started: Instant::now(), paces, due };
        watch.ensure_running();
        Ok(watch)
    }

    /// Starts the thread again if it has ended, or could not be started. Without it, comparisons are triggered by the
    /// clock only.
    pub(crate) fn ensure_running(&mut self) {
        if let Some(error) = self.reporter.ensure_running() {
            let is_running = self.reporter.is_running();
            warn!(target: "repair", %error, is_running, "changes of pods' network namespaces were not reported; comparing rules at intervals meanwhile");
        }
    }

    pub(crate) fn watcher(&self) -> ChangeWatcher<PodUid> {
        self.reporter.watcher()
    }

    /// Waits until rules of pods are due for comparison, and returns these pods with their changes. Cancel-safe:
    /// nothing is lost if it is dropped.
    pub(crate) async fn next_disturbances(&mut self) -> BTreeMap<PodUid, NetnsDisturbance> {
        loop {
            let now = Instant::now();
            let begins: BTreeMap<_, _> = self.due.extract_if(.., |_, (due, _)| *due <= now).collect();
            if !begins.is_empty() {
                return begins.into_iter().map(|(uid, (_, disturbance))| (uid, disturbance)).collect();
            }
            let next = self.due.values().map(|(due, _)| *due).min();
            tokio::select! {
                changed = self.changed.recv() => match changed {
                    Some(change) => self.schedule_change(change),
                    None => std::future::pending().await, // never: the reporter keeps the sender
                },
                Some(()) = OptionFuture::from(next.map(|next| sleep_until(next.into()))) => {}
            }
        }
    }

    /// Forgets pods that no longer exist.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&PodUid) -> bool) {
        self.paces.retain(|uid, _| is_there(uid));
        self.due.retain(|uid, _| is_there(uid));
    }

    fn schedule_change(&mut self, change: Change<PodUid>) {
        let uid = change.key.clone();
        let later = NetnsDisturbance::new(change);
        let entry = match self.due.remove(&uid) {
            Some((due, earlier)) => (due, earlier.merge_with(later)),
            None => {
                let pace = self.paces.entry(uid.clone()).or_default();
                (self.started + pace.next_observation(self.started.elapsed()), later)
            }
        };
        self.due.insert(uid, entry);
    }
}
