//! Situation of a pod that the document does not contain.

use super::{
    faults,
    finding::{Finding, PodVerdict},
};
use crate::{
    state::{Observer, StateReport},
    text::{more_clause, sanitize_text},
};

/// Maximum number of similar pods that are listed.
const NAMED: usize = 5;

pub(super) fn unknown_pod_finding(state: &StateReport, namespace: &str, name: &str) -> Finding {
    let (namespace, name) = (sanitize_text(namespace), sanitize_text(name));
    let title = format!("{namespace}/{name}");
    if is_namespace_excluded(state, &namespace) {
        let message = format!(
            "The agent does not know the pod {title} and would not capture it: the namespace {namespace} is excluded \
             by the setting exclude-namespaces."
        );
        let advice = format!(
            "To bring its pods into the mesh, remove {namespace} from exclude-namespaces and restart the agent."
        );
        return Finding::new("no-such-pod-excluded", PodVerdict::NotFound, message, &[&advice]);
    }
    if state.observation.observer == Observer::Command {
        let message = format!(
            "The state of the pod {title} is unknown: the agent does not answer, and no record on the node mentions this pod."
        );
        return Finding::new_unknown("agent-down", message, &[]);
    }
    if !state.node.ambient_enabled && !state.node.synced {
        let message = format!(
            "The state of the pod {title} is unknown: ambient mode is off and the agent does not follow the node's pods, so it knows only those of which \
             the plugin recorded an ADD."
        );
        let advice = format!("Check whether it runs on this node: kubectl get pods -n {namespace} -o wide.");
        return Finding::new_unknown("no-record", message, &[&advice]);
    }
    if !state.node.synced {
        let message = format!(
            "The state of the pod {title} is not known yet: the agent has not been able to read the list of pods since it started."
        );
        return Finding::new_unknown("not-synced", message, &[]);
    }
    if let Some(stale) = faults::watch_failed(state) {
        let message = format!("The state of the pod {title} is unknown. {}", stale.message);
        return Finding { message, ..stale };
    }
    let node = sanitize_text(&format!("The node {}", state.node.name));
    let node = node.trim_end();
    let message =
        format!("{node} has no pod {title}: its name is different, it is on another node, or it is gone.");
    let find = format!("Find its name and its node with: kubectl get pods -n {namespace} -o wide.");
    Finding::new(
        "no-such-pod",
        PodVerdict::NotFound,
        message,
        &[&find, "Ask the agent of the node on which the pod runs."],
    )
}

/// Whether the settings exclude the namespace.
fn is_namespace_excluded(state: &StateReport, namespace: &str) -> bool {
    let setting = state.config.iter().find(|setting| setting.name == "exclude-namespaces");
    setting.is_some_and(|setting| model::list_elements(&setting.value).any(|name| name == namespace))
}

/// Returns pods with similar names.
pub(super) fn similar_names(state: &StateReport, namespace: &str, name: &str) -> Vec<String> {
    let elsewhere = state.pods.iter().filter(|pod| pod.name == name);
    let similar = state.pods.iter().filter(|pod| {
        pod.namespace == namespace && (pod.name.starts_with(name) || name.starts_with(&pod.name))
    });
    let titles: Vec<String> = elsewhere.chain(similar).map(|pod| sanitize_text(&pod.title())).collect();
    if titles.is_empty() || name.is_empty() {
        return Vec::new();
    }
    let more = more_clause(titles.len().saturating_sub(NAMED));
    let named: Vec<String> = titles.into_iter().take(NAMED).collect();
    vec![format!("Similar names: {}{more}.", named.join(", "))]
}
