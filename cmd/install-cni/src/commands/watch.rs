//! `watch`: what changes, line by line.

use std::{
    process::ExitCode,
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use console::Printer;
use report::{StateChange, StateReport, state_changes};

use super::{
    command_flags,
    invocation::{CANNOT, CommandInvocation},
};

/// Between two questions to the agent, each of which costs it a look at the kernel.
const PERIOD: Duration = Duration::from_secs(1);

pub(super) fn run(call: &CommandInvocation) -> Result<ExitCode> {
    let end = match call.values.flag_text(&command_flags::FOR) {
        "" => None,
        text => Some(Instant::now() + parse_duration(text)?),
    };
    let mut watch = StateWatcher { last: None, lost: None, output: call.output };
    loop {
        let began = Instant::now();
        let limit = end.map_or(node_status::LIMIT, |end| {
            node_status::LIMIT.min(end.saturating_duration_since(began).max(PERIOD))
        });
        watch.apply_answer(node_status::from_agent(&call.settings.debug_socket, limit))?;
        let next = began + PERIOD;
        if end.is_some_and(|end| next >= end) {
            break;
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(if watch.last.is_some() { ExitCode::SUCCESS } else { ExitCode::from(CANNOT) })
}

struct StateWatcher {
    last: Option<StateReport>,
    /// Why the agent does not answer, as it was said.
    lost: Option<String>,
    output: Printer,
}

impl StateWatcher {
    fn apply_answer(&mut self, answer: Result<StateReport>) -> Result<()> {
        let mut events = Vec::new();
        match answer {
            Ok(state) => {
                if self.lost.take().is_some() {
                    events.push(StateChange::for_node("agent", "the agent answers again".to_owned()));
                }
                events.extend(state_changes(self.last.as_ref(), &state));
                self.last = Some(state);
            }
            Err(error) => {
                let why = node_status::error_text(&error);
                if self.lost.as_ref() != Some(&why) {
                    events.push(StateChange::for_node("agent", format!("the agent does not answer: {why}")));
                    self.lost = Some(why);
                }
            }
        }
        let time = wire::rfc3339(SystemTime::now());
        events
            .iter()
            .try_for_each(|event| self.output.print_event(&event.to_json(&time), &event.to_line(&time)))
    }
}

/// At most a year.
fn parse_duration(text: &str) -> Result<Duration> {
    let duration = flags::duration_or_seconds(text);
    let duration =
        duration.with_context(|| format!("--for: {text:?} is no time such as 500ms, 30s, 1m30s or 1h"))?;
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
        for text in ["s", "1.5s", "8760h1ms"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
