//! `check`: conditions that would keep the agent from capturing pods on this node.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use console::OutputFormat;
use report::Severity;

use super::{command_flags::FAIL_ON, invocation::CommandInvocation};

pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    let word = call.values.flag_text(&FAIL_ON);
    let least = Severity::from_name(word)
        .with_context(|| format!("--fail-on: {word:?} must be one of error, unknown and warning"))?;
    let preflight = node_status::check_node(&call.settings, &call.settings.listening_ports());
    match call.output.format {
        OutputFormat::Junit => console::write_stdout(preflight.to_junit(least).as_bytes())?,
        OutputFormat::Sarif => console::write_stdout(preflight.to_sarif().as_bytes())?,
        _ => call.output.print_value(&preflight, |_, colour| preflight.render_table(colour))?,
    }
    Ok(ExitCode::from(preflight.exit_status(least)))
}
