//! State of connections for reports.

use std::time::SystemTime;

use model::PodUid;

use crate::connection_state::ZtunnelConnection;
use crate::ledger::WorkloadLedger;
use crate::peer::PeerStanding;

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

impl WorkloadLedger {
    /// Returns the connections in the order of their hellos.
    pub(crate) fn connection_states(&self) -> Vec<ConnectionState> {
        self.connections.iter().map(|(id, one)| self.connection_state(*id, one)).collect()
    }

    fn connection_state(&self, id: u64, connection: &ZtunnelConnection) -> ConnectionState {
        let acknowledged = connection.acked.values().filter(|acked| acked.refusal.is_none()).count();
        let &ZtunnelConnection { since, version, in_sync, .. } = connection;
        let pod = connection.peer.pod.as_ref().map(|pod| pod.uid.clone());
        let standing = connection.peer.standing;
        ConnectionState { since, version, in_sync, acknowledged, pod, standing, newest: self.is_newest(id) }
    }
}
