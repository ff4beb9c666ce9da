//! `check`: what would keep the agent from capturing pods on this node.

use std::process::ExitCode;

use anyhow::{Result, bail};
use report::Severity;

use super::{
    command_flags::FAIL_ON,
    invocation::CommandInvocation,
    output::{self, OutputFormat},
};

pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    let least = parse_severity(call.values.text(&FAIL_ON))?;
    let preflight = node_status::check_node(&call.settings);
    match call.output.form {
        OutputFormat::Junit => output::write(preflight.junit(least).as_bytes())?,
        OutputFormat::Sarif => output::write(preflight.sarif().as_bytes())?,
        _ => call.output.print(&preflight, |colour| preflight.text(colour))?,
    }
    Ok(ExitCode::from(preflight.status(least)))
}

fn parse_severity(word: &str) -> Result<Severity> {
    Ok(match word {
        "error" => Severity::Error,
        "unknown" => Severity::Unknown,
        "warning" => Severity::Warning,
        other => bail!("--fail-on: {other:?} is none of error, unknown and warning"),
    })
}
