//! Commands that show the agent's state to a person on the node or to a script: each queries the agent, or inspects the node if no
//! agent runs, and prints the same document in its own form. None changes anything but `log-level`; `prove` sends packets.

mod bundle;
mod check;
mod command_flags;
pub(crate) mod completion;
mod explain;
mod history;
mod invocation;
mod log_level;
mod output;
mod prove;
mod removal;
mod show;
mod simulate;
mod watch;

use std::{ffi::OsString, process::ExitCode};

use anyhow::Result;
use flags::{Flag, FlagStyle, FlagValues, ParseOutcome};

use command_flags::{
    ALL, BYPASSING, CHECK_OUTPUT, FAIL_ON, FILE, FOR, NAMESPACE, NO_COLOR, OUTPUT, OVERWRITE, POD_NAMESPACE,
    WITH_STATE,
};
pub(crate) use command_flags::{DRY_RUN, REMOVAL};
use daemon_settings::{DaemonSettings, HostEnvironment, ProcessEnvironment, options};
use invocation::{CANNOT, CommandInvocation};
pub(crate) use output::{is_on, list_formats, new_printer};
pub(crate) use removal::print_plan as show_removal;
use telemetry::logging::LogOptions;

model::word_enum! {
    /// A command, in the order of the help: name on the command line, and a one-line summary.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum CliCommand {
        Check = "check", "show what would keep the agent from capturing pods here",
        State = "state", "show an overview of the node",
        List = "list", "show the node's pods, the worst first",
        Explain = "explain", "show whether a pod is captured, and why or why not",
        Prove = "prove", "prove by packets how a pod's traffic is redirected",
        Simulate = "simulate", "show which pods a label or setting would bring into ambient mode",
        Verify = "verify", "compare the desired with the observed state",
        Plan = "plan", "show what the agent would do now",
        History = "history", "show what was changed on the node and in its pods",
        Watch = "watch", "print changes as they occur",
        Bundle = "bundle", "write an archive for a bug report",
        LogLevel = "log-level", "show or change the levels of the agent's log",
    }
}

/// How commands take flags that take operands, too.
pub(crate) const WITH_OPERANDS: FlagStyle = FlagStyle { takes_operands: true, ..options::STYLE };

/// Usage text of a command, its own flags, which precede those of the agent, and the function that runs it.
type CommandParts = (&'static str, &'static [Flag], fn(&CommandInvocation) -> Result<ExitCode>);

const CHECK: &str = "install-cni check shows what would keep the agent from capturing pods on this node, with or without an agent.
Kernel features are tried in network namespaces of their own; nothing of the node is changed.

Usage: install-cni check [flags]

Examples:
  install-cni check --fail-on warning     in a script that prepares nodes
  install-cni check -o junit              for a build server
  install-cni check -o sarif              for a service that shows results of analyses

Exit status 0: nothing is as bad as --fail-on; 1: something is; 2: not everything could be determined, or usage error.";
const STATE: &str =
    "install-cni state shows an overview of the node; with -o json everything that the agent knows of it.

Usage: install-cni state [flags]

Examples:
  install-cni state
  install-cni state -o json

Exit status 0: shown; 2: the state could not be determined.";
const EXPLAIN: &str = "install-cni explain shows whether a pod is captured, by which capture mode, since when, why or why not, what
the kernel shows now, and what to do about it.

Usage: install-cni explain NAMESPACE/POD [flags]
       install-cni explain NAMESPACE POD [flags]
       install-cni explain POD [flags]        if only one namespace of the node has such a pod

Examples:
  install-cni explain shop/web
  install-cni explain web -n shop -o json

Exit status 0: it is captured, or outside of the mesh as desired; 1: something is wrong, or not finished yet;
2: the state could not be determined, or usage error; 3: the node has no such pod.";
const PROVE: &str = "install-cni prove proves by packets how a pod's traffic is redirected: in the pod's network namespace the agent
sends packets to an address for documentation, and reads from the kernel where they were redirected. The proxy sees no connection,
and no packet passes the next hop.

Usage: install-cni prove NAMESPACE/POD [flags]
       install-cni prove NAMESPACE POD [flags]
       install-cni prove --all [-n NAMESPACE] [flags]     every pod of the mesh on this node, one after the other

Examples:
  install-cni prove shop/web
  install-cni prove --all -n shop

Exit status 0: every path is proven; 1: at least one bypasses the proxy; 2: none does, but one is held or could not be tested,
or the agent did not answer, or usage error; 3: the node has no such pod.";
const LIST: &str = "install-cni list shows the node's pods, the worst first.

Usage: install-cni list [--bypassing] [--state STATE] [-n NAMESPACE] [flags]

Examples:
  install-cni list -o wide
  install-cni list --bypassing
  install-cni list --state held -n shop

Exit status 0: shown, and with --bypassing there is none; 1: with --bypassing there are some;
2: no pod is shown, but not everything was observed, so there may be some; or usage error.";
const VERIFY: &str = "install-cni verify compares the desired with the observed state of the node.

Usage: install-cni verify [flags]

Examples:
  install-cni verify
  install-cni verify -o json

Exit status 0: everything was observed and is as desired; 1: there are differences;
2: there are none, but not everything could be observed, or the state could not be determined.";
const PLAN: &str = "install-cni plan shows what the agent would do now, as steps and as operations.

Usage: install-cni plan [flags]

Examples:
  install-cni plan

Exit status 0: there is nothing to do; 1: there is; 2: the state could not be determined.";
const BUNDLE: &str = "install-cni bundle writes one archive (tar.gz) for a bug report: state, explanations, the network's objects,
logs, versions. It contains names and addresses of pods, and no secrets.

Usage: install-cni bundle [-f FILE|-] [flags]

Examples:
  install-cni bundle
  install-cni bundle -f - > node.tar.gz

Exit status 0: written; 2: it could not be written.";
const WATCH: &str = "install-cni watch prints a line for each change of a pod, of differences and of the agent's history, until it
is interrupted. It queries the agent once a second.

Usage: install-cni watch [--for DURATION] [flags]

Examples:
  install-cni watch
  install-cni watch --for 5m -o json

Exit status 0: --for elapsed; 2: the agent never answered, or not at the end, or usage error.";
const HISTORY: &str = "install-cni history shows what was changed on the node and in its pods, the newest last: pods that joined or left
the mesh, drift with what was changed and by whom, repaired sidecar pods, and ztunnels that came or went; also by earlier
agents. It reads the file history.jsonl in the agent's run directory, and needs no agent.

Usage: install-cni history [NAMESPACE/POD] [-n NAMESPACE] [flags]

Examples:
  install-cni history
  install-cni history shop/web

Exit status 0: shown; 2: there is no history, it cannot be read, or usage error.";
const SIMULATE: &str = "install-cni simulate shows which pods of the node a change of labels, or an agent with other settings, would
bring into ambient mode or out of it, and what would be wrong then; it changes nothing. The agent decides as it would after the change.

Usage: install-cni simulate label namespace NAME KEY=VALUE|KEY- ... [flags]
       install-cni simulate label pod NAMESPACE/NAME KEY=VALUE|KEY- ... [flags]     or NAME with -n NAMESPACE
       install-cni simulate settings VARIABLE=VALUE ... [flags]     all other settings stay as they are

Examples:
  install-cni simulate label namespace shop istio.io/dataplane-mode=ambient
  install-cni simulate label pod shop/web istio.io/dataplane-mode-
  install-cni simulate settings AMBIENT_ALLOWED_EXCEPTIONS=outbound-ports

Exit status 0: shown; 1: an agent with these settings would not start; 2: the agent did not answer or may not know all pods,
there is no such namespace, or usage error; 3: the node has no such pod.";
const LOG_LEVEL: &str = "install-cni log-level shows the levels of the agent's log, and changes those that are given, until the
agent restarts. It connects to the agent's Unix socket: over TCP, no level can be changed.

Usage: install-cni log-level [SCOPE:LEVEL[,...]] [flags]

SCOPE is a scope that it shows, all, or one of Istio's cni-agent and cni-plugin; LEVEL is none, fatal, error, warn, info or debug.

Examples:
  install-cni log-level
  install-cni log-level ambient:debug

Exit status 0: shown and changed; 2: the agent did not answer, or usage error.";

/// Appended to the usage of a command's own flags.
const DAEMONS_FLAGS: &str = "\nThe flags and variables of the agent are accepted, too, and locate its sockets and files: see install-cni --help.\n";

impl CliCommand {
    pub(crate) fn own_flags(self) -> &'static [Flag] {
        self.parts().1
    }

    fn parts(self) -> CommandParts {
        match self {
            CliCommand::Check => (CHECK, &[FAIL_ON, CHECK_OUTPUT, NO_COLOR], check::run),
            CliCommand::State => (STATE, &[OUTPUT, NO_COLOR], show::show_state),
            CliCommand::List => {
                (LIST, &[BYPASSING, WITH_STATE, NAMESPACE, OUTPUT, NO_COLOR], show::list_pods)
            }
            CliCommand::Explain => (EXPLAIN, &[POD_NAMESPACE, OUTPUT, NO_COLOR], explain::run),
            CliCommand::Prove => (PROVE, &[POD_NAMESPACE, ALL, OUTPUT, NO_COLOR], prove::run),
            CliCommand::Simulate => (SIMULATE, &[POD_NAMESPACE, OVERWRITE, OUTPUT, NO_COLOR], simulate::run),
            CliCommand::Verify => (VERIFY, &[OUTPUT, NO_COLOR], show::verify_node),
            CliCommand::Plan => (PLAN, &[OUTPUT, NO_COLOR], show::show_plan),
            CliCommand::History => (HISTORY, &[NAMESPACE, OUTPUT, NO_COLOR], history::run),
            CliCommand::Watch => (WATCH, &[FOR, OUTPUT, NO_COLOR], watch::run),
            CliCommand::Bundle => (BUNDLE, &[FILE], bundle::run),
            CliCommand::LogLevel => (LOG_LEVEL, &[OUTPUT, NO_COLOR], log_level::run),
        }
    }
}

/// Prints why the program fails, and where to find help if a flag or word was not understood.
pub(crate) fn print_error(error: &anyhow::Error) {
    let hint = if error.is::<flags::FlagErrors>() { "; see --help" } else { "" };
    console::print_message(output::PROGRAM, &format!("{}{hint}", model::describe_error(&**error)));
}

/// Runs a command; prints an error to stderr.
pub(crate) fn run_command(command: CliCommand, arguments: Vec<OsString>) -> ExitCode {
    match try_run(command, arguments) {
        Ok(code) => code,
        Err(error) => {
            print_error(&error);
            ExitCode::from(CANNOT)
        }
    }
}

fn try_run(command: CliCommand, arguments: Vec<OsString>) -> Result<ExitCode> {
    let (usage, own_flags, run) = command.parts();
    // Leaked once: a process runs one command.
    let table: &'static [Flag] = [own_flags, options::ALL.as_slice()].concat().leak();
    let around = |name: &str| ProcessEnvironment.variable(name);
    let style = match command {
        CliCommand::Explain
        | CliCommand::Prove
        | CliCommand::History
        | CliCommand::Simulate
        | CliCommand::LogLevel => WITH_OPERANDS,
        _ => options::STYLE,
    };
    let values = match flags::parse(table, style, arguments, around)? {
        ParseOutcome::Run(values) => values,
        ParseOutcome::Help => {
            console::write_stdout(help_text(usage, own_flags).as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let (mut settings, _) = read_settings(&values)?;
    drop(node_status::detect_probe_sources(&mut settings)); // `check` reports what was not detected
    let output = new_printer(&values, command == CliCommand::Check)?;
    run(&CommandInvocation { values, settings, output })
}

/// Returns the help of a command that also takes the agent's flags; the agent's own help lists those.
pub(crate) fn help_text(usage: &str, own_flags: &[Flag]) -> String {
    format!("{}{DAEMONS_FLAGS}", flags::help_text(usage, own_flags))
}

/// Returns the agent's settings, as far as they are known where the command is called, and the log options.
///
/// # Errors
/// A setting is invalid.
pub(crate) fn read_settings(values: &FlagValues) -> Result<(DaemonSettings, LogOptions)> {
    Ok(DaemonSettings::read(values, &CommandEnv)?)
}

/// Placeholder for the API server's address, which the kubelet gives to a container but not to a shell on the node. The commands
/// never connect to it, so any address will do.
struct CommandEnv;

impl HostEnvironment for CommandEnv {
    fn variable(&self, name: &str) -> Option<String> {
        let variable = ProcessEnvironment.variable(name).filter(|value| !value.is_empty());
        variable.or_else(|| match name {
            "KUBERNETES_SERVICE_HOST" => Some("kubernetes.default.svc".to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
