//! `watch`: state changes, one per line.

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use report::NodeWatch;

use super::{
    command_flags,
    invocation::{CANNOT, CommandInvocation},
};

/// Interval between two requests to the agent, each of which makes it observe the kernel.
const PERIOD: Duration = Duration::from_secs(1);
/// Time for the last answer: the agent may pause for two seconds before it observes the kernel again.
const LAST_ANSWER: Duration = Duration::from_secs(5);

pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    let end = match call.values.flag_text(&command_flags::FOR) {
        "" => None,
        text => Some(Instant::now() + parse_duration(text)?),
    };
    let mut watch = NodeWatch::default();
    loop {
        let began = Instant::now();
        let limit = end.map_or(node_status::LIMIT, |end| {
            node_status::LIMIT.min(end.saturating_duration_since(began).max(LAST_ANSWER))
        });
        let answer = node_status::from_agent(&call.settings.debug_socket, limit);
        let changes = watch.record_answer(answer.map_err(|error| model::describe_error(&*error)));
        let time = agent_protocol::rfc3339(SystemTime::now());
        for change in changes {
            if !call.output.print_event(&change.to_json(&time), &change.to_line(&time))? {
                return Ok(ExitCode::SUCCESS); // nobody reads on
            }
        }
        let next = began + PERIOD;
        if end.is_some_and(|end| next >= end) {
            break;
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let is_known = watch.has_answered() && !watch.is_silent();
    Ok(if is_known { ExitCode::SUCCESS } else { ExitCode::from(CANNOT) })
}

/// Parses a duration of at most a year.
fn parse_duration(text: &str) -> Result<Duration> {
    let duration = flags::duration_or_seconds(text);
    let duration = duration
        .with_context(|| format!("--for: {text:?} is not a duration such as 500ms, 30s, 1m30s or 1h"))?;
    ensure!(duration <= Duration::from_hours(365 * 24), "--for: {text:?} is too long");
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_watches_for_at_most_a_year() {
        for (text, seconds) in [("3", 3), ("1m30s", 90), ("8760h", 31_536_000)] {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_secs(seconds));
        }
        for text in ["s", "1..5s", "8760h1ms"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
