//! The commands.

mod bundle;
mod explain;
mod node_checks;
mod prove;
mod rendered;
mod simulate;
mod watch;

use std::{
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap_complete::Shell;
use cluster_report::{
    CheckLine, Cluster, Finding, NodeMessage, Severity, UnreadObjects, check, check_before_installation,
    check_text, installation_nodes, list_text, not_known_text, partial_text, pod_list, preflight_text,
    render_junit, render_sarif, verify_cluster, verify_text,
};
use console::OutputFormat;
use report::CaptureState;

use self::node_checks::{CheckedAgent, NodeChecker};
use crate::{
    arguments::{self, Action, Invocation, Options, Simulated},
    gather::ClusterSource,
    output::{self, CANNOT},
};

/// Delay between checks while waiting.
const WAIT_INTERVAL: Duration = Duration::from_secs(5);

/// Executes the command line; returns the exit status.
///
/// # Errors
/// The answer could not be determined, or not be written.
pub(crate) async fn run(invocation: &Invocation) -> Result<ExitCode> {
    let options = &invocation.arguments.options;
    let is_check = matches!(invocation.arguments.command, Action::Check { .. });
    ensure!(is_check || !options.output.belongs_to_check(), "only check supports -o junit and -o sarif");
    match &invocation.arguments.command {
        Action::Check { namespace, fail_on, pre: true, file, sample, .. } => {
            let nodes = file.as_deref().map(|file| (file, sample.map_or(usize::MAX, usize::from)));
            check_before(options, namespace.as_deref(), nodes, *fail_on).await
        }
        Action::Check { namespace, node, fail_on, wait, .. } => {
            let until = Instant::now() + wait.unwrap_or_default();
            check_cluster(options, namespace.as_deref(), node.as_deref(), *fail_on, until).await
        }
        Action::List { bypassing, state, namespace, node } => {
            let state = if *bypassing { Some(CaptureState::Bypassing) } else { *state };
            list_pods(options, namespace.as_deref(), node.as_deref(), state, *bypassing).await
        }
        Action::Explain { pod, namespace } => explain::run(options, pod, namespace.as_deref()).await,
        Action::Prove { pod: Some(pod), namespace, .. } => {
            prove::run(options, pod, namespace.as_deref()).await
        }
        Action::Prove { pod: None, namespace, node, .. } => {
            prove::run_all(options, namespace.as_deref(), node.as_deref()).await
        }
        Action::Verify { namespace, node } => {
            verify_nodes(options, namespace.as_deref(), node.as_deref()).await
        }
        Action::Simulate(Simulated::Label { kind, name, labels, namespace, fail_on, .. }) => {
            simulate::label_change(options, (*kind, name), namespace.as_deref(), labels, *fail_on).await
        }
        Action::Simulate(Simulated::Settings { variables, file, fail_on }) => {
            simulate::simulate_settings(options, variables, file.as_deref(), *fail_on).await
        }
        Action::Bundle { file, node } => bundle::run(options, file.as_deref(), node.as_deref()).await,
        Action::Watch { duration, interval, namespace, node } => {
            watch::run(options, *duration, *interval, namespace.as_deref(), node.as_deref()).await
        }
        Action::Version => print_version(options),
        Action::Completion { shell } => print_completion(invocation.program, *shell),
        Action::Man { command } => print_man_page(command.as_deref()),
    }
}

async fn check_cluster(
    options: &Options,
    namespace: Option<&str>,
    node: Option<&str>,
    least: Severity,
    until: Instant,
) -> Result<ExitCode> {
    let source = ClusterSource::open(options).await?;
    let report = loop {
        let report = source.read_cluster(namespace, node).await.map(|cluster| check(&cluster));
        let is_good = report.as_ref().is_ok_and(|report| report.status(least) == 0);
        let remaining = until.saturating_duration_since(Instant::now());
        if is_good || remaining.is_zero() {
            break report?;
        }
        tokio::time::sleep(remaining.min(WAIT_INTERVAL)).await;
    };
    if !print_log(options, "millrace check", &report.checks, &report.findings, least)? {
        output::new_printer(options)
            .print_value(&report, |wide, colour| check_text(&report, wide, colour))?;
    }
    Ok(ExitCode::from(report.status(least)))
}

/// Checks before an installation. `nodes`: manifests of the agent whose pods check nodes, and the maximum number of nodes.
async fn check_before(
    options: &Options,
    namespace: Option<&str>,
    nodes: Option<(&Path, usize)>,
    least: Severity,
) -> Result<ExitCode> {
    // Before a credential plugin runs, which inherits the standard input.
    let agent = nodes.map(|(file, most)| anyhow::Ok((CheckedAgent::read(file)?, most))).transpose()?;
    let source = ClusterSource::open(options).await?;
    let (cluster, objects) = source.before_installation(namespace).await?;
    let node_checks = match agent {
        Some((agent, most)) => {
            let checker = NodeChecker::new(&source.session.client, options, agent);
            Some(checker.check_nodes(&sample_nodes(&cluster, most)).await?)
        }
        None => None,
    };
    let report = check_before_installation(&cluster, &objects, node_checks.as_ref());
    if !print_log(options, "millrace check --pre", &report.checks, &report.findings, least)? {
        output::new_printer(options)
            .print_value(&report, |wide, colour| preflight_text(&report, wide, colour))?;
    }
    Ok(ExitCode::from(report.status(least)))
}

/// Returns at most this number of the nodes on which the agent would run, spread over all of them: neighbours are often alike.
fn sample_nodes(cluster: &Cluster, most: usize) -> Vec<&str> {
    let mut nodes: Vec<&str> =
        installation_nodes(cluster).into_iter().map(|node| node.metadata.name.as_str()).collect();
    nodes.sort_unstable();
    let number = most.min(nodes.len());
    (0..number).filter_map(|index| nodes.get(index * nodes.len() / number).copied()).collect()
}

/// Prints a check in another service's format; returns false for any other format.
fn print_log(
    options: &Options,
    name: &str,
    checks: &[CheckLine],
    findings: &[Finding],
    least: Severity,
) -> Result<bool> {
    match options.output {
        OutputFormat::Junit => console::write_stdout(render_junit(name, checks, findings, least).as_bytes())?,
        OutputFormat::Sarif => console::write_stdout(render_sarif(name, checks, findings).as_bytes())?,
        _ => return Ok(false),
    }
    Ok(true)
}

async fn list_pods(
    options: &Options,
    namespace: Option<&str>,
    node: Option<&str>,
    state: Option<CaptureState>,
    bypassing: bool,
) -> Result<ExitCode> {
    let cluster = ClusterSource::open(options).await?.query_all_nodes(namespace, node).await?;
    let list = pod_list(&cluster, state);
    output::new_printer(options).print_value(&list, |wide, colour| list_text(&list, wide, colour))?;
    print_partial(&list.unanswered, &cluster.unread);
    if cluster.answers.is_empty() {
        output::print_message("no agent was found");
    }
    let status = list.status(bypassing);
    if status == CANNOT {
        output::print_message(&not_known_text(&list.unknown));
    }
    Ok(ExitCode::from(status))
}

async fn verify_nodes(options: &Options, namespace: Option<&str>, node: Option<&str>) -> Result<ExitCode> {
    let cluster = ClusterSource::open(options).await?.query_all_nodes(namespace, node).await?;
    let report = verify_cluster(&cluster);
    output::new_printer(options).print_value(&report, |_, colour| verify_text(&report, colour))?;
    print_partial(&report.unanswered, &cluster.unread);
    Ok(ExitCode::from(report.status()))
}

fn print_partial(unanswered: &[NodeMessage], unread: &[UnreadObjects]) {
    output::print_message(&partial_text(unanswered));
    for UnreadObjects { what, why } in unread {
        output::print_message(&format!("partial: nodes without an agent are not known: {what}: {why}"));
    }
}

fn print_version(options: &Options) -> Result<ExitCode> {
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    let value = serde_json::json!({"clientVersion": {"version": VERSION}});
    output::new_printer(options).print_value(&value, |_, _| format!("Client Version: {VERSION}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn print_completion(program: &'static str, shell: Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut arguments::command_grammar("millrace"), program, &mut script);
    console::write_stdout(&script)?;
    Ok(ExitCode::SUCCESS)
}

fn print_man_page(command: Option<&str>) -> Result<ExitCode> {
    let mut all = arguments::command_grammar("millrace").disable_help_subcommand(true);
    all.build(); // sets the full names of commands and their global flags
    let documented = match command {
        None => all,
        Some(name) => {
            all.find_subcommand(name).cloned().with_context(|| format!("there is no command {name}"))?
        }
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(documented).render(&mut page).context("cannot make the manual page")?;
    console::write_stdout(&page)?;
    Ok(ExitCode::SUCCESS)
}
