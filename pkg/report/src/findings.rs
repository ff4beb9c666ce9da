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
    /// Severity; `None` only in a document without it.
    #[serde(deserialize_with = "known_severity")]
    pub severity: Option<Severity>,
    /// Short, stable code, as in [`crate::Explanation`].
    pub code: String,
    /// Problem as a sentence.
    pub message: String,
    /// Advice, the most promising first.
    pub advice: Vec<String>,
}

/// Pods in one state due to one cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StateCause {
    /// State of the pods.
    pub capture: CaptureState,
    /// Severity of the state; `None`: it is the desired one.
    #[serde(deserialize_with = "known_severity")]
    pub severity: Option<Severity>,
    /// Short, stable code of the cause.
    pub code: String,
    /// Cause as a clause that names none of the pods.
    pub message: String,
    /// Advice about the pods themselves, the most promising first; empty if no action is needed. Captured pods with a fault that
    /// their state does not show have some, too.
    pub advice: Vec<String>,
    /// Pods, each as `NAMESPACE/NAME`.
    pub pods: Vec<String>,
}

/// Check of the node at the agent's start, with its result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreflightCheck {
    /// Short, stable code.
    pub code: String,
    /// Condition that holds if the check passed.
    pub title: String,
    /// Severity; `None`: the check passed.
    #[serde(deserialize_with = "known_severity")]
    pub severity: Option<Severity>,
    /// Description of the finding; empty: nothing beyond that the check passed.
    pub message: String,
    /// Consequence; empty if the check passed.
    pub consequence: String,
    /// Recommended action; empty if the check passed.
    pub advice: String,
    /// Link to the documentation.
    pub link: String,
}
