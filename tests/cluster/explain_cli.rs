//! `install-cni explain` on real nodes: each situation is created, and the answer must be correct, and clear even to a tired
//! reader.

mod in_pod;
mod no_agent;
mod node;
mod sidecar;

use std::time::Duration;

use kit::Container;
use report::{Explanation, PodVerdict};
use serde_json::Value;

/// Time limit of every wait: the agent observes everything at least every 30 s.
const LIMIT: Duration = Duration::from_secs(60);

/// The first advice if the agent runs and repairs.
const WAIT: &str = "Wait a minute and ask again: the agent repairs this by itself.";

/// Expected answer: code, capture, path, and exit status.
pub(crate) type Expected = (&'static str, &'static str, &'static str, i32);

/// Runs a command in the agent's container, and returns status and stdout.
fn call(container: &Container, arguments: &[&str]) -> (i32, String) {
    let output = container.exec(arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    let status = output.status.code().unwrap();
    assert!(
        status != 101 && !(text.is_empty() && complaint.is_empty()),
        "{arguments:?}: {status}: {complaint}"
    );
    (status, text)
}

/// The answer of `explain`, which must match its exit status.
pub(crate) fn explain(container: &Container, pod: &str) -> Explanation {
    let (status, text) = call(container, &["explain", pod, "-o", "json"]);
    let answer: Explanation = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(status, i32::from(answer.verdict.exit_status()), "{answer:#?}");
    readable(&answer);
    answer
}

/// Asserts what must hold of every answer.
fn readable(answer: &Explanation) {
    let parts = [&answer.details, &answer.node_problems, &answer.advice];
    let all: Vec<&String> = parts.into_iter().flatten().chain([&answer.message]).collect();
    for text in &all {
        let ends = text.ends_with('.') && !text.ends_with("..");
        assert!(ends && text.split(' ').all(|word| !word.is_empty()), "{text:?}: {answer:#?}");
        assert!(!text.contains('\n'), "{text:?}: {answer:#?}");
        assert_eq!(all.iter().filter(|other| *other == text).count(), 1, "{text:?} twice: {answer:#?}");
    }
    assert!(answer.verdict != PodVerdict::Unhealthy || !answer.advice.is_empty(), "no advice: {answer:#?}");
}

/// Asserts that `explain` gives this answer.
pub(crate) fn says(container: &Container, pod: &str, expected: Expected) -> Explanation {
    let answer = explain(container, pod);
    assert_eq!(short(&answer), expected, "{answer}");
    answer
}

fn short(answer: &Explanation) -> (&str, &str, &str, i32) {
    let capture = answer.capture.map_or("-", report::CaptureState::as_str);
    let way = answer.mode.map_or("-", report::RedirectionMode::as_str);
    (&answer.code, capture, way, i32::from(answer.verdict.exit_status()))
}

/// Waits until `explain` gives this answer, as the agent needs time to observe or repair.
pub(crate) fn comes_to_say(container: &Container, pod: &str, expected: Expected) -> Explanation {
    comes_to_say_after(|| (), container, pod, expected)
}

/// Waits until `explain` gives this answer after `before`, which runs before each request.
fn comes_to_say_after(
    before: impl Fn(),
    container: &Container,
    pod: &str,
    expected: Expected,
) -> Explanation {
    let mut last = None;
    let came = kit::found_within(LIMIT, || {
        before();
        last = Some(explain(container, pod));
        last.as_ref().is_some_and(|answer| short(answer) == expected)
    });
    let answer = last.unwrap();
    assert!(came.is_some(), "{:?} instead of {expected:?}: {answer}", short(&answer));
    answer
}

/// Asserts that the answer has these words, which its code does not imply.
fn assert_words(answer: &Explanation, words: &[&str]) {
    for words in words {
        assert!(answer.message.contains(words), "no {words:?}: {answer}");
    }
}

/// Names of the pods that `list` prints with these arguments, and its exit status.
pub(crate) fn list(container: &Container, arguments: &[&str]) -> (i32, Vec<String>) {
    let (status, text) = call(container, &[&["list", "-o", "json"], arguments].concat());
    let pods: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let name =
        |pod: &Value| format!("{}/{}", pod["namespace"].as_str().unwrap(), pod["name"].as_str().unwrap());
    (status, pods.iter().map(name).collect())
}

/// Exit status and text of `verify`.
pub(crate) fn verify(container: &Container) -> (i32, String) {
    call(container, &["verify"])
}
