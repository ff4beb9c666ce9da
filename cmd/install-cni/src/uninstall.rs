//! `install-cni uninstall`: takes everything off the node that an agent has put there, without one and without the API
//! server.

use std::{os::unix::net::UnixStream, process::ExitCode, sync::Arc};

use anyhow::{Context as _, Result, bail};
use daemon_settings::DaemonSettings;
use flags::FlagValues;
use installer::{Installer, InstallerMetrics, InstallerStatus};
use prometheus_client::registry::Registry;
use telemetry::logging::{self, LogOptions};
use tracing::{error, info};

use crate::{
    ambient,
    commands::{self, OutputOptions},
    node_lock::NodeLock,
    state_collector,
};

/// What the command says about itself.
pub(crate) const USAGE: &str =
    "install-cni uninstall removes the plugin, its entry and its credential from this node and, in ambient mode, all rules,
links and routes of the agent. Exit status 0: everything was removed; 1: something remains, and is listed.
Pass the settings of the agent. The agent must not be running, except with --dry-run, which lists what would be removed,
changes nothing, and exits with status 0.

Usage: install-cni uninstall [--dry-run] [flags]";

/// Nothing is to be changed.
///
/// # Errors
/// The flag is neither true nor false.
pub(crate) fn is_dry(values: &FlagValues) -> Result<bool> {
    commands::is_on(values, &commands::DRY_RUN)
}

/// Prints what would be removed.
///
/// # Errors
/// That cannot be determined, or printed.
pub(crate) fn pretend(settings: &DaemonSettings, values: &FlagValues) -> Result<ExitCode> {
    let output = OutputOptions::read(values)?;
    commands::show_removal(&node_status::obtain(settings)?, output)
}

/// Removes everything.
///
/// # Errors
/// An agent runs, which would put it back, or what is there cannot be observed.
pub(crate) fn run(settings: &DaemonSettings, log: LogOptions) -> Result<ExitCode> {
    let _logger = logging::install(log).context("cannot set up logging")?;
    let sockets = settings.log_socket.iter().chain([&settings.agent_socket]);
    for socket in sockets {
        if UnixStream::connect(socket).is_ok() {
            bail!(
                "an agent runs on this node, and would put everything back ({} is served): delete its DaemonSet, which \
                 takes everything away by itself, or stop it first",
                socket.display()
            );
        }
    }
    let lock = NodeLock::acquire(&settings.lock_file())?;
    let records = state_collector::remove_records(settings);
    let metrics = InstallerMetrics::register(&mut Registry::default());
    let (mut installer, _handle) = Installer::new(
        settings.installer.clone(),
        metrics,
        Arc::new(InstallerStatus::default()),
        Box::new(drop),
    )?;
    let mut troubles: Vec<String> = installer.clean_up().iter().map(ToString::to_string).collect();
    if let Some(ambient) = &settings.ambient {
        troubles.extend(ambient::uninstall(ambient));
    }
    if troubles.is_empty() {
        troubles.extend(state_collector::remove_journal(settings));
    }
    troubles.extend(records);
    troubles.extend(lock.remove().err().map(|error| format!("agent.lock: {error}")));
    troubles.iter().for_each(|trouble| error!(target: "install", error = trouble, "not removed"));
    if troubles.is_empty() {
        info!(target: "install", "nothing of ours is left on this node");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}
