//! `simulate`: queries every agent about the effect of a change, and finds the resulting problems.

use std::{path::Path, process::ExitCode};

use anyhow::{Result, bail};
use cluster_report::{Severity, SimulationReport, simulate_change, simulation_text};
use report::{LabelChange, SettingsChange, SimulatedChange};

use super::{explain::parse_pod_name, rendered};
use crate::{
    arguments::{LabelledKind, Options},
    gather::{ClusterSource, PODS},
    output::{self, CANNOT},
};

/// Simulates a change of the labels of an object, given by kind and name.
///
/// # Errors
/// A name or label is invalid, or the cluster cannot be queried.
pub(super) async fn label_change(
    options: &Options,
    (kind, name): (LabelledKind, &str),
    namespace: Option<&str>,
    labels: &[String],
    least: Severity,
) -> Result<ExitCode> {
    let source = ClusterSource::open(options).await?;
    let (namespace, pod) = match (kind, namespace) {
        (LabelledKind::Namespace, None) => (name, None),
        (LabelledKind::Namespace, Some(_)) => bail!("a namespace is in none: leave out -n"),
        (LabelledKind::Pod, namespace) => {
            let (namespace, pod) = parse_pod_name(name, namespace, &source.session.namespace)?;
            (namespace, Some(pod))
        }
    };
    let change = LabelChange::parse(namespace, pod, labels.iter().map(String::as_str))?;
    let change = SimulatedChange::Labels(change);
    let (cluster, replies) = source.query_simulation(&change).await?;
    if let Some(pod) = pod
        && cluster.has_read(PODS)
        && !cluster.pods.iter().any(|found| found.metadata.name == pod)
    {
        bail!("there is no pod {namespace}/{pod}");
    }
    print_report(options, &simulate_change(&cluster, &change, &replies), !replies.is_empty(), least)
}

/// Simulates other settings of the agents: those of rendered manifests, or single ones.
///
/// # Errors
/// The settings cannot be read, or the cluster cannot be queried.
pub(super) async fn simulate_settings(
    options: &Options,
    variables: &[String],
    file: Option<&Path>,
    least: Severity,
) -> Result<ExitCode> {
    let (change, left_out) = match file {
        Some(file) => {
            let rendered = rendered::read_manifests(file)?;
            (rendered.change.check()?, rendered.left_out)
        }
        None => (SettingsChange::parse(variables.iter().map(String::as_str))?, Vec::new()),
    };
    let change = SimulatedChange::Settings(change);
    let source = ClusterSource::open(options).await?;
    let (cluster, mut replies) = source.query_simulation(&change).await?;
    for simulation in replies.values_mut().flatten() {
        simulation.not_simulated.extend(left_out.iter().cloned());
    }
    print_report(options, &simulate_change(&cluster, &change, &replies), !replies.is_empty(), least)
}

fn print_report(
    options: &Options,
    report: &SimulationReport,
    has_agents: bool,
    least: Severity,
) -> Result<ExitCode> {
    output::new_printer(options).print_value(report, |all, colour| simulation_text(report, all, colour))?;
    if !has_agents {
        output::print_message("no agent was found");
        return Ok(ExitCode::from(CANNOT));
    }
    Ok(ExitCode::from(report.status(least)))
}
