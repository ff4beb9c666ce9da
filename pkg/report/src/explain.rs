//! One question, one answer: whether a pod is captured, and why or why not.

mod faults;
mod finding;
mod impersonal;
mod known;
mod outside;
mod sentences;
mod unknown;

use std::fmt;

use faults::NodeFault;
use finding::Finding;
use impersonal::strip_pod_identity;
use pod_status::{CaptureState, RedirectionMode};
use serde::{Deserialize, Serialize};

pub use finding::PodVerdict;
pub(crate) use sentences::of_unobserved;

use crate::{
    document::{known_or_default, known_value},
    findings::{NodeFinding, Severity},
    pod::PodState,
    state::StateReport,
    text::{sanitize_text, to_clause},
};

/// The answer. Each of its texts is one or more whole sentences on one line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Explanation {
    /// `NAMESPACE/NAME`.
    pub pod: String,
    /// The document has such a pod.
    pub found: bool,
    /// Whether it is captured; `None`: nothing is known of it.
    pub capture: Option<CaptureState>,
    /// By which way it is captured, or should be; `None`: it should not be, or nothing is known of it.
    #[serde(deserialize_with = "known_value")]
    pub mode: Option<RedirectionMode>,
    /// Verdict on the pod, which determines an exit status.
    #[serde(deserialize_with = "known_or_default")]
    pub verdict: PodVerdict,
    /// A short, stable name of the situation, such as `captured`, `host-network` or `ztunnel-refused`.
    pub code: String,
    /// The most important sentence.
    pub message: String,
    /// Since when, why or why not, what the kernel shows now, and what is not known.
    pub details: Vec<String>,
    /// Advice, the most promising first; empty if nothing is to be done.
    pub advice: Vec<String>,
    /// Faults of the node, its agent or its ztunnel, whether or not this pod suffers from them.
    pub node_problems: Vec<String>,
}

/// Explains one pod, also one that the document does not have.
pub fn explain_pod(state: &StateReport, namespace: &str, name: &str) -> Explanation {
    let faults = faults::node_faults(state);
    let Some(pod) = state.pod(namespace, name) else {
        let found = unknown::unknown_pod_finding(state, namespace, name);
        let explanation = Explanation {
            pod: sanitize_text(&format!("{namespace}/{name}")),
            verdict: found.verdict,
            details: [unknown::similar_names(state, namespace, name), of_unobserved(state)].concat(),
            ..Explanation::default()
        };
        return join_finding(explanation, found, faults);
    };
    let mut found = known::pod_finding(state, pod);
    // A pod that is well by itself suffers from what is wrong below it, or soon will; that is the news then.
    let can_suffer =
        matches!(pod.capture, CaptureState::Captured | CaptureState::Pending | CaptureState::Unknown);
    let plain = ["captured", "captured-sidecar", "pending", "unobserved"].contains(&found.code.as_str());
    if let (true, true, Some(fault)) =
        (can_suffer, plain, faults.iter().find(|fault| fault.concerns_pod(pod)))
    {
        fault.finding.code.clone_into(&mut found.code);
        found.verdict = found.verdict.max(fault.finding.verdict);
        found.message = format!("{} But {}", found.message, lowercase_first_word(&fault.finding.message));
    }
    let explanation = Explanation {
        pod: sanitize_text(&pod.title()),
        found: true,
        capture: Some(pod.capture),
        mode: pod.mode,
        verdict: found.verdict,
        details: [sentences::of_pod(state, pod, &found.message), of_unobserved(state)].concat(),
        ..Explanation::default()
    };
    join_finding(explanation, found, faults)
}

/// Returns the cause of a pod's state as a clause that does not name the pod, and its code: of a pod that is as it should be, why
/// it should be so; of every other, what went wrong.
pub(crate) fn pod_cause(state: &StateReport, pod: &PodState) -> (String, String) {
    if matches!(pod.capture, CaptureState::Captured | CaptureState::Outside) {
        return (to_clause(&pod.reason.message), pod.reason.code.clone());
    }
    let Explanation { message, code, .. } = explain_pod(state, &pod.namespace, &pod.name);
    let first = to_clause(message.split_inclusive(". ").next().unwrap_or_default());
    (strip_pod_identity(pod, &first), code)
}

/// Advice of [`explain`] about the pod itself, without that about its node.
pub(crate) fn pod_advice(state: &StateReport, pod: &PodState) -> Vec<String> {
    known::pod_finding(state, pod).advice
}

/// Everything that is wrong with the node, whichever pod suffers from it, the worst first.
pub(crate) fn node_faults(state: &StateReport) -> impl Iterator<Item = NodeFinding> {
    let missing = known::node_without_ztunnel(state)
        .map(|(message, advice)| Finding::new_unhealthy("no-ztunnel", format!("{message}."), advice));
    let faults = faults::node_faults(state).into_iter().map(|fault| fault.finding);
    missing.into_iter().chain(faults).map(|Finding { code, message, advice, .. }| NodeFinding {
        severity: Some(Severity::Error),
        code,
        message: sanitize_text(&message),
        advice,
    })
}

fn join_finding(mut explanation: Explanation, found: Finding, faults: Vec<NodeFault>) -> Explanation {
    explanation.message = sanitize_text(&found.message);
    explanation.advice = found.advice;
    for fault in faults {
        explanation.node_problems.push(sanitize_text(&fault.finding.message));
        explanation.advice.extend(fault.finding.advice);
    }
    let mut observed = std::collections::BTreeSet::new();
    explanation.advice.retain(|advice| observed.insert(advice.clone()));
    explanation.code = found.code;
    explanation
}

/// A sentence that goes on after "But".
fn lowercase_first_word(sentence: &str) -> String {
    match sentence.split_once(' ') {
        Some((first @ ("The" | "It" | "Its" | "A" | "What" | "Facts" | "Something"), rest)) => {
            format!("{} {rest}", first.to_lowercase())
        }
        _ => sentence.to_owned(),
    }
}

/// For people: the answer first, then what it rests on, then what to do.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capture = self.capture.map_or("not known", CaptureState::as_str);
        let mode = self.mode.map_or_else(String::new, |mode| format!(", mode {mode}"));
        writeln!(f, "{}: {capture}{mode} [{}]\n\n{}", self.pod, self.code, self.message)?;
        self.details.iter().try_for_each(|sentence| writeln!(f, "{sentence}"))?;
        for (title, list) in [("Wrong with the node:", &self.node_problems), ("What to do:", &self.advice)] {
            if !list.is_empty() {
                writeln!(f, "\n{title}")?;
                list.iter().try_for_each(|line| writeln!(f, "  - {line}"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
