//! What is wanted, and who has been told.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use crate::{Event, Workload, plan::Step, told::Connection};

/// All that the hub knows.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Whether ztunnels are told anything.
    pub(crate) open: bool,
    /// By UID.
    pub(crate) wanted: BTreeMap<String, Wanted>,
    /// In the order of their hellos: the last one is the newest.
    pub(crate) connections: BTreeMap<u64, Connection>,
    /// Of the last put that changed something.
    revision: u64,
    joined: u64,
}

/// A workload that ztunnel shall serve.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) workload: Workload,
    pub(crate) revision: u64,
    pub(crate) since: SystemTime,
}

impl Ledger {
    pub(crate) fn put(&mut self, workload: Workload) {
        let known = self.wanted.get(&workload.uid);
        let is_same = known.is_some_and(|known| known.workload.is_same(&workload));
        if is_same && !self.is_refused(&workload.uid) {
            return;
        }
        self.revision += 1;
        let wanted = Wanted { revision: self.revision, since: SystemTime::now(), workload };
        self.wanted.insert(wanted.workload.uid.clone(), wanted);
        self.wake_all();
    }

    /// By the newest ztunnel.
    fn is_refused(&self, uid: &str) -> bool {
        let told = self.newest().and_then(|(_, newest)| newest.told.get(uid));
        told.is_some_and(|told| told.refusal.is_some())
    }

    pub(crate) fn remove(&mut self, uid: &str) {
        if self.wanted.remove(uid).is_some() {
            self.wake_all();
        }
    }

    pub(crate) fn open(&mut self) {
        self.open = true;
        for connection in self.connections.values_mut() {
            connection.fresh_after = self.revision; // what is there already is the snapshot
        }
        self.wake_all();
    }

    /// A ztunnel has said hello; it is the newest one now. What it is known by here.
    pub(crate) fn join(&mut self, version: i32, event: OwnedFd) -> u64 {
        self.joined += 1;
        self.connections.insert(self.joined, Connection::new(version, self.revision, event));
        self.joined
    }

    pub(crate) fn leave(&mut self, id: u64) {
        let was_newest = self.is_newest(id);
        self.connections.remove(&id);
        if let Some(mut next) = self.connections.last_entry().filter(|_| was_newest) {
            next.get_mut().fresh_after = self.revision; // what it missed is many, what comes is urgent
            next.get().wake();
        }
    }

    pub(crate) fn newest(&self) -> Option<(u64, &Connection)> {
        self.connections.last_key_value().map(|(&id, connection)| (id, connection))
    }

    pub(crate) fn is_newest(&self, id: u64) -> bool {
        self.newest().is_some_and(|(newest, _)| newest == id)
    }

    /// Notes that a ztunnel acknowledged a request, and tells what the agent should know of that.
    pub(crate) fn acknowledged(
        &mut self,
        id: u64,
        step: Step,
        error: Option<String>,
        retry: impl Fn(u32) -> Duration,
    ) -> Option<Event> {
        let is_newest = self.is_newest(id);
        let subject = step.subject();
        let is_news = self.connections.get_mut(&id)?.note(step, error.as_deref(), retry);
        let (uid, revision, netns) = subject?;
        // Meanwhile it may have been removed, or put again: then that is what counts.
        let is_current = self.wanted.get(&uid).is_some_and(|wanted| wanted.revision == revision);
        (is_newest && is_news && is_current).then_some(match error {
            None => Event::Accepted { uid, netns },
            Some(error) => Event::Refused { uid, netns, error },
        })
    }

    fn wake_all(&self) {
        for connection in self.connections.values() {
            connection.wake();
        }
    }
}
