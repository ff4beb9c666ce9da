//! Reconcile loop: observe, repair, wait.

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

/// Installer of the plugin. See the crate's documentation.
pub struct Installer {
    pub(crate) settings: InstallerSettings,
    pub(crate) metrics: InstallerMetrics,
    pub(crate) status: Arc<InstallerStatus>,
    pub(crate) notify: Box<dyn Fn(Notice) + Send>,
    pub(crate) binaries: BinaryInstaller,
    pub(crate) entries: EntryCache,
    /// Whether the template has changed since it was last applied.
    pub(crate) has_new_template: bool,
    pub(crate) conflicts: BTreeMap<InstallStep, ConflictBackoff>,
    /// Hashes of the kubeconfig that was last written or verified, and of its token.
    pub(crate) credential: Option<(u64, u64)>,
    /// Directories for binaries that were skipped, and why, as last logged.
    pub(crate) left_out: Vec<String>,
    /// Whether a pass has found or put everything in place.
    pub(crate) complete: bool,
    /// Reason why pods may not get the named network, as last logged.
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

/// Handle that sends commands to a running installer.
#[derive(Clone, Debug)]
pub struct InstallerHandle {
    commands: Sender<InstallerCommand>,
    waker: Waker,
}

impl InstallerHandle {
    /// Stops the loop after the current pass.
    pub fn stop(&self) {
        self.send_command(InstallerCommand::Stop);
    }

    /// Replaces the template by a new value from the cluster.
    pub fn set_template(&self, text: String) {
        self.send_command(InstallerCommand::Template(text));
    }

    fn send_command(&self, command: InstallerCommand) {
        drop(self.commands.send(command)); // a stopped installer ignores commands
        self.waker.wake();
    }
}

/// Result of a pass over the installation.
#[derive(Debug, Default)]
pub(crate) struct PassResult {
    /// Differences from the desired state; empty: the plugin is installed.
    pub(crate) problems: Vec<InstallProblem>,
    /// Files that this result depends on.
    pub(crate) witnesses: Vec<(std::path::PathBuf, hostfs::FileFingerprint)>,
    /// Whether anything was written.
    pub(crate) changed: bool,
}

/// One difference from the desired state.
#[derive(Debug)]
pub(crate) enum InstallProblem {
    /// A step failed.
    Failed(InstallStep, Error),
    /// The installer waits for another component, or for a file that changed right after it was written to settle.
    Waiting(String),
    /// A step backs off until then, because another program keeps undoing it.
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

/// Interval of full passes without any event: not every file system reports changes.
const REGULAR: Duration = Duration::from_secs(10);
/// First and last delay after a failure. Events do not shorten it, because a failed write causes events of its own.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(2);

impl Installer {
    /// Returns an installer and its handle. `notify` must not block.
    ///
    /// # Errors
    /// The kernel refuses the eventfd of the waker.
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
            has_new_template: false,
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

    /// Installs the plugin, and keeps it installed, until the handle stops it or is dropped.
    pub fn run(&mut self) {
        while self.receive_commands() {
            self.status.note_pass();
            // A missing directory, as the optional one for binaries usually is, would be polled constantly.
            let mut directories = self.settings.watched_directories();
            directories.retain(|directory| directory.is_dir());
            self.watcher.set_directories(&directories); // before observing, so that no change is missed
            self.metrics.polled.set(gauge_value(self.watcher.count_polled()));
            let started = Instant::now();
            let result = self.run_pass();
            self.metrics.duration.observe(started.elapsed().as_secs_f64());
            let (delay, impatient) = self.report_pass(result);
            self.wait_for_change(delay, impatient);
        }
        self.metrics.set_ready(false);
        self.status.set_missing("the installer has ended".to_owned());
    }

    /// Removes entry, kubeconfig and binaries from the node. Returns what could not be removed.
    pub fn clean_up(&mut self) -> Vec<Error> {
        cleanup::clean_up(&self.settings)
    }

    /// Applies pending commands; returns false if told to stop.
    fn receive_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(InstallerCommand::Template(text)) => {
                    self.status.set_template(text.clone());
                    self.settings.template.live = Some(text);
                }
                Ok(InstallerCommand::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Publishes the result of a pass. Returns the delay until the next one, and whether changes may shorten it.
    fn report_pass(&mut self, result: PassResult) -> (Duration, bool) {
        let ready = result.problems.is_empty();
        let problems: Vec<String> = result.problems.iter().map(ToString::to_string).collect();
        let problems = problems.join("; ");
        self.log_if_new(&problems);
        self.metrics.set_ready(ready);
        if ready {
            if result.changed || !self.ready {
                self.metrics.installs.get_or_create(&[("result", "SUCCESS")]).inc();
            }
            self.status.set_installed(result.witnesses);
            self.complete = true;
        } else {
            self.status.set_missing(problems.clone());
        }
        self.ready = ready;
        self.last_message = problems;
        let (mut has_failed, mut delay) = (false, REGULAR);
        for problem in &result.problems {
            match problem {
                InstallProblem::Failed(step, _) => {
                    has_failed = true;
                    self.metrics.count_failure(*step);
                }
                InstallProblem::Fought(_, until) => {
                    delay = delay.min(until.saturating_duration_since(Instant::now()));
                }
                InstallProblem::Waiting(_) => {}
            }
        }
        if has_failed {
            return (self.attempts.record_failure(), false);
        }
        self.attempts.record_success();
        (delay, true)
    }

    /// Logs a message unless it equals the last one.
    fn log_if_new(&self, message: &str) {
        if message.is_empty() && !self.ready {
            info!(target: "install", "the plugin is installed");
            let is_ambient = self.settings.defaults.iter().any(|(key, _)| *key == "ambient_enabled");
            if is_ambient && let Some(reason) = known_limits::ambient_limit(&self.settings.conf_dir) {
                warn!(target: "install", reason, "limited by the node's network");
            }
        } else if !message.is_empty() && message != self.last_message {
            warn!(target: "install", error = message, "the plugin is not installed correctly");
        }
    }

    /// Waits for a change, a command or the timeout. With `impatient`, any change ends the wait.
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
                    std::thread::sleep(left.min(LAST_RETRY)); // avoids a busy loop
                    return;
                }
            }
        }
    }
}
