//! `install-cni`: the daemon that puts the plugin on the node and keeps it there.
//!
//! The way of a start: [`daemon_settings`] all settings, checked before anything is opened, [`daemon`] the parts put
//! together, [`cluster`] what it follows in the API, [`shutdown`] what a SIGTERM means; [`node_agent`] the
//! agent that answers the plugin and captures pods, [`pod_source`] what it knows of pods, [`events`] what Istio's own plugin asks, [`uninstall`] the command that takes everything away,
//! [`commands`] those that show what is there: the state document, which [`node_status`] gets from the agent, or collects without one.
//! Started as `istio-cni-taint`, `istio-iptables` or `istio-clean-iptables` it is another program, [`taint`] or [`istio_iptables`],
//! so that the image has each library once.

mod annotations;
mod cluster;
mod commands;
mod condition;
mod console;
mod daemon;
mod events;
mod node_agent;
mod node_lock;
mod notices;
mod pod_repair;
mod pod_source;
mod shutdown;
mod state_collector;
mod supervise;
mod taint;
mod uninstall;
mod version;

use std::{
    env,
    ffi::OsString,
    io::{self, Write as _},
    process::ExitCode,
    sync::LazyLock,
};

use anyhow::{Result, bail};
use daemon_settings::{DaemonSettings, HostEnvironment as _, ProcessEnvironment, options};
use flags::{Flag, FlagValues, ParseOutcome};
use istio_iptables::tool::IptablesTool;

const USAGE: &str = "install-cni installs the CNI plugin istio-cni on this node, and keeps it installed.

Usage: install-cni [flags]
       install-cni uninstall [--dry-run] [flags]
       install-cni state | list | verify | plan | bundle | watch [flags]
       install-cni explain NAMESPACE/POD [flags]
       install-cni prove NAMESPACE/POD [flags]
       install-cni history [NAMESPACE/POD] [flags]
       install-cni log-level [SCOPE:LEVEL] [flags]
       install-cni version [flags]

Each flag can also be given by the variable that is shown in brackets; the flag wins.";

static UNINSTALL: LazyLock<Vec<Flag>> =
    LazyLock::new(|| [commands::REMOVAL.to_vec(), options::ALL.clone()].concat());

fn main() -> ExitCode {
    let mut arguments = env::args_os();
    let program = arguments.next().unwrap_or_default();
    // First of all: an init container runs it as any user, without capabilities, on a read-only root.
    if let Some(tool) = IptablesTool::named(&program) {
        return tool.main(arguments);
    }
    if taint::is_meant(&program) {
        return taint::main(arguments.collect());
    }
    match run(arguments.collect()) {
        Ok(code) => code,
        Err(error) => {
            console::print_error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(mut arguments: Vec<OsString>) -> Result<ExitCode> {
    let word = arguments.first().and_then(|word| word.to_str());
    if let Some(command) = word.and_then(commands::CliCommand::from_word) {
        arguments.remove(0);
        return Ok(commands::run(command, arguments));
    }
    match word {
        Some("version") => {
            arguments.remove(0);
            let Some(values) = read(version::USAGE, version::FLAGS, arguments)? else {
                return Ok(ExitCode::SUCCESS);
            };
            let text = version::text(&values).map_err(anyhow::Error::msg)?;
            io::stdout().write_all(text.as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        Some("uninstall") => {
            arguments.remove(0);
            let Some(values) = read(uninstall::USAGE, UNINSTALL.as_slice(), arguments)? else {
                return Ok(ExitCode::SUCCESS);
            };
            let is_dry = uninstall::is_dry(&values)?;
            return if is_dry { uninstall::dry_run(values) } else { uninstall::run(values) };
        }
        Some("help") => arguments = vec!["--help".into()],
        Some(word @ ("completion" | "collateral")) => bail!("{word} is not provided; see --help"),
        _ => {}
    }
    let Some(values) = read(USAGE, options::ALL.as_slice(), arguments)? else { return Ok(ExitCode::SUCCESS) };
    let (settings, log) = DaemonSettings::read(&values, &ProcessEnvironment)?;
    daemon::run(settings, log)
}

/// Reads the flags. Returns `None` if the call only asked for help, which has been printed then.
fn read(usage: &str, table: &'static [Flag], arguments: Vec<OsString>) -> Result<Option<FlagValues>> {
    match flags::parse(table, options::STYLE, arguments, |name| ProcessEnvironment.variable(name))? {
        ParseOutcome::Run(values) => Ok(Some(values)),
        ParseOutcome::Help => {
            io::stdout().write_all(flags::help(usage, table).as_bytes())?;
            Ok(None)
        }
    }
}
