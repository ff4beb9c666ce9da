//! Members of the document that follow from its other members: the node's findings, the causes of its pods' states, and each
//! pod's message. Page, tables and scripts show these, so none of them judges by itself.

use std::{cmp::Reverse, collections::BTreeMap};

use pod_status::CaptureState;
use serde::{Deserialize, Serialize};

use crate::{
    document::known_value,
    explain::{self, of_unobserved},
    pod::PodState,
    state::StateReport,
    tables,
    text::{clause, clean},
};

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing; nothing bypasses the mesh or fails because of it.
    Warning,
    /// Could not be determined.
    Unknown,
    /// Something is unhealthy.
    Error,
}

impl Severity {
    /// Returns the severity of a pod's state; `None`: the pod is as it should be.
    #[must_use]
    pub fn from_capture(capture: CaptureState) -> Option<Severity> {
        match capture {
            CaptureState::Bypassing | CaptureState::Held => Some(Severity::Error),
            CaptureState::Unknown => Some(Severity::Unknown),
            CaptureState::Leaving | CaptureState::Pending => Some(Severity::Warning),
            CaptureState::Captured | CaptureState::Outside => None,
        }
    }
}

/// Something about the node that is not as it should be, or is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeFinding {
    /// How bad it is; `None`: a severity that this version does not know.
    #[serde(deserialize_with = "known_value")]
    pub severity: Option<Severity>,
    /// A short, stable name, as in [`crate::Explanation`].
    pub code: String,
    /// The problem, in a sentence.
    pub message: String,
    /// Advice, the most promising first.
    pub advice: Vec<String>,
}

/// Pods in one state that is due to one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StateCause {
    /// The state.
    pub capture: CaptureState,
    /// How bad the state is; `None`: the pods are as they should be.
    #[serde(deserialize_with = "known_value")]
    pub severity: Option<Severity>,
    /// A short, stable name of the cause.
    pub code: String,
    /// The cause, as a clause that names none of the pods.
    pub message: String,
    /// Advice about the pods themselves, the most promising first; empty if nothing is to be done.
    pub advice: Vec<String>,
    /// The pods, each as `NAMESPACE/NAME`.
    pub pods: Vec<String>,
}

impl StateReport {
    /// Fills in [`StateReport::findings`], [`StateReport::causes`] and the message of each pod, as they follow from the rest.
    pub fn conclude(&mut self) {
        let due: Vec<(String, String)> = self.pods.iter().map(|pod| explain::cause(self, pod)).collect();
        (self.findings, self.causes) = (findings(self), causes(self, &due));
        for (pod, (cause, _)) in self.pods.iter_mut().zip(due) {
            pod.message = message(pod, cause);
        }
    }
}

fn findings(state: &StateReport) -> Vec<NodeFinding> {
    let of =
        |severity, code, message, advice| NodeFinding { severity: Some(severity), code, message, advice };
    let faults = explain::node_faults(state).into_iter();
    let faults = faults.map(|(code, message, advice)| of(Severity::Error, code, message, advice));
    let unobserved = of_unobserved(state).into_iter();
    let unobserved =
        unobserved.map(|message| of(Severity::Unknown, "unobserved".to_owned(), message, Vec::new()));
    faults.chain(unobserved).collect()
}

/// Every pod of the node: the worst state first, and in each the cause of most pods.
fn causes(state: &StateReport, due: &[(String, String)]) -> Vec<StateCause> {
    let mut causes = BTreeMap::<_, StateCause>::new();
    for (pod, (message, code)) in state.pods.iter().zip(due) {
        let severity = Severity::from_capture(pod.capture);
        let new = || StateCause {
            capture: pod.capture,
            severity,
            code: code.clone(),
            message: message.clone(),
            advice: severity.map_or_else(Vec::new, |_| explain::advice(state, pod)),
            pods: Vec::new(),
        };
        let key = (tables::rank(pod.capture), code.clone(), message.clone());
        causes.entry(key).or_insert_with(new).pods.push(pod.title());
    }
    let mut causes: Vec<_> = causes.into_values().collect();
    causes.sort_by_key(|cause| (tables::rank(cause.capture), Reverse(cause.pods.len())));
    causes.iter_mut().for_each(|cause| cause.pods.sort());
    causes
}

/// Returns the problem of the pod itself, on one line; otherwise the cause of its state.
fn message(pod: &PodState, cause: String) -> String {
    let ztunnel = pod.ztunnel.as_ref().and_then(|ztunnel| ztunnel.error.as_deref());
    let refused = ztunnel.map(|why| format!("ztunnel refused it: {}", clause(why)));
    let own = pod.kernel.differences.iter().map(|difference| clause(difference)).chain(refused);
    let own =
        own.chain(pod.problem.as_deref().map(clause)).chain(pod.kernel.unobserved.as_deref().map(clause));
    let own: Vec<String> = own.collect();
    if own.is_empty() { cause } else { own.join("; ") }
}

/// Returns text about a pod without its name and its addresses, so that the text is the same for all pods it fits.
pub(crate) fn impersonal(pod: &PodState, text: &str) -> String {
    let title = clean(&pod.title());
    let ips: Vec<_> = pod.ips.iter().map(ToString::to_string).collect();
    let mut result = String::with_capacity(text.len());
    for word in text.split(' ') {
        let bare = word.trim_matches(['(', ')', ',', ':', ';', '.']);
        let named = match bare {
            "" => bare,
            _ if bare == title => "",
            _ if ips.iter().any(|ip| ip == bare) && result.ends_with("address") => "",
            _ if ips.iter().any(|ip| ip == bare) => "its address",
            _ => bare,
        };
        // What stood behind a name that is left out stands behind the word before it.
        if !result.is_empty() && !named.is_empty() {
            result.push(' ');
        }
        result.push_str(&word.replacen(bare, named, 1));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_of_the_pod_are_left_out() {
        let pod = PodState {
            namespace: "shop".into(),
            name: "web".into(),
            ips: vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()],
            ..PodState::default()
        };
        for (text, expected) in [
            ("No ztunnel is ready, so the pod shop/web has none", "No ztunnel is ready, so the pod has none"),
            ("ztunnel refused the pod shop/web: no identity", "ztunnel refused the pod: no identity"),
            ("The address 10.0.0.7 of the pod shop/web is missing", "The address of the pod is missing"),
            ("(fd00::7 is in no set; 10.0.0.70 is)", "(its address is in no set; 10.0.0.70 is)"),
            ("the pod shop/web-1", "the pod shop/web-1"),
            ("", ""),
        ] {
            assert_eq!(impersonal(&pod, text), expected);
        }
    }
}
