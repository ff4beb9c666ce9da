//! A workload that a ztunnel serves.

use std::sync::Arc;

use model::PodUid;
use netns::Netns;

use crate::message::WorkloadInfo;

/// A pod that ztunnel shall serve.
#[derive(Clone, Debug)]
pub struct Workload {
    /// UID of the pod.
    pub uid: PodUid,
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Service account of the pod.
    pub service_account: String,
    /// Network namespace of the pod. `None` if not known (yet): a ztunnel that already serves the pod continues with
    /// the namespace that it has.
    pub netns: Option<Arc<Netns>>,
}

impl Workload {
    pub(crate) fn to_info(&self) -> WorkloadInfo {
        WorkloadInfo {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            service_account: self.service_account.clone(),
        }
    }

    /// Returns whether both are equal for a ztunnel.
    pub(crate) fn is_same(&self, other: &Workload) -> bool {
        let id = |workload: &Workload| workload.netns.as_ref().map(|netns| netns.id());
        self.to_info() == other.to_info() && id(self) == id(other)
    }
}
