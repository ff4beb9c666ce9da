//! `log-level`: shows and changes the levels of the agent's log over its Unix socket.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::invocation::CommandInvocation;

const LEVELS: &str = "/debug/log";

/// The agent's response; only the fields that are shown.
#[derive(Deserialize, Serialize)]
struct LogLevels {
    scopes: Vec<ScopeLevel>,
}

#[derive(Deserialize, Serialize)]
struct ScopeLevel {
    scope: String,
    level: String,
    description: String,
}

/// Sets the given levels, and prints all.
pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    let (socket, operands) = (&call.settings.debug_socket, call.values.positionals());
    // All operands are parsed before the first request is sent.
    let changes = operands.iter().flat_map(|word| model::list_elements(word)).map(change_query);
    for query in changes.collect::<Result<Vec<String>>>()? {
        node_status::send_put(socket, &format!("{LEVELS}?{query}"), node_status::LIMIT)?;
    }
    let body = node_status::fetch(socket, LEVELS, node_status::LIMIT)?;
    let levels: LogLevels = serde_json::from_slice(&body).context("the agent's answer cannot be read")?;
    call.output.print_value(&levels.scopes, |_, _| levels_table(&levels))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the query parameters of a request for `SCOPE:LEVEL`.
fn change_query(change: &str) -> Result<String> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    match change.split_once(':') {
        Some((scope, level)) if is_name(scope) && is_name(level) => {
            Ok(format!("scope={scope}&level={level}"))
        }
        _ => bail!("{change:?} is not SCOPE:LEVEL"),
    }
}

fn levels_table(levels: &LogLevels) -> String {
    let line = |scope: &str, level: &str, about: &str| format!("{scope:10} {level:6} {about}\n");
    let clean = report::sanitize_text;
    let lines = levels.scopes.iter().map(|ScopeLevel { scope, level, description }| {
        line(&clean(scope), &clean(level), &clean(description))
    });
    line("SCOPE", "LEVEL", "DESCRIPTION") + &lines.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_scope_and_a_level() {
        assert_eq!(change_query("cni-agent:debug").unwrap(), "scope=cni-agent&level=debug");
        for wrong in
            ["", "cni", "cni:", ":debug", "cni:debug:x", "cni:de bug", "cni:x&scope=all", "a\r\n:debug"]
        {
            assert!(change_query(wrong).is_err(), "{wrong:?}");
        }
    }
}
