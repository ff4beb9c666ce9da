//! Debug state of this daemon: the agent's report on the node, combined with that of installer and settings.
//!
//! Every request is answered by an observation of the kernel that began after the request. Requests that arrive during an
//! observation share the next one, and observations are separated by a pause, so that the load does not grow with the number of
//! requests.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use daemon_settings::{AgentIdentity, DaemonSettings};
use model::{EventSubject, Notice, PodUid, Reason};
use node_status::{NodeInspector, SidecarDriftChecker};
use report::{
    CaptureState, NodeSimulation, PartHealth, PodState, Proof, SimulatedChange, StateReason, StateReport,
};
use retry::LastError;
use telemetry::debug::{InspectionFuture, StateInspector};
use tokio::{
    sync::{OwnedMutexGuard, mpsc, oneshot, watch},
    task::spawn_blocking,
    time::sleep,
};
use tracing::{info, warn};

use crate::health::HealthProbe;

/// Idle time after an observation, as a multiple of its duration, and the upper bound.
const IDLE_FACTOR: u32 = 3;
const LONGEST_IDLE: Duration = Duration::from_secs(2);
/// Interval at which an unchanged state is written for commands that find no agent.
const WRITE: Duration = Duration::from_secs(60);
/// Minimum interval between two writes, and the interval at which changes are checked for.
const WRITE_AGAIN: Duration = Duration::from_secs(5);
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Delay of the first write, by when the node has usually converged.
const FIRST_WRITE: Duration = Duration::from_secs(5);

/// Answer to a waiting request.
type StateAnswer = Result<Arc<StateReport>, Reason>;

/// Answers requests for the state.
pub(crate) struct StateCollector {
    settings: Arc<DaemonSettings>,
    probe: HealthProbe,
    inspector: NodeInspector,
    /// Pods that repair in place has to restore repeatedly, and how many times in a row.
    unstable: watch::Receiver<BTreeMap<PodUid, u32>>,
    queue: Mutex<CollectorQueue>,
    /// Held during the proof of a pod.
    proving: Arc<tokio::sync::Mutex<()>>,
}

impl StateInspector for StateCollector {
    fn observe_state(self: Arc<Self>) -> InspectionFuture<Arc<StateReport>> {
        Box::pin(async move { self.collect_state().await })
    }

    /// Explains a pod after a full verification, as [`report::Explanation`].
    fn explain_pod(self: Arc<Self>, namespace: String, name: String) -> InspectionFuture<serde_json::Value> {
        Box::pin(async move {
            let state = self.collect_state().await?;
            let close = spawn_blocking(move || {
                let mut state = StateReport::clone(&state);
                let mut pods = state.pods.iter_mut();
                if let Some(pod) = pods.find(|pod| pod.namespace == namespace && pod.name == name) {
                    self.inspector.verify_pod(pod)?;
                }
                let explanation = report::explain_pod(&state, &namespace, &name);
                serde_json::to_value(explanation).map_err(|error| error.to_string())
            });
            Ok(close.await.map_err(|error| error.to_string())??)
        })
    }

    /// Proves a pod, as [`report::Proof`]. Concurrent requests are served one at a time.
    fn prove_pod(self: Arc<Self>, namespace: String, name: String) -> InspectionFuture<serde_json::Value> {
        Box::pin(async move {
            let alone = self.wait_for_proof().await;
            let state = self.collect_state().await?;
            let proof = self.prove_in(alone, state, &namespace, &name).await?;
            serde_json::to_value(proof).map_err(|error| error.to_string().into())
        })
    }

    fn simulate_change(self: Arc<Self>, change: SimulatedChange) -> InspectionFuture<NodeSimulation> {
        Box::pin(async move {
            drop(self.collect_state().await?); // so that these requests are as rare as all others
            let simulation = spawn_blocking(move || {
                self.inspector.simulate_change(&self.settings.records.read_records(), &change)
            });
            simulation.await.map_err(|error| error.to_string())?
        })
    }
}

#[derive(Default)]
struct CollectorQueue {
    waiting: Vec<oneshot::Sender<StateAnswer>>,
    /// Whether an observation is in progress.
    busy: bool,
    idle_until: Option<Instant>,
}

impl CollectorQueue {
    /// Adds a request, and starts an observation unless one is in progress. If it cannot be started, the request is answered with
    /// the reason, and the next one tries again.
    fn add_request(
        &mut self,
        reply: oneshot::Sender<StateAnswer>,
        start_observation: impl FnOnce() -> io::Result<()>,
    ) {
        if !self.busy
            && let Err(error) = start_observation()
        {
            return drop(reply.send(Err(format!("cannot start a thread: {error}").into())));
        }
        self.busy = true;
        self.waiting.push(reply);
    }
}

impl StateCollector {
    pub(crate) fn new(
        settings: Arc<DaemonSettings>,
        probe: HealthProbe,
        inspector: NodeInspector,
        unstable: watch::Receiver<BTreeMap<PodUid, u32>>,
    ) -> StateCollector {
        let (queue, proving) = (Mutex::default(), Arc::default());
        StateCollector { settings, probe, inspector, unstable, queue, proving }
    }

    fn lock_queue(&self) -> MutexGuard<'_, CollectorQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state, from an observation that begins after this call.
    ///
    /// # Errors
    /// The agent's loop does not answer.
    pub(crate) async fn collect_state(self: &Arc<StateCollector>) -> StateAnswer {
        self.enqueue_request().await.unwrap_or_else(|_| Err("the daemon is ending".into()))
    }

    fn enqueue_request(self: &Arc<StateCollector>) -> oneshot::Receiver<StateAnswer> {
        let (reply, answer) = oneshot::channel();
        self.lock_queue().add_request(reply, || {
            let collector = Arc::clone(self);
            let body = move || collector.answer_waiting();
            // Not `spawn_blocking`, which panics where no thread can be started.
            thread::Builder::new().name("state".to_owned()).spawn(body).map(drop)
        });
        answer
    }

    /// Waits until no other proof runs, so that a state observed afterwards is valid for the proof.
    pub(crate) async fn wait_for_proof(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.proving).lock_owned().await
    }

    /// Proves one pod of a state that was observed after [`StateCollector::wait_for_proof`].
    ///
    /// # Errors
    /// As [`StateCollector::collect_state`].
    pub(crate) async fn prove_in(
        self: &Arc<StateCollector>,
        alone: OwnedMutexGuard<()>,
        state: Arc<StateReport>,
        namespace: &str,
        name: &str,
    ) -> Result<Proof, Reason> {
        let (collector, namespace, name) = (Arc::clone(self), namespace.to_owned(), name.to_owned());
        let proven = spawn_blocking(move || {
            let _alone = alone; // held even if the caller has given up
            let records = collector.settings.records.read_records();
            collector.inspector.prove_pod(&state, &records, &namespace, &name)
        });
        proven.await.map_err(|error| error.to_string())?
    }

    /// Observes for all waiting requests, until none is left.
    fn answer_waiting(&self) {
        loop {
            let idle =
                self.lock_queue().idle_until.map(|until| until.saturating_duration_since(Instant::now()));
            // Requests that arrive during the pause share the next observation.
            thread::sleep(idle.unwrap_or_default());
            let mut queue = self.lock_queue();
            let waiting = std::mem::take(&mut queue.waiting);
            if waiting.is_empty() {
                queue.busy = false;
                return;
            }
            drop(queue);
            let began = Instant::now();
            // A panic must not leave later requests unanswered.
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| self.observe_node()));
            let answer = outcome.unwrap_or_else(|_| Err("a defect of the agent; its log has more".into()));
            let idle = (began.elapsed() * IDLE_FACTOR).min(LONGEST_IDLE);
            self.lock_queue().idle_until = Some(Instant::now() + idle);
            for reply in waiting {
                drop(reply.send(answer.clone())); // the caller may have given up
            }
        }
    }

    fn observe_node(&self) -> StateAnswer {
        let records = self.settings.records.read_records();
        let mut state = self
            .inspector
            .observe(&records, &self.probe.installer.excluded_namespaces().unwrap_or_default())?;
        node_status::add_repairs(&self.unstable.borrow(), &mut state);
        self.add_self(&mut state);
        node_status::add_failures(&records, &mut state);
        let mut installer = self.settings.installer.clone();
        installer.template.live = self.probe.installer.template();
        let template_known = self.settings.config_map.is_none() || installer.template.live.is_some();
        state.installation = installer::inspect_installation(&installer, template_known);
        state.installation.extend(node_status::shared_config(&self.settings));
        let parts =
            [("installer", Some(self.probe.installer_health())), ("agent", self.probe.agent_health())];
        let to_health = |(part, found): (&str, Option<Result<(), Reason>>)| Some(part_health(part, found?));
        state.health = parts.into_iter().filter_map(to_health).collect();
        // Listed only on failure: records are no part of the agent.
        let unrecordable = self.settings.records.check_space().err();
        state.health.extend(unrecordable.map(|why| part_health("records", Err(why.into()))));
        state.preflight = self.probe.preflight.checks();
        node_status::complete_report(&mut state, &self.settings);
        state.fill_conclusions();
        Ok(Arc::new(state))
    }

    /// Adds our own pod, the only one known to an agent that follows no pods.
    fn add_self(&self, state: &mut StateReport) {
        let AgentIdentity { namespace, pod, .. } = &self.settings.identity;
        if self.settings.ambient.is_some() || namespace.is_empty() || state.pod(namespace, pod).is_some() {
            return;
        }
        let reason = enrolment::SkipReason::AgentPod;
        state.pods.push(PodState {
            namespace: namespace.clone(),
            name: pod.clone(),
            phase: "Running".to_owned(),
            capture: CaptureState::Outside,
            reason: StateReason { code: reason.code().to_owned(), message: reason.to_string() },
            ..PodState::default()
        });
    }

    /// Observes periodically, publishes notices, and writes the state for commands that find no agent.
    pub(crate) async fn keep_watch(
        self: Arc<StateCollector>,
        checker: &mut SidecarDriftChecker,
        notices: mpsc::Sender<Notice>,
    ) {
        let (mut last, mut unrecordable) = (LastError::default(), LastError::default());
        sleep(FIRST_WRITE).await;
        let mut regular = Instant::now();
        loop {
            let changes = self.probe.agent.change_count();
            if let Ok(state) = self.collect_state().await {
                // Findings about pods are reported by observations a minute apart.
                if regular <= Instant::now() {
                    regular = Instant::now() + WRITE;
                    self.clean_records(&mut unrecordable).await;
                    for notice in checker.due_notices(&state, Instant::now()) {
                        if let EventSubject::Pod { name, .. } = &notice.about {
                            warn!(target: "install", namespace = %name.namespace, pod = %name.name, reason = notice.reason, error = notice.message, "sidecar pod is not redirected as desired");
                        }
                        drop(notices.try_send(notice)); // notices beyond the channel's capacity are only logged
                    }
                }
                self.write_down(state, &mut last).await;
            }
            sleep(WRITE_AGAIN).await;
            while regular > Instant::now() && self.probe.agent.change_count() == changes {
                sleep(CHECK_INTERVAL).await;
            }
        }
    }

    /// Removes obsolete records, and logs when the plugin cannot write any.
    async fn clean_records(&self, last: &mut LastError) {
        let settings = Arc::clone(&self.settings);
        let checked = spawn_blocking(move || {
            settings.records.prune(&settings.netns_directory);
            settings.records.check_space()
        });
        match checked.await {
            Ok(Err(error)) if last.replace(&error) => {
                warn!(target: "install", error, "cannot write ADD records, so the next agent may not know the pods that start now");
            }
            Ok(Ok(())) if last.clear() => {
                info!(target: "install", "ADD records can be written again");
            }
            _ => {} // a panic is logged by the hook
        }
    }

    /// Writes the state for commands that find no agent.
    async fn write_down(&self, state: Arc<StateReport>, last: &mut LastError) {
        let path = self.settings.last_state();
        let written = spawn_blocking(move || write_state(&path, &state)).await;
        match written.unwrap_or_else(|panic| Err(panic.into())) {
            Ok(()) => {
                last.clear();
            }
            Err(error) if last.replace(&error) => {
                warn!(target: "install", %error, "cannot write the debug state to its file");
            }
            Err(_) => {}
        }
    }
}

fn part_health(part: &str, found: Result<(), Reason>) -> PartHealth {
    PartHealth {
        component: part.to_owned(),
        healthy: found.is_ok(),
        message: found.err().map(String::from).unwrap_or_default(),
    }
}

/// Writes the state atomically, readable by root alone because names of pods are confidential. Streamed, where `hostfs` would have
/// the text in memory twice: it has a good part of a megabyte for 250 pods.
fn write_state(path: &Path, state: &StateReport) -> io::Result<()> {
    let fresh = staging_path(path);
    let mut options = File::options();
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.write(true).create(true).truncate(true).open(&fresh)?;
    let mut writer = BufWriter::new(file);
    let written = serde_json::to_writer(&mut writer, state).map_err(io::Error::from);
    let written = written.and_then(|()| writer.flush());
    drop(writer);
    let done = written.and_then(|()| fs::rename(&fresh, path));
    if done.is_err() {
        drop(fs::remove_file(&fresh)); // else it would keep the last space from records of ADDs
    }
    done
}

/// Returns the temporary path that is renamed to `path`; an agent that is killed may leave it behind.
pub(crate) fn staging_path(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}.new", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_once_there_are_threads_again() {
        let (mut queue, mut started) = (CollectorQueue::default(), 0);
        let (reply, mut answer) = oneshot::channel();
        queue.add_request(reply, || Err(io::ErrorKind::WouldBlock.into()));
        assert!(answer.try_recv().unwrap().is_err());
        for _ in 0..2 {
            queue.add_request(oneshot::channel().0, || {
                started += 1;
                Ok(())
            });
        }
        assert_eq!((started, queue.waiting.len()), (1, 2));
    }

    #[test]
    fn of_a_state_that_cannot_be_written_nothing_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        fs::create_dir(&path).unwrap(); // the last step fails
        assert!(write_state(&path, &StateReport::default()).is_err());
        assert!(!staging_path(&path).exists());
    }
}
