//! Repair of pods that lost the race: they started before the plugin was installed, and their validation container has
//! found that nobody redirects their traffic.
//!
//! [`RepairCriteria`] says which pods those are, [`RepairQueue`] when each is handled (both compute only), and
//! [`RepairController`] follows the node's pods at the API server and labels them, deletes them, or repairs them in place.
//! In the last case it also keeps the rules of pods that run (`rule_keeper`), whoever removed them.

mod controller;
mod criteria;
mod in_place;
mod metrics;
mod observed_pod;
mod queue;
mod rule_keeper;
mod sidecar_pods;

pub use controller::{RepairController, RepairEvent, RepairOptions};
pub use criteria::{Breakage, RepairCriteria};
pub use in_place::{InPlaceError, InPlaceRepair};
pub use metrics::RepairMetrics;
pub use observed_pod::ObservedPod;
pub use queue::{RepairOutcome, RepairQueue, RepairTask};
pub use rule_keeper::RecordedRules;

/// What is done with a broken pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairMode {
    /// Its rules are applied in its network namespace; its init container passes at its next restart.
    InPlace,
    /// It is deleted, so that its controller replaces it.
    Delete,
    /// It is labelled, for others to act on.
    Label {
        /// The label's key.
        key: String,
        /// The label's value.
        value: String,
    },
}

impl RepairMode {
    /// Istio's value of the metric's label `type`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            RepairMode::InPlace => "repair",
            RepairMode::Delete => "delete",
            RepairMode::Label { .. } => "label",
        }
    }
}
