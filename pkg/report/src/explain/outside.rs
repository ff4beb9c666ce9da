//! A pod that should not be captured, and is not.

use super::finding::Finding;
use crate::{
    pod::PodState,
    state::StateReport,
    text::{sanitize_text, to_clause},
};

/// Why it is outside, as a clause.
pub(super) fn reason_clause(pod: &PodState) -> String {
    match pod.reason.message.as_str() {
        "" => "nobody says why".to_owned(),
        message => to_clause(message),
    }
}

pub(super) fn outside_finding(state: &StateReport, pod: &PodState) -> Finding {
    let title = sanitize_text(&pod.title());
    if pod.reason.code == "namespace-unknown" {
        let message = format!(
            "The pod {title} is not captured, because its namespace {} is not known yet: whether it belongs to the mesh cannot \
             be said.",
            sanitize_text(&pod.namespace)
        );
        let advice = [
            "Check whether the agent's service account may list namespaces, and whether the API server can be reached.",
        ];
        return Finding::unknown("namespace-unknown", message, &advice);
    }
    let advice: Vec<String> = capture_advice(pod, state).into_iter().map(str::to_owned).collect();
    let Some(then) = reason_text(&pod.reason.code) else {
        let message = format!("The pod {title} is not captured, and should not be: {}.", reason_clause(pod));
        let code = if pod.reason.code.is_empty() { "outside" } else { pod.reason.code.as_str() };
        return Finding { advice, ..Finding::well(code, message, &[]) };
    };
    let message = format!("The pod {title} is not captured, and should not be: {then}.");
    Finding { advice, ..Finding::well(&pod.reason.code, message, &[]) }
}

/// Returns the meaning of a code, for a tired reader; `None` for a code that is not known here.
fn reason_text(code: &str) -> Option<&'static str> {
    Some(match code {
        "pod-label-none" => {
            "it carries the label istio.io/dataplane-mode=none, which keeps it out of ambient mode"
        }
        "not-labelled" => {
            "neither it nor its namespace carries the label istio.io/dataplane-mode=ambient, and it has no sidecar"
        }
        "not-selected" => "none of the agent's selectors (setting ambient-enablement-selector) matches it",
        "excluded-namespace" => {
            "its namespace is excluded by the agent's settings, so its pods are never touched"
        }
        "agent-pod" => "it is the agent itself, which is never captured",
        "ztunnel" => "it is ztunnel itself",
        "host-network" => "it uses the node's own network (hostNetwork), which is never captured",
        "terminated" => "it has ended and has no traffic any more",
        "opted-out" => "its annotation ambient.istio.io/redirection is disabled, which keeps it out",
        "sidecar" => "it has a sidecar, so ambient mode skips it",
        "istio-init" => {
            "its own init container istio-init sets up the redirection to its sidecar, so the plugin skips it"
        }
        "envoy-disabled" => {
            "its container istio-proxy has DISABLE_ENVOY=true, so no proxy would accept its traffic"
        }
        "no-proxy" => {
            "it was injected but has no container named istio-proxy, so no proxy would accept its traffic"
        }
        "not-a-sidecar" => {
            "its istio-proxy is a gateway or a waypoint and not a sidecar, so its traffic needs no redirection"
        }
        "injection-refused" => "it requests no sidecar (sidecar.istio.io/inject is false)",
        "not-injected" => {
            "it has no sidecar: the injector has not marked it (annotation sidecar.istio.io/status)"
        }
        "interception-none" => {
            "its annotation sidecar.istio.io/interceptionMode is NONE, so its traffic is not redirected"
        }
        _ => return None,
    })
}

/// Returns advice for the case that the pod should be captured after all.
fn capture_advice(pod: &PodState, state: &StateReport) -> Vec<&'static str> {
    let ambient = state.node.ambient_enabled;
    match pod.reason.code.as_str() {
        "pod-label-none" => vec!["To capture it, remove that label from the pod's template."],
        "not-labelled" if !ambient => {
            vec!["This node's agent takes no part in ambient mode (setting ambient-enabled)."]
        }
        "not-labelled" => vec![
            "To capture it, label its namespace: istio.io/dataplane-mode=ambient. It need not be restarted.",
        ],
        "not-selected" => {
            vec!["To capture it, give it or its namespace the labels that a selector asks for."]
        }
        "excluded-namespace" => {
            vec!["To capture it, remove its namespace from exclude-namespaces and restart the agent."]
        }
        "host-network" => vec!["To capture it, run it without hostNetwork."],
        "opted-out" => {
            vec!["To capture it, remove that annotation from the pod's template and from the pod."]
        }
        "sidecar" => vec!["To bring it into ambient mode, switch its injection off and restart it."],
        "istio-init" => vec![
            "To let the plugin do that, have istiod inject without istio-init (setting pilot.cni.enabled), and restart the pod.",
        ],
        "envoy-disabled" => vec!["To capture it, remove DISABLE_ENVOY and restart the pod."],
        "no-proxy" => {
            vec!["Check whether the injection succeeded, and whether somebody removed the container."]
        }
        "injection-refused" => {
            vec!["To capture it, remove that label or annotation from the pod's template and restart it."]
        }
        "not-injected" => vec![
            "To give it a sidecar, label its namespace for injection and restart the pod.",
            "If it should have one, see whether istiod's webhook was reachable when the pod was made.",
        ],
        "interception-none" => {
            vec!["To capture it, remove that annotation from the pod's template and restart it."]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use enrolment::SkipReason;

    use super::*;

    /// Whoever invents a reason has to find words for it here.
    #[test]
    fn every_reason_to_be_outside_has_words() {
        let is_shown =
            |reason: &SkipReason| !matches!(reason, SkipReason::NamespaceUnknown | SkipReason::NoPod);
        for code in SkipReason::ALL.into_iter().filter(is_shown).map(SkipReason::code) {
            assert!(reason_text(code).is_some(), "{code}");
        }
    }
}
