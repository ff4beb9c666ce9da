//! Situations of a pod that should not be captured, and is not.

use super::{
    faults,
    finding::{Finding, PodVerdict},
};
use crate::{
    pod::PodState,
    state::StateReport,
    text::{sanitize_text, to_clause},
};

/// Returns why the pod is outside, as a clause.
pub(super) fn reason_clause(pod: &PodState) -> String {
    match pod.reason.message.as_str() {
        "" => "no reason recorded".to_owned(),
        message => to_clause(message),
    }
}

pub(super) fn namespace_unknown(pod: &PodState) -> Finding {
    let message = format!(
        "The pod {} is not captured, because its namespace {} is not known yet: whether it belongs to the mesh could not be \
         determined.",
        sanitize_text(&pod.title()),
        sanitize_text(&pod.namespace)
    );
    let advice = [
        "Check whether the agent's service account may list namespaces, and whether the API server can be reached.",
    ];
    Finding::new_unknown("namespace-unknown", message, &advice)
}

pub(super) fn outside_finding(state: &StateReport, pod: &PodState) -> Finding {
    let title = sanitize_text(&pod.title());
    // Labels and this annotation may have changed since the agent knew them.
    let changeable = ["not-labelled", "not-selected", "pod-label-none", "opted-out"];
    let stale = faults::watch_failed(state).or_else(|| faults::agent_down(state));
    if let Some(stale) = stale.filter(|_| changeable.contains(&pod.reason.code.as_str())) {
        let message = format!(
            "The pod {title} is not captured, by what is known: {}. {}",
            reason_clause(pod),
            stale.message
        );
        return Finding { message, verdict: PodVerdict::Unknown, ..stale };
    }
    let message = format!("The pod {title} is not captured, and should not be: {}.", reason_clause(pod));
    let code = if pod.reason.code.is_empty() { "outside" } else { pod.reason.code.as_str() };
    Finding::new_healthy(code, message, capture_advice(pod, state))
}

/// Returns advice for the case that the pod should be captured after all.
fn capture_advice(pod: &PodState, state: &StateReport) -> &'static [&'static str] {
    match pod.reason.code.as_str() {
        "pod-label-none" => &["To capture it, remove that label from the pod's template."],
        "not-labelled" if !state.node.ambient_enabled => {
            &["This node's agent takes no part in ambient mode (setting ambient-enabled)."]
        }
        "not-labelled" => &[
            "To capture it, label its namespace: istio.io/dataplane-mode=ambient. It need not be restarted.",
        ],
        "not-selected" => &["To capture it, give it or its namespace the labels that a selector asks for."],
        "excluded-namespace" => {
            &["To capture it, remove its namespace from exclude-namespaces and restart the agent."]
        }
        "host-network" => &["To capture it, run it without hostNetwork."],
        "opted-out" => &["To capture it, remove that annotation from the pod's template and from the pod."],
        "sidecar" => &["To bring it into ambient mode, switch its injection off and restart it."],
        "istio-init" => &[
            "To let the plugin do that, have istiod inject without istio-init (setting pilot.cni.enabled), and restart the pod.",
        ],
        "envoy-disabled" => &["To capture it, remove DISABLE_ENVOY and restart the pod."],
        "no-proxy" => &["Check whether the injection succeeded, and whether the container was removed."],
        "injection-refused" => {
            &["To capture it, remove that label or annotation from the pod's template and restart it."]
        }
        "not-injected" => &[
            "To give it a sidecar, label its namespace for injection and restart the pod.",
            "If it should have one, check whether istiod's webhook was reachable when the pod was created.",
        ],
        "interception-none" => {
            &["To capture it, remove that annotation from the pod's template and restart it."]
        }
        _ => &[],
    }
}
