//! `simulate`: asks every agent what a change would do, and looks for what would be wrong then.

use std::process::ExitCode;

use anyhow::{Result, bail};
use cluster_report::{Severity, simulate_change, simulation_text};
use report::LabelChange;

use super::explain::parse_pod_name;
use crate::{
    arguments::{LabelledKind, Options},
    gather::ClusterSource,
    output::{self, CANNOT, Printer},
};

/// The object whose labels would change.
pub(super) struct LabelledObject<'a> {
    pub(super) kind: LabelledKind,
    pub(super) name: &'a str,
    pub(super) namespace: Option<&'a str>,
}

/// Simulates a change of labels.
///
/// # Errors
/// The names or labels are none, or the cluster cannot be asked.
pub(super) async fn label_change(
    options: &Options,
    object: LabelledObject<'_>,
    labels: &[String],
    least: Severity,
) -> Result<ExitCode> {
    let source = ClusterSource::open(options).await?;
    let (namespace, pod) = match (object.kind, object.namespace) {
        (LabelledKind::Namespace, None) => (object.name, None),
        (LabelledKind::Namespace, Some(_)) => bail!("a namespace is in none: leave out -n"),
        (LabelledKind::Pod, namespace) => {
            let (namespace, pod) = parse_pod_name(object.name, namespace, &source.session.namespace)?;
            (namespace, Some(pod))
        }
    };
    let change = LabelChange::parse(namespace, pod, labels.iter().map(String::as_str))?;
    let (cluster, replies) = source.query_simulation(&change).await?;
    if let Some(pod) = pod
        && !cluster.pods.iter().any(|found| found.metadata.name == pod)
    {
        bail!("there is no pod {namespace}/{pod}");
    }
    let report = simulate_change(&cluster, &change, &replies);
    Printer::new(options).print_value(&report, |all, colour| simulation_text(&report, all, colour))?;
    if replies.is_empty() {
        output::print_message("no agent was found");
        return Ok(ExitCode::from(CANNOT));
    }
    Ok(ExitCode::from(report.status(least)))
}
