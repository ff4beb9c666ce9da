//! Capture status.

use serde::{Deserialize, Serialize};

model::word_enum! {
    /// Capture state of a pod.
    #[derive(Clone, Copy, Default, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum CaptureState {
        /// The pod should be captured, and is: redirection is in place, and its proxy serves it.
        Captured = "captured",
        /// The pod should be captured, and is not yet.
        Pending = "pending",
        /// The pod should be captured and runs, but all or some of its traffic bypasses the mesh.
        Bypassing = "bypassing",
        /// The pod should be captured; its traffic is held, and nothing is reachable through the mesh.
        Held = "held",
        /// The pod should not be captured, and is not.
        Outside = "outside",
        /// The pod should not be captured, and our rules or addresses for it still exist.
        Leaving = "leaving",
        /// The state could not be determined.
        #[default]
        #[serde(other)]
        Unknown = "unknown",
    }
}

impl CaptureState {
    /// All states, worst first.
    pub const WORST_FIRST: [CaptureState; 7] = [
        CaptureState::Bypassing,
        CaptureState::Held,
        CaptureState::Unknown,
        CaptureState::Leaving,
        CaptureState::Pending,
        CaptureState::Captured,
        CaptureState::Outside,
    ];

    /// Whether the pod needs attention.
    pub fn is_wrong(self) -> bool {
        matches!(self, CaptureState::Bypassing | CaptureState::Held)
    }
}

model::word_enum! {
    /// Kind of redirection of a pod's traffic into the mesh.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum RedirectionMode {
        /// Rules in the pod's network namespace redirect its traffic to its sidecar.
        Sidecar = "sidecar",
        /// Rules of the node redirect its traffic to ztunnel (ztunnel up to 1.22).
        Node = "node",
        /// Rules in the pod's network namespace redirect its traffic to ztunnel, which listens in that namespace.
        InPod = "in-pod",
    }
}

/// Value of the annotation `ambient.istio.io/redirection`, by which istiod decides whether clients use HBONE to reach the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirection {
    /// No annotation: the pod is not captured.
    None,
    /// Redirection is in place, but ztunnel does not serve the pod.
    Pending,
    /// The pod is captured.
    Enabled,
}

impl Redirection {
    /// Values that only the agent writes.
    pub const VALUES: [&'static str; 2] = ["enabled", "pending"];

    /// Returns the annotation's value; `None`: no annotation.
    pub fn annotation_value(self) -> Option<&'static str> {
        match self {
            Redirection::None => None,
            Redirection::Pending => Some("pending"),
            Redirection::Enabled => Some("enabled"),
        }
    }
}

/// Conclusion from the evidence about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureStatus {
    /// Capture state of the pod.
    pub state: CaptureState,
    /// Desired annotation of the pod; `None`: unchanged, because nothing new is certain.
    pub annotation: Option<Redirection>,
}
