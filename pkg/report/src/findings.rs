//! Findings about a node, and causes of its pods' states.

use pod_status::CaptureState;
use serde::{Deserialize, Serialize};

use crate::document::known_severity;

model::word_enum! {
    /// Severity of a finding.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Severity {
        /// Worth knowing; no traffic bypasses the mesh or fails because of it.
        Warning = "warning", "Worth knowing",
        /// Could not be determined.
        Unknown = "unknown", "Not everything could be determined",
        /// A fault.
        Error = "error", "Something is unhealthy",
    }
}

impl Severity {
    /// Returns the severity of a pod's state; `None`: the pod is in its desired state.
    pub fn from_capture(capture: CaptureState) -> Option<Severity> {
        match capture {
            CaptureState::Bypassing | CaptureState::Held => Some(Severity::Error),
            CaptureState::Unknown => Some(Severity::Unknown),
            CaptureState::Leaving | CaptureState::Pending => Some(Severity::Warning),
            CaptureState::Captured | CaptureState::Outside => None,
        }
    }
}

/// Returns the exit status for the worst severity: 0 if it is below `least`; else 2 if it is unknown, and 1 in every other case.
pub fn exit_status(worst: Option<Severity>, least: Severity) -> u8 {
    match worst {
        Some(worst) if worst < least => 0,
        Some(Severity::Unknown) => 2,
        Some(_) => 1,
        None => 0,
    }
}

/// A fault of the node, or a fact that is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeFinding {
    /// Severity: `error`, `unknown` (could not be determined) or `warning`.
    #[serde(deserialize_with = "known_severity")]
    pub severity: Option<Severity>,
    /// Stable code: `no-ztunnel`, `unobserved`, a [code of `explain`](see-inside.md#output-of-explain) for the node or for
    /// captured pods with a fault, or a [code of the preflight](preflight.md#codes).
    pub code: String,
    /// Description of the problem.
    pub message: String,
    /// Remedies, the most promising first.
    pub advice: Vec<String>,
}

/// Pods in one state due to one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StateCause {
    /// State of the pods, as in `pods[].capture`.
    pub capture: CaptureState,
    /// Severity of the state: `error`, `unknown` or `warning`; `None`: the state is the desired one.
    #[serde(deserialize_with = "known_severity")]
    pub severity: Option<Severity>,
    /// Stable code of the cause: that of `explain`, or of `pods[].reason`. Captured pods with a fault, such as a missing
    /// annotation, have that of the fault, and a finding.
    pub code: String,
    /// Cause, as a clause that names none of the pods.
    pub message: String,
    /// Remedies for these pods, the most promising first; empty if no action is needed.
    pub advice: Vec<String>,
    /// Pods, each as `NAMESPACE/NAME`.
    pub pods: Vec<String>,
}

/// Check of the node at the agent's start, with its result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreflightCheck {
    /// Stable [code](preflight.md#codes).
    pub code: String,
    /// Condition that holds if the check passed.
    pub title: String,
    /// Severity: `error`, `unknown` (could not be determined) or `warning`; `None`: the check passed.
    #[serde(deserialize_with = "known_severity")]
    pub severity: Option<Severity>,
    /// Result of the check; empty: only that it passed.
    pub message: String,
    /// Consequence of the result; empty if the check passed.
    pub consequence: String,
    /// Remedy; empty if the check passed.
    pub advice: String,
    /// Documentation of the check: a page, or its URL.
    pub link: String,
}
