//! Removal of everything that agents have put on the node: at the end of an agent that is uninstalled, and by the command
//! `install-cni uninstall`, which needs neither an agent nor the API server.

use std::{
    fs, io,
    os::unix::{fs::FileTypeExt as _, net::UnixStream},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context as _, Result, bail};
use daemon_settings::{DaemonSettings, options};
use flags::FlagValues;
use installer::{Installer, InstallerMetrics, InstallerSettings, InstallerStatus};
use prometheus_client::registry::Registry;
use report::StateReport;
use telemetry::logging::{self, LogOptions};
use tracing::{error, info, warn};

use crate::{commands, daemon::allow_many_files, node_agent, node_lock::NodeLock, state_collector};

/// Usage text of the command.
pub(crate) const USAGE: &str =
    "install-cni uninstall removes the plugin, its entry and its credential from this node, and all rules, links and routes
of ambient mode. It finds what is there by itself. Settings that are not given are as the last agent had them, if it wrote
them down. The agent must not be running, except with --dry-run, which lists what would be removed and changes nothing.

Usage: install-cni uninstall [--dry-run] [flags]

Examples:
  install-cni uninstall --dry-run
  install-cni uninstall

Exit status 0: everything was removed, or with --dry-run listed; 1: something remains, and is listed, or with --dry-run not
everything could be determined.";

/// Removes whatever exists, regardless of the settings of the agent that made it. Each part can be repeated after a failure or an
/// interruption; the files that show the next attempt what to remove are removed last.
#[derive(Clone, Debug)]
pub(crate) struct Uninstallation {
    settings: Arc<DaemonSettings>,
    /// Ambient mode is on, or has left objects behind.
    pub(crate) is_ambient: bool,
}

impl Uninstallation {
    pub(crate) fn new(settings: Arc<DaemonSettings>) -> Uninstallation {
        Uninstallation { is_ambient: finds_ambient(&settings), settings }
    }

    /// Fails if an agent runs, ours or Istio's, which would restore everything.
    fn refuse_beside_agent(&self) -> Result<()> {
        match self.daemon_sockets().into_iter().find(|socket| UnixStream::connect(socket).is_ok()) {
            None => Ok(()),
            Some(socket) => bail!(
                "an agent runs on this node, and would restore everything ({} is served): delete its DaemonSet, which \
                 removes everything by itself, or stop it first",
                socket.display()
            ),
        }
    }

    /// Removes ambient mode's capture from the node and its pods. Blocks. Returns what could not be removed, as messages.
    pub(crate) fn remove_capture(&self) -> Vec<String> {
        node_agent::remove_from_node(&self.settings.ambient_traces)
    }

    /// Removes the files that agent and plugin wrote for each other and for commands, unless something else could not be removed
    /// (`errors`): then the next attempt needs them. Returns everything that could not be removed.
    pub(crate) fn remove_evidence(&self, mut errors: Vec<String>, lock: Option<&NodeLock>) -> Vec<String> {
        if !errors.is_empty() {
            return errors;
        }
        errors.extend(self.evidence_directories().iter().filter_map(|path| remove_directory(path)));
        let failed = self.evidence_files().into_iter().filter_map(|path| hostfs::remove(&path).err());
        errors.extend(failed.map(|error| error.to_string()));
        let unlocked = lock.map(NodeLock::remove_file);
        errors.extend(unlocked.and_then(Result::err).map(|error| format!("agent.lock: {error}")));
        errors
    }

    /// Returns the directories in which agent and plugin wrote for each other.
    fn evidence_directories(&self) -> [PathBuf; 2] {
        let locks = self.settings.last_state().with_file_name(cni_types::run_dir::LOCKS);
        [self.settings.records.directory().to_owned(), locks]
    }

    /// Returns the files that agent and plugin wrote for each other and for commands, but the lock.
    fn evidence_files(&self) -> Vec<PathBuf> {
        let sockets = self.daemon_sockets().into_iter().filter(|path| !is_other_file(path));
        let state = self.settings.last_state();
        let others = [
            self.settings.refused_credential(),
            self.settings.ambient_traces.agent.journal.clone(),
            self.settings.history_path(),
            state_collector::staging_path(&state),
            state,
        ];
        sockets.map(Path::to_owned).chain(self.settings.plugin_logs()).chain(others).collect()
    }

    /// Returns the daemon's sockets. Those served by a thread until the process ends still exist.
    fn daemon_sockets(&self) -> Vec<&Path> {
        let DaemonSettings { ambient_traces, debug_socket, log_socket, agent_socket, .. } = &*self.settings;
        let events = ambient_traces.events.as_ref().map(|events| &events.socket);
        let ztunnel = ambient_traces.agent.capture.in_pod().map(|chosen| &chosen.socket);
        let ambient = [events, ztunnel].into_iter().flatten().filter(|_| self.is_ambient);
        [debug_socket, agent_socket]
            .into_iter()
            .chain(log_socket)
            .chain(ambient)
            .map(PathBuf::as_path)
            .collect()
    }
}

/// Whether ambient mode is on, or has left objects behind.
fn finds_ambient(settings: &DaemonSettings) -> bool {
    let traces = &settings.ambient_traces;
    let events = traces.events.as_ref().map(|events| &events.socket);
    let paths = [Some(&traces.agent.journal), Some(&traces.agent.shared_config), events];
    let is_there = |path: &PathBuf| fs::exists(path).unwrap_or(true);
    settings.ambient.is_some() || paths.into_iter().flatten().any(is_there)
}

/// Whether something else than a socket is at a socket's path.
fn is_other_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket())
}

/// Removes a directory with its content; returns the error, if any. A path that does not exist is no error.
fn remove_directory(path: &Path) -> Option<String> {
    let error = fs::remove_dir_all(path).err().filter(|error| error.kind() != io::ErrorKind::NotFound)?;
    Some(format!("{}: {error}", path.display()))
}

/// Returns the directories that are not mounted here, in which nothing could therefore be found.
fn missing_directories(settings: &InstallerSettings) -> Vec<String> {
    let (configurations, plugins) =
        (settings.conf_dir.is_dir(), settings.targets.iter().any(|target| target.is_dir()));
    let targets = settings.targets.iter().map(|target| target.display().to_string()).collect::<Vec<_>>();
    let missing =
        [(configurations, settings.conf_dir.display().to_string()), (plugins, targets.join(" and "))];
    let missing = missing.into_iter().filter(|(is_there, _)| !is_there);
    missing.map(|(_, path)| format!("what is in {path}, which is not mounted here")).collect()
}

/// Creates a directory and its missing parents: a reboot empties tmpfs, and an agent that starts meanwhile has to find the lock.
/// Returns the created directories, outermost first.
fn make_missing(directory: &Path) -> Result<Vec<PathBuf>> {
    let missing = directory.ancestors().take_while(|path| !path.exists());
    let mut made: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    made.reverse();
    for path in &made {
        fs::create_dir(path).with_context(|| format!("cannot make {}", path.display()))?;
    }
    Ok(made)
}

/// Prints what would be removed.
///
/// # Errors
/// The removal plan cannot be determined, or printed.
pub(crate) fn dry_run(values: FlagValues) -> Result<ExitCode> {
    let CommandSettings { values, mut settings, .. } = CommandSettings::from_flags(values)?;
    let output = commands::new_printer(&values, false)?;
    if settings.ambient.is_none() && finds_ambient(&settings) {
        settings.ambient = Some(settings.ambient_traces.clone());
    }
    let state = node_status::obtain_report(&settings)?;
    // A shell on the node has other paths than the agent's container, whose files only the document has.
    let files = settings.installer.conf_dir.is_dir().then(|| list_files(settings, &state));
    commands::show_removal(&state, files, output)
}

/// Lists the files that an uninstallation would remove, and those of which that could not be determined.
fn list_files(settings: DaemonSettings, state: &StateReport) -> (Vec<String>, Vec<String>) {
    let (mut files, errors) = installer::list_removals(&settings.installer);
    let mut unknown: Vec<String> = errors.iter().map(ToString::to_string).collect();
    unknown.extend(missing_directories(&settings.installer));
    let lock = settings.lock_file();
    let uninstallation = Uninstallation::new(Arc::new(settings));
    let mut evidence = uninstallation.evidence_files();
    evidence.extend(uninstallation.evidence_directories());
    evidence.push(lock);
    evidence.retain(|path| fs::symlink_metadata(path).is_ok());
    let shared = state.installation.iter().filter(|file| file.kind == "shared-config");
    files.extend(shared.map(|file| format!("{} {}", file.kind, file.path)));
    files.extend(evidence.iter().map(|path| format!("state {}", path.display())));
    (files, unknown)
}

/// Settings of the command's invocation.
struct CommandSettings {
    values: FlagValues,
    settings: DaemonSettings,
    log: LogOptions,
    /// State recorded by the last agent, if its settings can be used here.
    last: Result<Option<StateReport>>,
}

impl CommandSettings {
    /// Reads the settings. Those that are not given default to the last agent's.
    fn from_flags(values: FlagValues) -> Result<CommandSettings> {
        let (settings, log) = commands::read_settings(&values)?;
        let last = match node_status::last_state(&settings) {
            Ok(Some(last)) => last,
            last => return Ok(CommandSettings { values, settings, log, last }),
        };
        let mut filled = values.clone();
        for setting in
            last.config.iter().filter(|setting| setting.source != "default" && is_useful(&setting.name))
        {
            filled.fill_default(&setting.name, &setting.value);
        }
        Ok(match commands::read_settings(&filled) {
            Ok((settings, log)) => CommandSettings { values: filled, settings, log, last: Ok(Some(last)) },
            Err(error) => CommandSettings { values, settings, log, last: Err(error) },
        })
    }
}

/// Whether a setting of the last agent is used: not the log options, and not the template of an entry that is removed, whose
/// sources may not exist here.
fn is_useful(setting: &str) -> bool {
    let others = [options::CNI_NETWORK_CONFIG_FILE, options::CNI_CONFIG_MAP];
    flags::LOGGING.iter().chain(&others).all(|flag| flag.long != setting)
}

/// Removes everything.
///
/// # Errors
/// An agent runs, which would restore it, or the current state cannot be observed.
pub(crate) fn run(values: FlagValues) -> Result<ExitCode> {
    let CommandSettings { settings, log, last, .. } = CommandSettings::from_flags(values)?;
    let _logger = logging::install(log).context("cannot set up logging")?;
    let settings = Arc::new(settings);
    let uninstallation = Uninstallation::new(Arc::clone(&settings));
    uninstallation.refuse_beside_agent()?;
    allow_many_files();
    let lock_file = settings.lock_file();
    let made = make_missing(lock_file.parent().unwrap_or(Path::new("/")))?;
    let lock = NodeLock::acquire(&lock_file)?;
    let metrics = InstallerMetrics::register(&mut Registry::default());
    let (mut installer, _handle) = Installer::new(
        settings.installer.clone(),
        metrics,
        Arc::new(InstallerStatus::default()),
        Box::new(drop),
    )?;
    let mut errors: Vec<String> = installer.clean_up().iter().map(ToString::to_string).collect();
    errors.extend(missing_directories(&settings.installer));
    errors.extend(uninstallation.remove_capture());
    let errors = uninstallation.remove_evidence(errors, Some(&lock));
    // Only empty directories are removed: content written meanwhile is not ours.
    drop(made.iter().rev().try_for_each(fs::remove_dir));
    errors.iter().for_each(|error| error!(target: "install", error, "not removed"));
    name_annotated_pods(last);
    if errors.is_empty() {
        info!(target: "install", "no file or rule of Millrace remains on this node");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

/// Logs the pods that stay annotated, because the command does not use the API server.
fn name_annotated_pods(last: Result<Option<StateReport>>) {
    let last = last.unwrap_or_else(|error| {
        warn!(target: "install", error = model::describe_error(&*error), "cannot use the last agent's settings");
        None
    });
    for pod in last.iter().flat_map(|last| &last.pods) {
        if let Some(value) = &pod.redirection_annotation {
            warn!(target: "install", namespace = pod.namespace, pod = pod.name, value, "pod may still be annotated with ambient.istio.io/redirection: remove it with kubectl");
        }
    }
}
