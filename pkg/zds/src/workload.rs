//! What a ztunnel serves.

use std::sync::Arc;

use model::PodUid;
use netns::Netns;

use crate::message::WorkloadInfo;

/// A pod that ztunnel shall serve.
#[derive(Clone, Debug)]
pub struct Workload {
    /// UID of the pod.
    pub uid: PodUid,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its service account.
    pub service_account: String,
    /// Its network namespace. `None`: not known (yet); a ztunnel that serves the pod already goes on with it.
    pub netns: Option<Arc<Netns>>,
}

impl Workload {
    pub(crate) fn info(&self) -> WorkloadInfo {
        WorkloadInfo {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            service_account: self.service_account.clone(),
        }
    }

    /// Whether a ztunnel that knows one knows the other.
    pub(crate) fn is_same(&self, other: &Workload) -> bool {
        let id = |workload: &Workload| workload.netns.as_ref().map(|netns| netns.id());
        self.info() == other.info() && id(self) == id(other)
    }
}
