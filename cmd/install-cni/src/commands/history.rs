//! `history`: what was changed, also by earlier agents.

use std::{path::Path, process::ExitCode};

use anyhow::{Result, ensure};
use report::{ChangeRecord, tables};

use super::output::OutputOptions;

/// The changes that are asked for.
pub(super) struct HistoryQuery {
    /// The pod, as `NAMESPACE/NAME`; `None` means every pod, and the node.
    pub(super) pod: Option<String>,
    /// The namespace of the pods; empty means any.
    pub(super) namespace: String,
}

impl HistoryQuery {
    fn matches(&self, change: &ChangeRecord) -> bool {
        let namespace = change.pod.as_deref().and_then(|pod| pod.split_once('/')).map(|(of, _)| of);
        let is_of_pod = self.pod.is_none() || self.pod == change.pod;
        is_of_pod && (self.namespace.is_empty() || namespace == Some(&self.namespace))
    }
}

pub(super) fn run(path: &Path, query: &HistoryQuery, output: OutputOptions) -> Result<ExitCode> {
    ensure!(
        path.exists(),
        "there is no {}: ambient mode is off, or the agent has changed nothing since the node was started",
        path.display()
    );
    let mut changes = agent::read_history(path)?;
    changes.retain(|change| query.matches(change));
    output.print_value(&changes, |colour| tables::history_table(&changes, colour))?;
    Ok(ExitCode::SUCCESS)
}
