//! Every kind of pod starts, and is captured from its first packet if it must be.

use std::time::Duration;

use serde_json::Value;

use crate::fixture::{Fixture, START_LIMIT, place_of};
use crate::machine::OUTSIDE;
use crate::pods::{BEYOND, PORT, SIDECAR};
use crate::ztunnel::{carried, received};

/// Time limit for the log of a container that has ended.
const LOG_LIMIT: Duration = Duration::from_secs(5);

/// Expected path of a pod's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Unchanged to their destination.
    Direct,
    /// Redirected to the sidecar.
    Sidecar,
    /// Redirected to ztunnel.
    Ztunnel,
}

/// Starts pods concurrently, and checks the path of the first connection of each, and of one now.
pub(crate) fn check(fixture: &mut Fixture, pods: &[(Value, Expected)]) -> Vec<(Value, Expected)> {
    pods.iter().for_each(|(pod, _)| fixture.create(pod));
    let mut running = Vec::new();
    for (pod, expected) in pods {
        if let Some(pod) = fixture.wait_ready(pod) {
            first_packet(fixture, &pod, *expected);
            now(fixture, &pod, *expected, "a later connection");
            running.push((pod, *expected));
        }
    }
    running
}

fn first_packet(fixture: &mut Fixture, pod: &Value, expected: Expected) {
    let place = place_of(pod);
    let attempts = fixture.first_answers(pod);
    let answers: Vec<_> = attempts.iter().filter_map(|line| line["server"].as_str()).collect();
    match expected {
        Expected::Direct => {
            let claim =
                format!("{place} is not captured: its first connection gets out: {}", brief(&attempts));
            fixture.checks.check(attempts.len() == 1 && answers == [BEYOND], claim);
        }
        Expected::Sidecar => {
            let has_init = pod["spec"]["initContainers"].is_array();
            // The runtime may write the container's last lines after its end.
            let early =
                || Some(fixture.attempts(pod, "first")).filter(|lines| !has_init || !lines.is_empty());
            let early = kit::found_within(LOG_LIMIT, early).unwrap_or_default();
            let refused = !has_init || early.first().is_some_and(|line| line["kind"] == "refused");
            fixture.checks.check(
                refused && answers == [SIDECAR],
                format!(
                    "{place} is captured from its first packet: init container {}, application {}",
                    brief(&early),
                    brief(&attempts)
                ),
            );
        }
        Expected::Ztunnel => {
            let carried = carried(fixture, pod);
            fixture.checks.check(
                answers == [BEYOND] && (1..=attempts.len()).contains(&carried),
                format!(
                    "{place} is captured from its first packet: {} and {carried} carried by ztunnel",
                    brief(&attempts)
                ),
            );
        }
    }
}

/// Checks one connection now.
pub(crate) fn now(fixture: &mut Fixture, pod: &Value, expected: Expected, what: &str) -> bool {
    towards(fixture, pod, OUTSIDE, expected, what)
}

/// Checks one connection now to another address of the external server.
pub(crate) fn towards(
    fixture: &mut Fixture,
    pod: &Value,
    host: &str,
    expected: Expected,
    what: &str,
) -> bool {
    let before = carried(fixture, pod);
    let answer = fixture.connect_to(pod, &format!("{host}:{PORT}"));
    let server = answer["server"].as_str().unwrap_or("nobody");
    // ztunnel logs it a moment later.
    let limit = if expected == Expected::Ztunnel { Duration::from_secs(2) } else { Duration::ZERO };
    let through = kit::found_within(limit, || (carried(fixture, pod) > before).then_some(()));
    let holds = match expected {
        Expected::Direct => server == BEYOND && through.is_none(),
        Expected::Sidecar => server == SIDECAR,
        Expected::Ztunnel => server == BEYOND && through.is_some(),
    };
    let by = if through.is_some() { " through ztunnel" } else { "" };
    fixture
        .checks
        .check(holds, format!("{}: {what} is answered by {server}{by} ({expected:?})", place_of(pod)))
}

/// Checks one connection now from outside the node to an address of the application.
pub(crate) fn inbound(fixture: &mut Fixture, pod: &Value, to: &str, expected: Expected, what: &str) -> bool {
    let before = received(fixture, pod);
    let answer = fixture.connect_from_outside(to);
    let server = answer["server"].as_str().unwrap_or("nobody");
    let limit = if expected == Expected::Ztunnel { Duration::from_secs(2) } else { Duration::ZERO };
    let through = kit::found_within(limit, || (received(fixture, pod) > before).then_some(()));
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let holds = match expected {
        Expected::Direct => server == name && through.is_none(),
        Expected::Sidecar => server == SIDECAR,
        Expected::Ztunnel => server == name && through.is_some(),
    };
    let by = if through.is_some() { " through ztunnel" } else { "" };
    let claim = format!("{}: {what} ({to}) is answered by {server}{by} ({expected:?})", place_of(pod));
    if holds {
        return fixture.checks.check(true, claim);
    }
    fixture.checks.check(false, format!("{claim}: {answer}"))
}

/// Starts a pod that is not captured at its start, and waits until it is.
pub(crate) fn joins(fixture: &mut Fixture, pod: &Value) -> Vec<(Value, Expected)> {
    let Some(pod) = fixture.start_pod(pod) else { return Vec::new() };
    let goes_through = |fixture: &Fixture| {
        let before = carried(fixture, &pod);
        fixture.connect(&pod);
        kit::found_within(Duration::from_millis(500), || (carried(fixture, &pod) > before).then_some(()))
    };
    kit::found_within(START_LIMIT, || goes_through(fixture));
    now(fixture, &pod, Expected::Ztunnel, "a connection when the agent has seen it");
    vec![(pod, Expected::Ztunnel)]
}

/// Summary of attempts, equal ones counted.
fn brief(attempts: &[Value]) -> String {
    let word = |line: &Value| line["server"].as_str().or(line["kind"].as_str()).unwrap_or("?").to_owned();
    let mut words: Vec<(String, usize)> = Vec::new();
    for line in attempts {
        match words.last_mut() {
            Some((last, count)) if *last == word(line) => *count += 1,
            _ => words.push((word(line), 1)),
        }
    }
    words.iter().map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", then ")
}
