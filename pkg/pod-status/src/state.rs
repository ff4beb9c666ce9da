//! The answer.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whether a pod is captured.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CaptureState {
    /// The pod should be captured, and is: redirection is in place, and its proxy serves it.
    Captured,
    /// The pod should be captured, and is on its way.
    Pending,
    /// The pod should be captured and runs, and all or some of its traffic bypasses the mesh.
    Bypassing,
    /// The pod should be captured; its traffic is held back, and reaches nothing through the mesh.
    Held,
    /// The pod should not be captured, and is not.
    Outside,
    /// The pod should not be captured, and rules or addresses of ours are still there for it.
    Leaving,
    /// The state could not be determined.
    #[default]
    #[serde(other)]
    Unknown,
}

impl CaptureState {
    /// All states, worst first.
    pub const ALL: [CaptureState; 7] = [
        CaptureState::Bypassing,
        CaptureState::Held,
        CaptureState::Unknown,
        CaptureState::Leaving,
        CaptureState::Pending,
        CaptureState::Captured,
        CaptureState::Outside,
    ];

    /// Returns the name of the state in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            CaptureState::Captured => "captured",
            CaptureState::Pending => "pending",
            CaptureState::Bypassing => "bypassing",
            CaptureState::Held => "held",
            CaptureState::Outside => "outside",
            CaptureState::Leaving => "leaving",
            CaptureState::Unknown => "unknown",
        }
    }

    /// The pod needs attention.
    #[must_use]
    pub fn is_wrong(self) -> bool {
        matches!(self, CaptureState::Bypassing | CaptureState::Held)
    }
}

impl fmt::Display for CaptureState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a pod's traffic is redirected into the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RedirectionMode {
    /// Rules in the pod's network namespace redirect its traffic to its sidecar.
    Sidecar,
    /// Rules of the node redirect its traffic to ztunnel (ztunnel up to 1.22).
    Node,
    /// Rules in the pod's network namespace redirect its traffic to ztunnel, which listens in that namespace.
    InPod,
}

impl RedirectionMode {
    /// Returns the name of the mode in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            RedirectionMode::Sidecar => "sidecar",
            RedirectionMode::Node => "node",
            RedirectionMode::InPod => "in-pod",
        }
    }
}

impl fmt::Display for RedirectionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The annotation `ambient.istio.io/redirection`, by which istiod decides whether clients use HBONE to reach the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirection {
    /// No annotation: the pod is not captured.
    None,
    /// Redirection is in place, and ztunnel does not serve the pod.
    Pending,
    /// The pod is captured.
    Enabled,
}

impl Redirection {
    /// The values that only the agent writes.
    pub const VALUES: [&'static str; 2] = ["enabled", "pending"];

    /// The annotation's value; `None` means no annotation.
    #[must_use]
    pub fn annotation_value(self) -> Option<&'static str> {
        match self {
            Redirection::None => None,
            Redirection::Pending => Some("pending"),
            Redirection::Enabled => Some("enabled"),
        }
    }
}

/// The conclusion from the evidence about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureStatus {
    /// Whether the pod is captured.
    pub state: CaptureState,
    /// The annotation that the pod should have; `None` leaves it as it is, because nothing new is certain.
    pub annotation: Option<Redirection>,
}
