//! State of ZDS for reports and metrics.

use std::collections::BTreeMap;
use std::time::SystemTime;

use model::PodUid;
use netns::NetnsId;

use crate::connection_state::{AckedWorkload, ZtunnelConnection};
use crate::ledger::{DesiredWorkload, WorkloadLedger};
use crate::peer::PeerStanding;

/// State of ZDS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZdsState {
    /// Whether ztunnels are sent requests yet.
    pub open: bool,
    /// Connections in the order of their hellos.
    pub connections: Vec<ConnectionState>,
    /// Desired workloads, by UID.
    pub workloads: BTreeMap<PodUid, WorkloadState>,
}

/// A connected ztunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionState {
    /// Time of its hello.
    pub since: SystemTime,
    /// Version of the protocol in its hello.
    pub version: i32,
    /// Whether it has acknowledged the whole snapshot.
    pub in_sync: bool,
    /// Number of workloads that it has accepted or keeps.
    pub acknowledged: usize,
    /// UID of its pod; `None`: the pod is not known.
    pub pod: Option<PodUid>,
    /// Evidence that it is a ztunnel of the node.
    pub standing: PeerStanding,
    /// Whether it counts as the newest ztunnel, which is sent changes.
    pub newest: bool,
}

/// A workload that is desired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadState {
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Network namespace of the pod, if it is known.
    pub netns: Option<NetnsId>,
    /// Progress of the newest ztunnel; accepted if another one serves the workload meanwhile.
    pub progress: WorkloadProgress,
    /// Time since which this is so.
    pub since: SystemTime,
    /// Number of answers of the newest ztunnel for this network namespace.
    pub attempts: u32,
}

/// Progress of a ztunnel with a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadProgress {
    /// The ztunnel has not acknowledged the workload, or was not sent it: no ztunnel is connected, or the network
    /// namespace is not known.
    Waiting,
    /// The ztunnel was asked to keep what it has.
    Kept,
    /// The ztunnel serves the workload.
    Accepted,
    /// The ztunnel could not serve the workload at the last request.
    Refused(String),
}

impl WorkloadLedger {
    pub(crate) fn state(&self) -> ZdsState {
        let newest = self.newest_connection().map(|(_, newest)| newest);
        let workload =
            |(uid, desired): (&PodUid, &DesiredWorkload)| (uid.clone(), self.workload_state(desired, newest));
        ZdsState {
            open: self.open,
            connections: self.connections.iter().map(|(id, one)| self.connection_state(*id, one)).collect(),
            workloads: self.desired.iter().map(workload).collect(),
        }
    }

    fn connection_state(&self, id: u64, connection: &ZtunnelConnection) -> ConnectionState {
        let acknowledged = connection.acked.values().filter(|acked| acked.refusal.is_none()).count();
        let &ZtunnelConnection { since, version, in_sync, .. } = connection;
        let pod = connection.peer.pod.as_ref().map(|pod| pod.uid.clone());
        let standing = connection.peer.standing;
        ConnectionState { since, version, in_sync, acknowledged, pod, standing, newest: self.is_newest(id) }
    }

    fn workload_state(&self, desired: &DesiredWorkload, newest: Option<&ZtunnelConnection>) -> WorkloadState {
        let acked = newest.and_then(|newest| newest.acked.get(&desired.workload.uid));
        let answered = acked.filter(|_| newest.is_some_and(|newest| !newest.lacks_workload(desired)));
        let progress = match answered {
            None | Some(AckedWorkload { refusal: Some(_), .. }) if self.is_served(desired) => {
                WorkloadProgress::Accepted
            }
            None => WorkloadProgress::Waiting,
            Some(AckedWorkload { refusal: Some(refusal), .. }) => {
                WorkloadProgress::Refused(refusal.error.clone())
            }
            Some(AckedWorkload { netns: None, .. }) => WorkloadProgress::Kept,
            Some(_) => WorkloadProgress::Accepted,
        };
        WorkloadState {
            name: desired.workload.name.clone(),
            namespace: desired.workload.namespace.clone(),
            netns: desired.workload.netns.as_ref().map(|netns| netns.id()),
            progress,
            since: answered.map_or(desired.since, |acked| acked.since),
            attempts: answered.map_or(0, |acked| acked.attempts),
        }
    }
}
