//! Members of the document derived from its other members: the node's findings, the causes of its pods' states, and each pod's
//! message. Page, tables and scripts show these instead of drawing their own conclusions.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{
    explain::{self, describe_unobserved},
    findings::{NodeFinding, Severity, StateCause},
    pod::PodState,
    preflight,
    state::StateReport,
    tables,
    text::to_clause,
};

impl StateReport {
    /// Derives [`StateReport::findings`], [`StateReport::causes`] and the message of each pod from the other members.
    pub fn fill_conclusions(&mut self) {
        let due: Vec<(String, String)> = self.pods.iter().map(|pod| explain::pod_cause(self, pod)).collect();
        (self.findings, self.causes) = (node_findings(self), group_causes(self, &due));
        for (pod, (cause, _)) in self.pods.iter_mut().zip(due) {
            pod.message = pod_message(pod, cause);
        }
    }
}

fn node_findings(state: &StateReport) -> Vec<NodeFinding> {
    let unobserved = describe_unobserved(state).into_iter().map(|message| NodeFinding {
        severity: Some(Severity::Unknown),
        code: "unobserved".to_owned(),
        message,
        advice: Vec::new(),
    });
    let mut all: Vec<NodeFinding> = explain::node_faults(state).chain(unobserved).collect();
    all.extend(preflight::preflight_findings(&state.preflight));
    all.sort_by_key(|finding| Reverse(finding.severity)); // stable sort
    all
}

/// Groups every pod of the node: the worst state first, and in each state the cause of most pods.
fn group_causes(state: &StateReport, due: &[(String, String)]) -> Vec<StateCause> {
    let mut causes = BTreeMap::<_, StateCause>::new();
    for (pod, (message, code)) in state.pods.iter().zip(due) {
        let severity = Severity::from_capture(pod.capture);
        let key = (tables::capture_rank(pod.capture), code.clone(), message.clone());
        let cause = causes.entry(key).or_insert_with(|| StateCause {
            capture: pod.capture,
            severity,
            code: code.clone(),
            message: message.clone(),
            advice: severity.map_or_else(Vec::new, |_| explain::pod_advice(state, pod)),
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
    let own = pod.kernel.differences.iter().map(|difference| to_clause(difference)).chain(refused);
    let own = own
        .chain(pod.problem.as_deref().map(to_clause))
        .chain(pod.kernel.unobserved.as_deref().map(to_clause));
    let own: Vec<String> = own.collect();
    if !own.is_empty() {
        return own.join("; ");
    }
    add_exceptions(cause, &pod.exceptions)
}
