//! Findings about a node, and causes of the states of its pods, as the document has them.

use pod_status::CaptureState;
use serde::{Deserialize, Serialize};

use crate::document::known_value;

model::word_enum! {
    /// How bad something is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Severity {
        /// Worth knowing; nothing bypasses the mesh or fails because of it.
        Warning = "warning", "Worth knowing",
        /// Could not be determined.
        Unknown = "unknown", "Not everything could be determined",
        /// Something is unhealthy.
        Error = "error", "Something is unhealthy",
    }
}

impl Severity {
    /// Returns the severity of a pod's state; `None`: the pod is as it should be.
    pub fn from_capture(capture: CaptureState) -> Option<Severity> {
        match capture {
            CaptureState::Bypassing | CaptureState::Held => Some(Severity::Error),
            CaptureState::Unknown => Some(Severity::Unknown),
            CaptureState::Leaving | CaptureState::Pending => Some(Severity::Warning),
            CaptureState::Captured | CaptureState::Outside => None,
        }
    }
}

/// The exit status for the worst that was found: 0 if it is not as bad as `least`; else 2 if it could not be determined, and 1
/// in every other case.
pub fn exit_status(worst: Option<Severity>, least: Severity) -> u8 {
    match worst {
        Some(worst) if worst < least => 0,
        Some(Severity::Unknown) => 2,
        Some(_) => 1,
        None => 0,
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

/// A check of the node at the agent's start, with its outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreflightCheck {
    /// A short, stable name.
    pub code: String,
    /// The condition that holds if the check passed.
    pub title: String,
    /// How bad it is; `None`: it passed, or a severity that this version does not know.
    #[serde(deserialize_with = "known_value")]
    pub severity: Option<Severity>,
    /// Description of what was found; empty: nothing beside that it passed.
    pub message: String,
    /// The consequence; empty if it passed.
    pub consequence: String,
    /// The recommended action; empty if it passed.
    pub advice: String,
    /// Where to read on.
    pub link: String,
}
