//! Parts of an explanation.

use serde::{Deserialize, Serialize};

/// Overall verdict on a pod.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodVerdict {
    /// The pod is in its desired state, captured or outside.
    Healthy,
    /// The pod or something it depends on is faulty, or a transition is not complete.
    Unhealthy,
    /// Unknown whether anything is faulty.
    #[default]
    Unknown,
    /// The node has no such pod.
    NotFound,
}

impl PodVerdict {
    /// Returns the exit status for scripts: 0, 1, 2 and 3, in the order of the variants.
    pub fn exit_status(self) -> u8 {
        self as u8
    }
}

/// A situation of the pod or of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) code: String,
    pub(super) verdict: PodVerdict,
    pub(super) message: String,
    pub(super) advice: Vec<String>,
}

impl Finding {
    pub(super) fn new(
        code: &str,
        verdict: PodVerdict,
        message: impl Into<String>,
        advice: &[&str],
    ) -> Finding {
        let advice = advice.iter().map(|advice| (*advice).to_owned()).collect();
        Finding { code: code.to_owned(), verdict, message: message.into(), advice }
    }

    pub(super) fn new_healthy(code: &str, message: impl Into<String>, advice: &[&str]) -> Finding {
        Finding::new(code, PodVerdict::Healthy, message, advice)
    }

    pub(super) fn new_unhealthy(code: &str, message: impl Into<String>, advice: &[&str]) -> Finding {
        Finding::new(code, PodVerdict::Unhealthy, message, advice)
    }

    pub(super) fn new_unknown(code: &str, message: impl Into<String>, advice: &[&str]) -> Finding {
        Finding::new(code, PodVerdict::Unknown, message, advice)
    }
}
