//! The loop: look, repair, wait.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender, TryRecvError},
    },
    time::{Duration, Instant},
};

use hostfs::{DirectoryWatcher, Waker};
use metrics::gauge_value;
use model::Notice;
use retry::{Attempts, Backoff, LastError};
use tracing::{info, warn};

use crate::{
    Error, InstallStep, InstallerMetrics, InstallerSettings, InstallerStatus, binaries::BinaryInstaller,
    cleanup, conflict::ConflictBackoff, entry::EntryCache, known_limits,
};

/// The installer. See the crate's documentation.
pub struct Installer {
    pub(crate) settings: InstallerSettings,
    pub(crate) metrics: InstallerMetrics,
    pub(crate) status: Arc<InstallerStatus>,
    pub(crate) notify: Box<dyn Fn(Notice) + Send>,
    pub(crate) binaries: BinaryInstaller,
    pub(crate) entries: EntryCache,
    pub(crate) conflicts: BTreeMap<InstallStep, ConflictBackoff>,
    /// Hash of the kubeconfig that we wrote or found good last, and of its token.
    pub(crate) credential: Option<(u64, u64)>,
    /// Directories for binaries that were left out, and why, as it was said last.
    pub(crate) left_out: Vec<String>,
    /// Whether there was a pass after which everything was in place.
    pub(crate) complete: bool,
    /// Why pods may not get the named network, as it was logged last.
    pub(crate) last_conflict: LastError,
    watcher: DirectoryWatcher,
    commands: Receiver<InstallerCommand>,
    ready: bool,
    attempts: Attempts,
    last_message: String,
}

#[derive(Debug)]
enum InstallerCommand {
    Stop,
    Template(String),
}

/// Speaks to a running installer.
#[derive(Clone, Debug)]
pub struct InstallerHandle {
    commands: Sender<InstallerCommand>,
    waker: Waker,
}

impl InstallerHandle {
    /// Ends the loop after the pass that it may be in.
    pub fn stop(&self) {
        self.send_command(InstallerCommand::Stop);
    }

    /// Replaces the template by a new value from the cluster.
    pub fn set_template(&self, text: String) {
        self.send_command(InstallerCommand::Template(text));
    }

    fn send_command(&self, command: InstallerCommand) {
        drop(self.commands.send(command)); // an installer that has ended needs no commands
        self.waker.wake();
    }
}

/// Result of a pass over the installation.
#[derive(Debug, Default)]
pub(crate) struct PassResult {
    /// Everything that is not as it should be; empty: the plugin is installed.
    pub(crate) problems: Vec<InstallProblem>,
    /// Files that this rests on.
    pub(crate) witnesses: Vec<(std::path::PathBuf, hostfs::FileFingerprint)>,
    /// Something was written.
    pub(crate) changed: bool,
}

/// One thing that is not as it should be.
#[derive(Debug)]
pub(crate) enum InstallProblem {
    /// The step was tried, and failed.
    Failed(InstallStep, Error),
    /// The installer has to wait: others must act first, or a file was changed as soon as it was written.
    Waiting(String),
    /// The step is left alone until then, because another program keeps undoing it.
    Fought(String, Instant),
}

impl fmt::Display for InstallProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InstallProblem::Failed(_, error) => error.fmt(f),
            InstallProblem::Waiting(why) => f.write_str(why),
            InstallProblem::Fought(what, _) => f.write_str(what),
        }
    }
}

/// Without any event, everything is looked at so often: not every file system tells of changes.
const REGULAR: Duration = Duration::from_secs(10);
/// After a failure: first, and at most. No event shortens it, because a failed write makes events of its own.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(2);

impl Installer {
    /// An installer, and the way to speak to it. `notify` must not block.
    ///
    /// # Errors
    /// The kernel gives us no way to be woken up.
    pub fn new(
        settings: InstallerSettings,
        metrics: InstallerMetrics,
        status: Arc<InstallerStatus>,
        notify: Box<dyn Fn(Notice) + Send>,
    ) -> Result<(Installer, InstallerHandle), Error> {
        let watcher = DirectoryWatcher::new()?;
        let (sender, commands) = mpsc::channel();
        let handle = InstallerHandle { commands: sender, waker: watcher.waker() };
        let installer = Installer {
            settings,
            metrics,
            status,
            notify,
            binaries: BinaryInstaller::default(),
            entries: EntryCache::default(),
            conflicts: BTreeMap::new(),
            credential: None,
            left_out: Vec::new(),
            complete: false,
            last_conflict: LastError::default(),
            watcher,
            commands,
            ready: false,
            attempts: Backoff::new(FIRST_RETRY, LAST_RETRY).start_attempts(),
            last_message: String::new(),
        };
        Ok((installer, handle))
    }

    /// Installs, and keeps installed, until the handle says stop or is gone.
    pub fn run(&mut self) {
        while self.receive_commands() {
            self.status.note_pass();
            // One that is missing, as the optional directory for binaries mostly is, would be asked for again and again.
            let mut directories = self.settings.watched_directories();
            directories.retain(|directory| directory.is_dir());
            self.watcher.set_directories(&directories); // before looking, so that no change falls in between
            self.metrics.polled.set(gauge_value(self.watcher.polled().len()));
            let started = Instant::now();
            let result = self.run_pass();
            self.metrics.duration.observe(started.elapsed().as_secs_f64());
            let (delay, impatient) = self.report_pass(result);
            self.wait_for_change(delay, impatient);
        }
        self.metrics.set_ready(false);
        self.status.set_missing("the installer has ended".to_owned());
    }

    /// Takes everything away from the node: entry, kubeconfig, binaries. Returns what could not be removed.
    pub fn clean_up(&mut self) -> Vec<Error> {
        cleanup::clean_up(&self.settings)
    }

    /// False when told to stop.
    fn receive_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(InstallerCommand::Template(text)) => {
                    self.status.set_template(Some(text.clone()));
                    self.settings.template.live = Some(text);
                }
                Ok(InstallerCommand::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Tells everybody what came of a pass. Until when to wait, and whether changes may shorten that.
    fn report_pass(&mut self, result: PassResult) -> (Duration, bool) {
        let ready = result.problems.is_empty();
        let problems: Vec<String> = result.problems.iter().map(ToString::to_string).collect();
        let problems = problems.join("; ");
        self.log_if_new(&problems);
        if ready {
            if result.changed || !self.ready {
                self.metrics.installs.get_or_create(&[("result", "SUCCESS")]).inc();
            }
            self.status.set_installed(result.witnesses);
            self.complete = true;
        } else {
            self.status.set_missing(problems.clone());
        }
        self.metrics.set_ready(ready);
        self.ready = ready;
        self.last_message = problems;
        let failed = result.problems.iter().filter_map(|problem| match problem {
            InstallProblem::Failed(step, _) => Some(*step),
            _ => None,
        });
        let failed: Vec<InstallStep> = failed.collect();
        failed.iter().for_each(|step| self.metrics.count_failure(*step));
        if !failed.is_empty() {
            return (self.attempts.record_failure(), false);
        }
        self.attempts.record_success();
        let until = result.problems.iter().filter_map(|problem| match problem {
            InstallProblem::Fought(_, until) => Some(until.saturating_duration_since(Instant::now())),
            _ => None,
        });
        (until.min().map_or(REGULAR, |delay| delay.min(REGULAR)), true)
    }

    /// Logs what is new, not what was said the last time.
    fn log_if_new(&self, message: &str) {
        if message.is_empty() && !self.ready {
            info!(target: "install", "the plugin is installed");
            let is_ambient = self.settings.defaults.iter().any(|(key, _)| *key == "ambient_enabled");
            let limit = is_ambient.then(|| known_limits::ambient_limit(&self.settings.conf_dir)).flatten();
            limit
                .into_iter()
                .for_each(|reason| warn!(target: "install", reason, "limited by the node's network"));
        } else if !message.is_empty() && message != self.last_message {
            warn!(target: "install", error = message, "the plugin is not installed correctly");
        }
    }

    /// Waits for a change, a command or the time. An impatient wait ends at any change.
    fn wait_for_change(&mut self, delay: Duration, impatient: bool) {
        let until = Instant::now() + delay;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.watcher.wait_for_change(left) {
                Ok(wake) if wake.woken || (wake.changed && impatient) || left.is_zero() => return,
                Ok(_) if Instant::now() >= until => return,
                Ok(_) => {}
                Err(error) => {
                    warn!(target: "install", %error, "cannot wait for changes");
                    std::thread::sleep(left.min(LAST_RETRY)); // else this would be a busy loop
                    return;
                }
            }
        }
    }
}
