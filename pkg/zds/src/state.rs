//! What people and metrics are shown.

use std::collections::BTreeMap;
use std::time::SystemTime;

use netns::NetnsId;

use crate::ledger::{Ledger, Wanted};
use crate::told::{Connection, Told};

/// How things stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Whether ztunnels are told anything yet.
    pub open: bool,
    /// In the order of their hellos.
    pub connections: Vec<ConnectionState>,
    /// What is wanted, by UID.
    pub workloads: BTreeMap<String, WorkloadState>,
}

/// A connected ztunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionState {
    /// When it said hello.
    pub since: SystemTime,
    /// Version of the protocol that it named.
    pub version: i32,
    /// Whether it has the whole snapshot.
    pub in_sync: bool,
    /// How many workloads it has accepted or keeps.
    pub acknowledged: usize,
    /// UID of its pod; none: it is not known in which one it runs.
    pub pod: Option<String>,
    /// It counts as the newest, which is told what comes.
    pub newest: bool,
}

/// A workload that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadState {
    /// Name of the pod.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its network namespace, if it is known.
    pub netns: Option<NetnsId>,
    /// How far the newest ztunnel is; accepted if another one serves it meanwhile.
    pub progress: Progress,
    /// Since when that is so.
    pub since: SystemTime,
    /// How often the newest ztunnel answered for this network namespace.
    pub attempts: u32,
}

/// How far a ztunnel is with a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It has not answered, or has not been told: there is no ztunnel, or the network namespace is not known.
    Waiting,
    /// It was told to go on with what it has.
    Kept,
    /// It serves the workload.
    Accepted,
    /// It could not serve the workload when it was last asked.
    Refused(String),
}

impl Ledger {
    pub(crate) fn state(&self) -> State {
        let newest = self.newest().map(|(_, newest)| newest);
        let workload = |(uid, wanted): (&String, &Wanted)| (uid.clone(), self.workload_state(wanted, newest));
        State {
            open: self.open,
            connections: self.connections.iter().map(|(id, one)| self.connection_state(*id, one)).collect(),
            workloads: self.wanted.iter().map(workload).collect(),
        }
    }

    fn connection_state(&self, id: u64, connection: &Connection) -> ConnectionState {
        let acknowledged = connection.told.values().filter(|told| told.refusal.is_none()).count();
        let &Connection { since, version, in_sync, .. } = connection;
        let pod = connection.peer.pod.as_ref().map(|pod| pod.uid.clone());
        ConnectionState { since, version, in_sync, acknowledged, pod, newest: self.is_newest(id) }
    }

    fn workload_state(&self, wanted: &Wanted, newest: Option<&Connection>) -> WorkloadState {
        let told = newest.and_then(|newest| newest.told.get(&wanted.workload.uid));
        let answered = told.filter(|_| newest.is_some_and(|newest| !newest.lacks(wanted)));
        let progress = match answered {
            None | Some(Told { refusal: Some(_), .. }) if self.is_served(wanted) => Progress::Accepted,
            None => Progress::Waiting,
            Some(Told { refusal: Some(refusal), .. }) => Progress::Refused(refusal.error.clone()),
            Some(Told { netns: None, .. }) => Progress::Kept,
            Some(_) => Progress::Accepted,
        };
        WorkloadState {
            name: wanted.workload.name.clone(),
            namespace: wanted.workload.namespace.clone(),
            netns: wanted.workload.netns.as_ref().map(|netns| netns.id()),
            progress,
            since: answered.map_or(wanted.since, |told| told.since),
            attempts: answered.map_or(0, |told| told.attempts),
        }
    }
}
