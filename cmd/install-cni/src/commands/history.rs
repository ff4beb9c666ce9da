//! `history`: recorded changes, also those of earlier agents.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use report::{ChangeRecord, tables};

use super::{command_flags::NAMESPACE, explain, invocation::CommandInvocation};

pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    let (operands, namespace) = (call.values.positionals(), call.values.flag_text(&NAMESPACE));
    let pod = (!operands.is_empty()).then(|| explain::qualified_pod_name(operands, "")).transpose()?;
    let pod = pod.map(|(namespace, name)| format!("{namespace}/{name}"));
    let path = call.settings.history_path();
    ensure!(
        path.try_exists().unwrap_or(true), // where it may not look, reading says why
        "there is no {}: ambient mode is off, or the agent has changed nothing since the node was started",
        path.display()
    );
    let mut changes = agent::read_history(&path)?;
    changes.retain(|change| is_asked_for(change, pod.as_deref(), namespace));
    call.output.print_value(&changes, |_, colour| tables::history_table(&changes, colour))?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the change concerns the pod `NAMESPACE/NAME`, or the namespace; without either, every change matches.
fn is_asked_for(change: &ChangeRecord, pod: Option<&str>, namespace: &str) -> bool {
    let changed = change.pod.as_deref().and_then(|pod| pod.split_once('/')).map(|(of, _)| of);
    (pod.is_none() || pod == change.pod.as_deref()) && (namespace.is_empty() || changed == Some(namespace))
}
