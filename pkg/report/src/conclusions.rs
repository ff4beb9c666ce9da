//! Members of the document derived from its other members: the node's findings, the causes of its pods' states, and each pod's
//! message. Page, tables and scripts show these instead of drawing their own conclusions.

use std::{cmp::Reverse, collections::BTreeMap};

use pod_status::CaptureState;

use crate::{
    explain::{self, NodeFault, PodCause, describe_unobserved},
    findings::{NodeFinding, Severity, StateCause},
    pod::PodState,
    preflight,
    state::StateReport,
    tables,
    text::{format_count, to_clause},
};

impl StateReport {
    /// Derives [`StateReport::findings`], [`StateReport::causes`] and the message of each pod from the other members.
    pub fn fill_conclusions(&mut self) {
        let faults = explain::node_faults(self);
        let due: Vec<PodCause> = self.pods.iter().map(|pod| explain::pod_cause(self, pod, &faults)).collect();
        self.causes = group_causes(self, &due);
        self.findings = node_findings(self, faults, &due);
        for (pod, cause) in self.pods.iter_mut().zip(due) {
            pod.message = pod_message(pod, cause.message);
        }
    }
}

fn node_findings(state: &StateReport, faults: Vec<NodeFault>, due: &[PodCause]) -> Vec<NodeFinding> {
    let unobserved = describe_unobserved(state).into_iter().map(|message| NodeFinding {
        severity: Some(Severity::Unknown),
        code: "unobserved".to_owned(),
        message,
        advice: Vec::new(),
    });
    let faults = explain::list_faults(state, faults).chain(hidden_faults(state, due));
    let mut all: Vec<NodeFinding> = faults.chain(unobserved).collect();
    all.extend(preflight::preflight_findings(&state.preflight));
    all.sort_by_key(|finding| Reverse(finding.severity)); // stable sort
    all
}

/// Returns the faults of captured pods, which no state shows, each with the number of its pods.
fn hidden_faults(state: &StateReport, due: &[PodCause]) -> impl Iterator<Item = NodeFinding> {
    state.causes.iter().filter(move |cause| is_hidden_fault(cause, due)).map(|cause| NodeFinding {
        severity: Some(Severity::Error),
        code: cause.code.clone(),
        message: format!("{}: {}.", format_count(cause.pods.len(), "captured pod"), cause.message),
        advice: cause.advice.clone(),
    })
}

fn is_hidden_fault(cause: &StateCause, due: &[PodCause]) -> bool {
    let is_cause = |one: &PodCause| (&one.code, &one.message) == (&cause.code, &cause.message);
    cause.capture == CaptureState::Captured && due.iter().any(|one| one.is_hidden_fault && is_cause(one))
}

/// Groups every pod of the node: the worst state first, and in each state the cause of most pods.
fn group_causes(state: &StateReport, due: &[PodCause]) -> Vec<StateCause> {
    let mut causes = BTreeMap::<_, StateCause>::new();
    for (pod, PodCause { message, code, advice, .. }) in state.pods.iter().zip(due) {
        let key = (tables::capture_rank(pod.capture), code.clone(), message.clone());
        let cause = causes.entry(key).or_insert_with(|| StateCause {
            capture: pod.capture,
            severity: Severity::from_capture(pod.capture),
            code: code.clone(),
            message: message.clone(),
            advice: advice.clone(),
            pods: Vec::new(),
        });
        cause.pods.push(pod.title());
    }
    let mut causes: Vec<_> = causes.into_values().collect();
    causes.sort_by_key(|cause| (tables::capture_rank(cause.capture), Reverse(cause.pods.len())));
    causes.iter_mut().for_each(|cause| cause.pods.sort());
    causes
}

/// Returns why a pod is captured, including traffic that is excluded by intent.
pub(crate) fn add_exceptions(cause: String, exceptions: &[String]) -> String {
    match exceptions {
        [] => cause,
        exceptions => format!("{cause}; outside by intent: {}", exceptions.join("; ")),
    }
}

/// Returns the pod's own problem, on one line; otherwise the cause of its state.
fn pod_message(pod: &PodState, cause: String) -> String {
    let ztunnel = pod.ztunnel.as_ref().and_then(|ztunnel| ztunnel.error.as_deref());
    let refused = ztunnel.map(|why| format!("ztunnel refused it: {}", to_clause(why)));
    let differences = pod.kernel.differences.iter().map(|difference| to_clause(difference));
    let others = [pod.problem.as_deref(), pod.kernel.unobserved.as_deref()].into_iter().flatten();
    let own: Vec<String> = differences.chain(refused).chain(others.map(to_clause)).collect();
    if own.is_empty() { add_exceptions(cause, &pod.exceptions) } else { own.join("; ") }
}
