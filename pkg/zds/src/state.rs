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
    /// In the order of their hellos. The last one is told everything.
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
    /// How far the newest ztunnel is.
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
        let workload = |(uid, wanted): (&String, &Wanted)| (uid.clone(), workload_state(wanted, newest));
        State {
            open: self.open,
            connections: self.connections.values().map(connection_state).collect(),
            workloads: self.wanted.iter().map(workload).collect(),
        }
    }
}

fn connection_state(connection: &Connection) -> ConnectionState {
    let acknowledged = connection.told.values().filter(|told| told.refusal.is_none()).count();
    let &Connection { since, version, in_sync, .. } = connection;
    ConnectionState { since, version, in_sync, acknowledged }
}

fn workload_state(wanted: &Wanted, newest: Option<&Connection>) -> WorkloadState {
    let told = newest.and_then(|newest| newest.told.get(&wanted.workload.uid));
    let answered = told.filter(|_| newest.is_some_and(|newest| !newest.lacks(wanted)));
    let progress = match answered {
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
