//! Repair of pods that started before the plugin was installed: their validation container has failed because no
//! component redirects their traffic.
//!
//! [`RepairCriteria`] defines these pods, [`RepairQueue`] when each is handled (both only compute), and
//! [`RepairController`] watches the node's pods at the API server and labels, deletes, or repairs them in place. In the
//! last case it also maintains the rules of running pods (`sidecar_rules`), whatever removed them.

mod controller;
mod criteria;
mod in_place;
mod metrics;
mod observed_pod;
mod queue;
mod sidecar_pods;
mod sidecar_rules;
mod sidecar_watch;

pub use controller::{RepairController, RepairOptions, RepairReport, RepairedPod};
pub use criteria::RepairCriteria;
pub use in_place::{AddRecords, InPlaceError, InPlaceRepair};
pub use metrics::RepairMetrics;
pub use observed_pod::ObservedPod;
pub use queue::{RepairOutcome, RepairQueue, RepairTask};

/// Action on a broken pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairMode {
    /// The pod's rules are applied in its network namespace; its init container passes at its next restart.
    InPlace,
    /// The pod is deleted, so that its controller replaces it.
    Delete,
    /// The pod is labelled, so that another component can act on it.
    Label {
        /// The label's key.
        key: String,
        /// The label's value.
        value: String,
    },
}

impl RepairMode {
    /// Returns Istio's value of the metric's label `type`.
    pub fn code(&self) -> &'static str {
        match self {
            RepairMode::InPlace => "repair",
            RepairMode::Delete => "delete",
            RepairMode::Label { .. } => "label",
        }
    }
}
