//! Explanation of one pod: whether it is captured, and why or why not.

mod faults;
mod finding;
mod impersonal;
mod known;
mod outside;
mod sentences;
mod unknown;

use std::fmt;

use finding::Finding;
use impersonal::strip_pod_identity;
use jiff::{SignedDuration, Timestamp};
use model::PodUid;
use pod_status::{CaptureState, RedirectionMode};
use serde::{Deserialize, Serialize};

pub(crate) use faults::{NodeFault, node_faults};
pub use finding::PodVerdict;
pub(crate) use sentences::describe_unobserved;

use crate::{
    document::{known_or_default, known_value},
    findings::{NodeFinding, Severity},
    pod::PodState,
    state::StateReport,
    text::{sanitize_text, to_clause},
};

/// Time after which a captured pod should have its annotation: the agent writes it within seconds.
const ANNOTATED: SignedDuration = SignedDuration::from_secs(60);

/// Explanation of a pod. Each text is one or more complete sentences on one line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Explanation {
    /// Pod as `NAMESPACE/NAME`.
    pub pod: String,
    /// UID of the pod by the API server; empty if unknown.
    pub uid: PodUid,
    /// Whether the document has this pod.
    pub found: bool,
    /// Whether the pod is captured; `None`: unknown.
    pub capture: Option<CaptureState>,
    /// Capture mode of the pod, actual or desired; `None`: none is desired, or unknown.
    #[serde(deserialize_with = "known_value")]
    pub mode: Option<RedirectionMode>,
    /// Verdict on the pod, from which the exit status follows.
    #[serde(deserialize_with = "known_or_default")]
    pub verdict: PodVerdict,
    /// Short, stable code of the situation, such as `captured`, `host-network` or `ztunnel-refused`.
    pub code: String,
    /// The main statement.
    pub message: String,
    /// Details: since when, why or why not, the kernel's current state, and what is unknown.
    pub details: Vec<String>,
    /// Advice, the most promising first; empty if no action is needed.
    pub advice: Vec<String>,
    /// Faults of the node, its agent or its ztunnel, whether or not they affect this pod.
    pub node_problems: Vec<String>,
}

/// Explains one pod, also one that the document does not have.
pub fn explain_pod(state: &StateReport, namespace: &str, name: &str) -> Explanation {
    let faults = node_faults(state);
    let Some(pod) = state.pod(namespace, name) else {
        let found = unknown::unknown_pod_finding(state, namespace, name);
        let explanation = Explanation {
            pod: sanitize_text(&format!("{namespace}/{name}")),
            verdict: found.verdict,
            details: [unknown::similar_names(state, namespace, name), describe_unobserved(state)].concat(),
            ..Explanation::default()
        };
        return join_finding(explanation, found, faults);
    };
    let found = stated_finding(state, pod, &faults);
    let explanation = Explanation {
        pod: sanitize_text(&pod.title()),
        // Without ambient mode it may be that of the pod's record, which the runtime chose.
        uid: Some(&pod.uid).filter(|_| state.node.ambient_enabled).cloned().unwrap_or_default(),
        found: true,
        capture: Some(pod.capture),
        mode: pod.mode,
        verdict: found.verdict,
        details: [sentences::describe_pod(state, pod, &found.message), describe_unobserved(state)].concat(),
        ..Explanation::default()
    };
    join_finding(explanation, found, faults)
}

/// Returns the finding about a pod; for a healthy one, the fault of its node that affects it now or soon.
fn stated_finding(state: &StateReport, pod: &PodState, faults: &[NodeFault]) -> Finding {
    let mut found = known::pod_finding(state, pod);
    let can_suffer =
        matches!(pod.capture, CaptureState::Captured | CaptureState::Pending | CaptureState::Unknown);
    let plain = ["captured", "captured-sidecar", "pending", "unobserved"].contains(&found.code.as_str());
    if let (true, true, Some(fault)) =
        (can_suffer, plain, faults.iter().find(|fault| fault.concerns_pod(pod)))
    {
        fault.finding.code.clone_into(&mut found.code);
        if found.verdict == PodVerdict::Healthy {
            found.verdict = fault.finding.verdict;
        }
        found.message = format!("{} But {}", found.message, lowercase_first_word(&fault.finding.message));
    }
    found
}

/// Cause of a pod's state.
pub(crate) struct PodCause {
    /// Clause that does not name the pod: for a pod in its desired state, why this state is desired; for every other, the fault.
    pub(crate) message: String,
    /// Short, stable code.
    pub(crate) code: String,
    /// Advice about the pod itself, without that about its node; empty if it is in its desired state.
    pub(crate) advice: Vec<String>,
    /// Whether it is a fault that the pod's state does not show.
    pub(crate) is_hidden_fault: bool,
}

/// Returns the cause of a pod's state. `faults`: of [`node_faults`].
pub(crate) fn pod_cause(state: &StateReport, pod: &PodState, faults: &[NodeFault]) -> PodCause {
    let is_hidden_fault = is_captured_with_fault(state, pod);
    if !is_hidden_fault && matches!(pod.capture, CaptureState::Captured | CaptureState::Outside) {
        let (message, code) = (to_clause(&pod.reason.message), pod.reason.code.clone());
        return PodCause { message, code, advice: Vec::new(), is_hidden_fault };
    }
    let Finding { message, code, advice, .. } = stated_finding(state, pod, faults);
    let first = to_clause(sanitize_text(&message).split_inclusive(". ").next().unwrap_or_default());
    PodCause { message: strip_pod_identity(pod, &first), code, advice, is_hidden_fault }
}

/// Whether a pod is captured and has a fault of its own, which its state does not show, such as DNS queries that nothing answers. A
/// missing annotation is one after a minute.
pub fn is_captured_with_fault(state: &StateReport, pod: &PodState) -> bool {
    captured_fault(state, pod).is_some()
}

/// Returns the fault of [`is_captured_with_fault`], as a sentence.
pub(crate) fn captured_fault(state: &StateReport, pod: &PodState) -> Option<String> {
    if pod.capture != CaptureState::Captured {
        return None;
    }
    let found = known::pod_finding(state, pod);
    let is_due = found.code != "annotation-missing" || has_lasted(state, pod, ANNOTATED);
    (found.verdict == PodVerdict::Unhealthy && is_due).then_some(found.message)
}

/// Whether the pod has been in its state for longer than `least`, as far as the agent knows.
fn has_lasted(state: &StateReport, pod: &PodState, least: SignedDuration) -> bool {
    let since = pod.last_transition_time.as_deref().or(state.node.agent_started_at.as_deref());
    let parse = |time: &str| time.parse::<Timestamp>().ok();
    let lasted = since.and_then(parse).zip(parse(&state.observation.observed_at));
    lasted.is_some_and(|(since, observed)| observed.duration_since(since) > least)
}

/// Returns the ztunnel that the node lacks, as a clause, even if one is ready by the API: none is connected to the agent, for
/// instance. `None`: it has one, needs none, or unknown.
pub fn missing_ztunnel(state: &StateReport) -> Option<&'static str> {
    known::node_without_ztunnel(state).map(|(there, _)| there)
}

/// Returns all faults of the node as findings, whichever pods they affect, the worst first. `faults`: of [`node_faults`].
pub(crate) fn list_faults(state: &StateReport, faults: Vec<NodeFault>) -> impl Iterator<Item = NodeFinding> {
    let missing = known::node_without_ztunnel(state)
        .map(|(message, advice)| Finding::new_unhealthy("no-ztunnel", format!("{message}."), advice));
    let faults = faults.into_iter().map(|fault| fault.finding);
    missing.into_iter().chain(faults).map(|Finding { code, verdict, message, advice }| NodeFinding {
        severity: Some(if verdict == PodVerdict::Unknown { Severity::Unknown } else { Severity::Error }),
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

/// Adapts a sentence that continues after "But".
fn lowercase_first_word(sentence: &str) -> String {
    match sentence.split_once(' ') {
        Some((first @ ("The" | "It" | "Its" | "A" | "What" | "Facts" | "Something"), rest)) => {
            format!("{} {rest}", first.to_lowercase())
        }
        _ => sentence.to_owned(),
    }
}

/// For people: the statement first, then the evidence, then advice. What another program has sent may have control characters.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let capture = self.capture.map_or("not known", CaptureState::as_str);
        let mode = self.mode.map_or_else(String::new, |mode| format!(", mode {mode}"));
        let title = sanitize_text(&format!("{}: {capture}{mode} [{}]", self.pod, self.code));
        writeln!(f, "{title}\n\n{}", sanitize_text(&self.message))?;
        self.details.iter().try_for_each(|sentence| writeln!(f, "{}", sanitize_text(sentence)))?;
        for (title, list) in [("Wrong with the node:", &self.node_problems), ("What to do:", &self.advice)] {
            if !list.is_empty() {
                writeln!(f, "\n{title}")?;
                list.iter().try_for_each(|line| writeln!(f, "  - {}", sanitize_text(line)))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
