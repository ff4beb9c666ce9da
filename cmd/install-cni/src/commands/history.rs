//! `history`: what was changed, also by earlier agents.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use report::{ChangeRecord, tables};

use super::{CommandInvocation, command_flags, explain::pod_name};

pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    let pod = match call.values.words() {
        [] => None,
        words => Some(pod_name(words)?),
    };
    let path = call.settings.history();
    ensure!(
        path.exists(),
        "there is no {}: ambient mode is off, or the agent has changed nothing since the node was started",
        path.display()
    );
    let namespace = call.values.text(&command_flags::NAMESPACE);
    let is_of_namespace = |pod: &str| pod.split_once('/').is_some_and(|(of, _)| of == namespace);
    let is_wanted = |change: &ChangeRecord| match (&pod, &change.pod) {
        (None, of) => namespace.is_empty() || of.as_deref().is_some_and(is_of_namespace),
        (wanted, of) => wanted == of,
    };
    let mut changes = agent::read_history(&path)?;
    changes.retain(is_wanted);
    call.output.print(&changes, |colour| tables::history(&changes, colour))?;
    Ok(ExitCode::SUCCESS)
}
