//! Command line.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
    ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
    error::ErrorKind,
};
use clap_complete::Shell;
use cluster_report::Severity;
use console::OutputFormat;
use report::CaptureState;

/// Name under which kubectl calls the plugin.
const PLUGIN: &str = "kubectl-millrace";
/// Flag of kubectl that is the default here.
const ALL_NAMESPACES: &str = "all-namespaces";

/// Shows which nodes and pods of a cluster are unhealthy in the mesh, and why.
///
/// Every command reads the API and asks the Millrace agent of each node through the API server. None changes anything, except that
/// `check --pre -f` starts pods and deletes them.
#[derive(Debug, Parser)]
#[command(name = "millrace", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) options: Options,
    /// Namespace, for a command that has this flag
    #[arg(long, short)]
    namespace: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Action,
}

/// Flags of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Flags of every command")]
pub(crate) struct Options {
    /// Kubeconfig file; default: those of $KUBECONFIG, or ~/.kube/config; if none exists, the pod's service account
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// User to impersonate
    #[arg(long = "as", global = true, value_name = "USER")]
    pub(crate) as_user: Option<String>,
    /// Group to impersonate; can be repeated
    #[arg(long, global = true, value_name = "GROUP")]
    pub(crate) as_group: Vec<String>,
    /// Time limit for each request to the API server; 0: none
    #[arg(long, global = true, default_value = "30s", value_parser = request_limit, value_name = "TIME")]
    pub(crate) request_timeout: Duration,
    /// Output format
    #[arg(long, short, global = true, value_parser = format_parser(), default_value = "table", value_name = "FORMAT")]
    pub(crate) output: OutputFormat,
    /// Without colours, as with the variable NO_COLOR
    #[arg(long, global = true)]
    pub(crate) no_color: bool,
    /// Label selector of the agents' pods
    #[arg(long, short = 'l', global = true, default_value = "k8s-app=istio-cni-node", value_name = "LABELS")]
    pub(crate) selector: String,
    /// Namespace of the agents' pods; default: every namespace
    #[arg(long, global = true, value_name = "NAMESPACE")]
    pub(crate) agent_namespace: Option<String>,
    /// How to reach agents
    #[arg(long, global = true, value_enum, default_value_t = Via::PortForward)]
    pub(crate) via: Via,
    /// Port of the agents' debug endpoint (their --ctrlz_port)
    #[arg(long, global = true, default_value_t = 9876, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// Time limit for each agent's answer
    #[arg(long, global = true, default_value = "5s", value_parser = time_limit, value_name = "TIME")]
    pub(crate) timeout: Duration,
    /// Agents queried concurrently
    #[arg(long, global = true, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) concurrency: u16,
}

/// How agents are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Via {
    /// A port-forward to the debug endpoint; needs pods/portforward
    PortForward,
    /// `install-cni state` in the agent's container; needs pods/exec
    Exec,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Check cluster, agents, nodes, pods and NetworkPolicies
    ///
    /// Exit status: 0: nothing is as bad as --fail-on; 1: something is; 2: not everything could be determined.
    Check {
        /// Only pods, NetworkPolicies and labels of this namespace; agents and nodes are checked all the same
        #[arg(long, short)]
        namespace: Option<String>,
        /// Ask only the agent of this node
        #[arg(long)]
        node: Option<String>,
        /// Lowest severity that fails the command
        #[arg(long, value_parser = severity_parser(), default_value = "unknown")]
        fail_on: Severity,
        /// Check again every five seconds until the exit status is 0, for this time at most
        #[arg(long, value_parser = time_limit, value_name = "TIME")]
        wait: Option<Duration>,
        /// Pre-installation check of API objects; with -f, of the nodes, too
        #[arg(long, conflicts_with_all = ["node", "wait"])]
        pre: bool,
        /// With --pre: start a pod of these rendered manifests on each node, which checks it, and delete it; `-`: standard input
        #[arg(long, short, requires = "pre", value_name = "FILE")]
        file: Option<PathBuf>,
        /// With -f: check only so many nodes, spread over the list of them
        #[arg(long, requires = "file", value_parser = clap::value_parser!(u16).range(1..), value_name = "NUMBER")]
        sample: Option<u16>,
    },
    /// List pods with their capture state, worst first
    ///
    /// Exit status: 0: listed; with --bypassing, 0: none, 1: some; 2: pods of some nodes are missing, or no pod is listed and not
    /// everything was observed.
    List {
        /// Only pods that bypass the mesh
        #[arg(long, conflicts_with = "state")]
        bypassing: bool,
        /// Only pods in this state
        #[arg(long, value_parser = capture_state)]
        state: Option<CaptureState>,
        /// Only pods of this namespace
        #[arg(long, short)]
        namespace: Option<String>,
        /// Only pods of this node
        #[arg(long)]
        node: Option<String>,
    },
    /// Explain whether a pod is captured, and why or why not
    ///
    /// Exit status: 0: as desired; 1: something is wrong or in progress; 2: could not be determined; 3: no such pod.
    Explain {
        /// NAMESPACE/POD, or POD in the namespace of -n or of the context
        pod: String,
        /// Namespace of the pod
        #[arg(long, short)]
        namespace: Option<String>,
    },
    /// Prove by packets how a pod's traffic is redirected; needs pods/exec
    ///
    /// Exit status: 0: every path is proven; 1: one bypasses the proxy; 2: one is held or could not be tested; 3: no such pod.
    Prove {
        /// NAMESPACE/POD, or POD in the namespace of -n or of the context
        #[arg(required_unless_present = "all", conflicts_with_all = ["all", ALL_NAMESPACES])]
        pod: Option<String>,
        /// Namespace of the pod; with --all, only pods of this namespace
        #[arg(long, short)]
        namespace: Option<String>,
        /// Every pod of the mesh: all nodes at the same time, and on each node one pod after the other
        #[arg(long)]
        all: bool,
        /// With --all, only pods of this node
        #[arg(long, requires = "all")]
        node: Option<String>,
    },
    /// Compare desired with observed state: files, the nodes' networks, pods
    ///
    /// Exit status: 0: everything was observed and matches; 1: differences; 2: none found, but not everything was observed.
    Verify {
        /// Of pods, only those of this namespace; files and the nodes' networks are compared all the same
        #[arg(long, short)]
        namespace: Option<String>,
        /// Ask only the agent of this node
        #[arg(long)]
        node: Option<String>,
    },
    /// Show what a change would do to pods, without making it
    ///
    /// The agent of each node decides as it would after the change. Exit status: 0: nothing would be as bad as --fail-on; 1:
    /// something would be; 2: not everything could be determined.
    #[command(subcommand)]
    Simulate(Simulated),
    /// Write an archive of all nodes for a bug report, without credentials
    ///
    /// Exit status: 0: written; 2: not written, or no node answered.
    Bundle {
        /// The archive; `-`: standard output; default: millrace-TIME.tar.gz
        #[arg(long, short, value_name = "FILE")]
        file: Option<String>,
        /// Ask only the agent of this node
        #[arg(long)]
        node: Option<String>,
    },
    /// Print one line for each change
    ///
    /// Exit status: 0: --for elapsed; 2: no agent answered, or one that had did not at the end.
    Watch {
        /// End after this time; default: never
        #[arg(long = "for", value_parser = time_limit, value_name = "TIME")]
        duration: Option<Duration>,
        /// Polling interval
        #[arg(long, default_value = "5s", value_parser = time_limit, value_name = "TIME")]
        interval: Duration,
        /// Only pods of this namespace, and whether agents answer
        #[arg(long, short)]
        namespace: Option<String>,
        /// Ask only the agent of this node
        #[arg(long)]
        node: Option<String>,
    },
    /// Print the version of this program
    Version,
    /// Print a completion script
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the manual page, or that of a command
    Man {
        /// The command, such as check
        command: Option<String>,
    },
}

impl Action {
    /// Returns the flag `--namespace`; `None`: this command has none.
    fn namespace_mut(&mut self) -> Option<&mut Option<String>> {
        match self {
            Action::Check { namespace, .. }
            | Action::List { namespace, .. }
            | Action::Explain { namespace, .. }
            | Action::Prove { namespace, .. }
            | Action::Verify { namespace, .. }
            | Action::Simulate(Simulated::Label { namespace, .. })
            | Action::Watch { namespace, .. } => Some(namespace),
            _ => None,
        }
    }
}

/// Changes that can be simulated.
#[derive(Debug, Subcommand)]
pub(crate) enum Simulated {
    /// A change of labels, as kubectl label makes it
    ///
    /// Exit status: 0: nothing would be as bad as --fail-on; 1: something would be; 2: not everything could be determined.
    Label {
        /// The kind of object
        #[arg(value_enum)]
        kind: LabelledKind,
        /// The namespace; or the pod as NAMESPACE/POD, or POD in the namespace of -n or of the context
        name: String,
        /// Labels: KEY=VALUE sets one, KEY- removes it
        #[arg(required = true, value_name = "LABEL")]
        labels: Vec<String>,
        /// As of kubectl label; a simulation overwrites labels anyway
        #[arg(long, hide = true)]
        overwrite: bool,
        /// Namespace of the pod
        #[arg(long, short)]
        namespace: Option<String>,
        /// Lowest severity that fails the command
        #[arg(long, value_parser = severity_parser(), default_value = "unknown")]
        fail_on: Severity,
    },
    /// Other settings of the agents, as rendered manifests or single variables have them
    ///
    /// With -f, the agents' settings are those of the DaemonSet in the manifests and of the ConfigMap that it refers to, and the
    /// defaults of all others: `helm template ... | millrace simulate settings -f -`.
    ///
    /// Exit status: 0: nothing would be as bad as --fail-on; 1: something would be; 2: not everything could be determined.
    Settings {
        /// Variables of the agent: NAME=VALUE; all others stay as they are
        #[arg(required_unless_present = "file", conflicts_with = "file", value_name = "VARIABLE")]
        variables: Vec<String>,
        /// Rendered manifests of the agent; `-`: standard input
        #[arg(long, short, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Lowest severity that fails the command
        #[arg(long, value_parser = severity_parser(), default_value = "unknown")]
        fail_on: Severity,
    },
}

/// Objects with labels that decide on the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LabelledKind {
    /// A namespace
    #[value(alias = "ns", alias = "namespaces")]
    Namespace,
    /// A pod
    #[value(alias = "po", alias = "pods")]
    Pod,
}

/// Command line, and the name under which the program was started.
#[derive(Debug)]
pub(crate) struct Invocation {
    pub(crate) arguments: Arguments,
    /// `millrace` or `kubectl-millrace`.
    pub(crate) program: &'static str,
}

impl Invocation {
    /// Parses the command line; on an error or a request for help exits with the text.
    pub(crate) fn parse(command_line: impl IntoIterator<Item = OsString>) -> Invocation {
        let command_line: Vec<OsString> = command_line.into_iter().collect();
        let program = program_name(command_line.first());
        match read_arguments(command_grammar(program), command_line) {
            Ok(arguments) => Invocation { arguments, program },
            Err(error) => error.exit(),
        }
    }
}

/// Parses a command line, in which `-n` may precede the command, like kubectl's flags.
fn read_arguments(
    mut grammar: Command,
    command_line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<Arguments, clap::Error> {
    let command_line = split_typed_name(command_line.into_iter().map(Into::into).collect());
    let matches = grammar.try_get_matches_from_mut(command_line)?;
    let mut arguments = Arguments::from_arg_matches(&matches)?;
    let Some(namespace) = arguments.namespace.take() else { return Ok(arguments) };
    let is_set = |own: &ArgMatches| own.try_get_one(ALL_NAMESPACES).is_ok_and(|set| set == Some(&true));
    let is_of_all = matches.subcommand().is_some_and(|(_, own)| is_set(own));
    let why = match arguments.command.namespace_mut() {
        Some(own) if own.is_none() && !is_of_all => {
            *own = Some(namespace);
            return Ok(arguments);
        }
        Some(_) => "a namespace is named before the command, and another or all after it",
        None => "this command is not about a namespace: leave out -n",
    };
    Err(grammar.error(ErrorKind::ArgumentConflict, why))
}

/// Rewrites the object of `simulate label` from `TYPE/NAME`, which kubectl accepts too, to `TYPE NAME`.
fn split_typed_name(mut command_line: Vec<OsString>) -> Vec<OsString> {
    let is_kind = |word: &str| LabelledKind::from_str(word, false).is_ok();
    let Some(at) = command_line.windows(2).position(|words| words == ["simulate", "label"]) else {
        return command_line;
    };
    let object = command_line.iter().enumerate().skip(at + 2).find_map(|(at, word)| {
        let word = word.to_str()?;
        let (kind, name) = word.split_once('/').unwrap_or((word, ""));
        is_kind(kind).then(|| (at, OsString::from(kind), OsString::from(name)))
    });
    if let Some((at, kind, name)) = object.filter(|(.., name)| !name.is_empty()) {
        drop(command_line.splice(at..=at, [kind, name]));
    }
    command_line
}

fn program_name(word: Option<&OsString>) -> &'static str {
    let name =
        word.and_then(|word| PathBuf::from(word).file_name().map(|name| name.to_string_lossy().into_owned()));
    if name.is_some_and(|name| name.starts_with("kubectl-")) { PLUGIN } else { "millrace" }
}

/// Returns the grammar, with the program name that users type.
pub(crate) fn command_grammar(program: &'static str) -> Command {
    let of_all = Arg::new(ALL_NAMESPACES).short('A').long(ALL_NAMESPACES).action(ArgAction::SetTrue);
    let of_all = of_all.help("Every namespace, which is the default").conflicts_with("namespace");
    let command = Arguments::command().mut_subcommands(|command| match command.get_name() {
        "check" | "list" | "prove" | "verify" | "watch" => command.arg(&of_all),
        _ => command,
    });
    if program == PLUGIN { command.bin_name("kubectl millrace") } else { command.bin_name("millrace") }
}

fn format_parser() -> impl TypedValueParser<Value = OutputFormat> {
    let value = |format: OutputFormat| PossibleValue::new(format.code()).help(format.message());
    PossibleValuesParser::new(OutputFormat::ALL.map(value))
        .try_map(|code| OutputFormat::from_name(&code).ok_or("unknown output format"))
}

/// Returns the parser of severities, the worst first.
fn severity_parser() -> impl TypedValueParser<Value = Severity> {
    let value = |severity: Severity| PossibleValue::new(severity.code()).help(severity.message());
    PossibleValuesParser::new(Severity::ALL.into_iter().rev().map(value))
        .try_map(|code| Severity::from_name(&code).ok_or("unknown severity"))
}

/// Parses a limit from 1 ms to a day.
fn time_limit(text: &str) -> Result<Duration, String> {
    let allowed = Duration::from_millis(1)..=Duration::from_hours(24);
    flags::duration_or_seconds(text)
        .filter(|limit| allowed.contains(limit))
        .ok_or_else(|| "must be a duration from 1ms to 24h, such as 500ms, 5s or 1m30s".to_owned())
}

/// Parses a limit like kubectl: zero means no limit.
fn request_limit(text: &str) -> Result<Duration, String> {
    let is_zero = flags::duration_or_seconds(text) == Some(Duration::ZERO);
    if is_zero { Ok(Duration::MAX) } else { time_limit(text) }
}

fn capture_state(word: &str) -> Result<CaptureState, String> {
    let all = CaptureState::WORST_FIRST.map(CaptureState::as_str);
    CaptureState::from_name(word).ok_or_else(|| format!("must be one of {}", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_consistent() {
        command_grammar("millrace").debug_assert();
        command_grammar(PLUGIN).debug_assert();
    }

    #[test]
    fn a_plugin_of_kubectl_says_so_in_its_usage() {
        for (word, usage) in [
            ("/usr/local/bin/kubectl-millrace", "Usage: kubectl millrace"),
            ("./millrace", "Usage: millrace"),
        ] {
            let help = command_grammar(program_name(Some(&word.into()))).render_help().to_string();
            assert!(help.contains(usage), "{help}");
        }
    }

    #[test]
    fn a_time_limit_is_from_a_millisecond_to_a_day() {
        for (text, millis) in [("1ms", 1), ("3", 3000), ("1m30s", 90_000), ("24h", 86_400_000)] {
            assert_eq!(time_limit(text), Ok(Duration::from_millis(millis)));
        }
        for text in ["", "0", "0s", "1..5s", "24h1ms"] {
            assert!(time_limit(text).is_err(), "{text}");
        }
        assert_eq!([request_limit("0"), request_limit("2")], [Duration::MAX, Duration::from_secs(2)].map(Ok));
    }

    #[test]
    fn a_label_is_written_as_for_kubectl() {
        for (line, expected) in [
            ("namespace/shop a=b", (LabelledKind::Namespace, "shop")),
            ("ns/shop a=b --overwrite", (LabelledKind::Namespace, "shop")),
            ("--overwrite namespace shop a=b", (LabelledKind::Namespace, "shop")),
            ("-n shop pod/web istio.io/rev=b", (LabelledKind::Pod, "web")),
            ("pod shop/web a=b", (LabelledKind::Pod, "shop/web")),
            ("pod pod/web a=b", (LabelledKind::Pod, "pod/web")),
        ] {
            let line = format!("millrace simulate label {line}");
            let read = read_arguments(command_grammar("millrace"), line.split(' ')).unwrap().command;
            let Action::Simulate(Simulated::Label { kind, name, .. }) = read else { panic!("{line}") };
            assert_eq!((kind, name.as_str()), expected, "{line}");
        }
        for wrong in ["node/n1 a=b", "pod/ a=b", "pod/web"] {
            let line = format!("millrace simulate label {wrong}");
            assert!(read_arguments(command_grammar("millrace"), line.split(' ')).is_err(), "{line}");
        }
    }

    #[test]
    fn flags_of_kubectl_are_those_of_kubectl() {
        let parse = |line: &str| read_arguments(command_grammar(PLUGIN), line.split(' '));
        for command in ["check", "check --pre", "list", "prove --all", "verify", "watch"] {
            for flag in ["-A", "--all-namespaces"] {
                parse(&format!("kubectl-millrace {command} {flag}")).unwrap();
                assert!(parse(&format!("kubectl-millrace {command} {flag} -n shop")).is_err(), "{command}");
                assert!(parse(&format!("kubectl-millrace -n shop {command} {flag}")).is_err(), "{command}");
            }
        }
        for command in
            ["check", "list", "explain web", "prove web", "verify", "watch", "simulate label pod web a=b"]
        {
            let mut before = parse(&format!("kubectl-millrace -n shop {command}")).unwrap();
            assert_eq!(before.command.namespace_mut().unwrap().as_deref(), Some("shop"), "{command}");
            assert!(parse(&format!("kubectl-millrace -n shop {command} -n other")).is_err(), "{command}");
        }
        for command in ["bundle", "version", "man", "completion bash", "simulate settings A=b"] {
            let error = parse(&format!("kubectl-millrace --namespace shop {command}")).unwrap_err();
            assert!(error.to_string().contains("leave out -n"), "{command}: {error}");
        }
        for wrong in
            ["prove -A", "prove shop/web -A", "explain web -A", "bundle -A", "list --request-timeout x"]
        {
            assert!(parse(&format!("kubectl-millrace {wrong}")).is_err(), "{wrong}");
        }
        let options = parse("kubectl-millrace list --as bob --as-group a --as-group b").unwrap().options;
        assert_eq!(
            (options.as_user.as_deref(), &options.as_group[..]),
            (Some("bob"), &["a".into(), "b".into()][..])
        );
    }
}
