//! `install-cni`: the daemon that installs the plugin on the node and keeps it installed.
//!
//! Startup: [`daemon_settings`] validates all settings before anything is opened, [`daemon`] assembles the parts, [`cluster`]
//! follows API resources, [`shutdown`] decides what a SIGTERM means; [`node_agent`] answers the plugin and captures pods,
//! [`pod_source`] supplies facts about pods, [`events`] serves Istio's own plugin, [`uninstall`] is the command that removes
//! everything, [`commands`] are those that show the state document, which [`node_status`] gets from the agent, or collects without
//! one.
//! Started as `istio-cni-taint`, `istio-iptables` or `istio-clean-iptables` it is another program, [`taint`] or [`istio_iptables`],
//! so that the image has each library once.

mod annotations;
mod cluster;
mod commands;
mod condition;
mod daemon;
mod events;
mod health;
mod node_agent;
mod node_lock;
mod notices;
mod pod_repair;
mod pod_source;
mod preflight;
mod proof_sampler;
mod shutdown;
mod state_collector;
mod supervise;
mod taint;
mod uninstall;
mod version;

use std::{
    env,
    ffi::OsString,
    fmt::Write as _,
    io::{self, Write as _},
    process::ExitCode,
    sync::LazyLock,
};

use anyhow::{Result, bail};
use commands::{
    CliCommand,
    completion::{self, Subcommand},
};
use daemon_settings::{DaemonSettings, HostEnvironment as _, ProcessEnvironment, options};
use flags::{Flag, FlagValues, ParseOutcome};
use istio_iptables::tool::IptablesTool;

/// Text of the agent's own `--help`, without its flags.
fn usage_text() -> String {
    let mut commands = String::new();
    for (name, summary, _) in all_subcommands() {
        let _ = writeln!(commands, "  {name:<12}{summary}"); // writing to a String cannot fail
    }
    format!(
        "install-cni installs the CNI plugin istio-cni on this node, and keeps it installed.

Usage: install-cni [flags]             run as the agent
       install-cni COMMAND [flags]
       install-cni help COMMAND        its flags, exit statuses and examples

Commands:
{commands}
Each flag can also be given by the variable that is shown in brackets; the flag wins."
    )
}

/// Returns every command with its one-line summary and its flags.
fn all_subcommands() -> Vec<Subcommand> {
    let shown = CliCommand::ALL
        .into_iter()
        .map(|command| (command.code(), command.message(), command.own_flags().to_vec()));
    let others = [
        ("uninstall", "remove everything of the agent from the node", commands::REMOVAL.to_vec()),
        ("completion", "print a script for bash, zsh or fish that completes commands and flags", Vec::new()),
        ("version", "print the version", version::FLAGS.to_vec()),
    ];
    shown.chain(others).collect()
}

static UNINSTALL: LazyLock<Vec<Flag>> =
    LazyLock::new(|| [commands::REMOVAL.to_vec(), options::ALL.clone()].concat());

fn main() -> ExitCode {
    let mut arguments = env::args_os();
    let program = arguments.next().unwrap_or_default();
    // First of all: an init container runs it as any user, without capabilities, on a read-only root.
    if let Some(tool) = IptablesTool::from_program(&program) {
        return tool.main(arguments);
    }
    if taint::is_meant(&program) {
        return taint::main(arguments.collect());
    }
    // Repair in place starts this program once more in the user namespace of a pod, which no thread can enter.
    if let Some(error) = firewall::become_tool(env::args_os()) {
        commands::print_error(&anyhow::Error::msg(error));
        return ExitCode::FAILURE;
    }
    match run_subcommand(arguments.collect()) {
        Ok(code) => code,
        Err(error) => {
            commands::print_error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run_subcommand(mut arguments: Vec<OsString>) -> Result<ExitCode> {
    // A word that is not UTF-8 is an unknown command, too.
    let word = arguments.first().map(|word| word.to_string_lossy().into_owned());
    let Some(word) = word.filter(|word| !word.starts_with('-')) else { return run_agent(arguments) };
    arguments.remove(0);
    if let Some(command) = CliCommand::from_name(&word) {
        return Ok(commands::run_command(command, arguments));
    }
    match word.as_str() {
        "help" => {
            arguments.truncate(1);
            run_subcommand([arguments, vec!["--help".into()]].concat())
        }
        "version" => {
            let help = flags::help_text(version::USAGE, version::FLAGS);
            let Some(values) = read_flags(&help, version::FLAGS, arguments)? else {
                return Ok(ExitCode::SUCCESS);
            };
            let text = version::render_text(&values)?;
            io::stdout().write_all(text.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        "uninstall" => {
            let help = commands::help_text(uninstall::USAGE, &commands::REMOVAL);
            let Some(values) = read_flags(&help, UNINSTALL.as_slice(), arguments)? else {
                return Ok(ExitCode::SUCCESS);
            };
            let is_dry = commands::is_on(&values, &commands::DRY_RUN)?;
            if is_dry { uninstall::dry_run(values) } else { uninstall::run(values) }
        }
        "completion" => {
            let call = flags::parse(&[], commands::WITH_OPERANDS, arguments, |_| None)?;
            let text = match call {
                ParseOutcome::Help => flags::help_text(completion::USAGE, &[]),
                ParseOutcome::Run(values) => {
                    completion::shell_script(&values.positionals().join(" "), &all_subcommands())?
                }
            };
            io::stdout().write_all(text.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            // `uninstall` is never suggested: a mistyped word must not lead to a command that removes.
            let names = all_subcommands().into_iter().map(|(name, ..)| name);
            let names = names.filter(|name| *name != "uninstall").chain(["help"]);
            let meant = flags::nearest_name(&word, names).map(|name| format!(" (did you mean {name:?}?)"));
            bail!("unknown command {word:?}{}; see install-cni help", meant.unwrap_or_default())
        }
    }
}

fn run_agent(arguments: Vec<OsString>) -> Result<ExitCode> {
    let help = flags::help_text(&usage_text(), &options::ALL);
    let Some(values) = read_flags(&help, options::ALL.as_slice(), arguments)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let (settings, log) = DaemonSettings::read(&values, &ProcessEnvironment)?;
    daemon::run(settings, log)
}

/// Parses the flags. Returns `None` if the call only asked for help, which has then been printed.
fn read_flags(help: &str, table: &'static [Flag], arguments: Vec<OsString>) -> Result<Option<FlagValues>> {
    match flags::parse(table, options::STYLE, arguments, |name| ProcessEnvironment.variable(name))? {
        ParseOutcome::Run(values) => Ok(Some(values)),
        ParseOutcome::Help => {
            io::stdout().write_all(help.as_bytes())?;
            Ok(None)
        }
    }
}
