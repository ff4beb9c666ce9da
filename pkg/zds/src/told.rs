//! What one ztunnel knows.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};

use netns::NetnsId;

use crate::{ledger::Wanted, peer::Peer, plan::Step};

/// A ztunnel that has said hello.
#[derive(Debug)]
pub(crate) struct Connection {
    /// When it said hello, and in which version.
    pub(crate) since: SystemTime,
    pub(crate) version: i32,
    /// Whose it is.
    pub(crate) peer: Peer,
    /// It has acknowledged the end of the snapshot.
    pub(crate) in_sync: bool,
    /// What is put after this revision goes before everything else.
    pub(crate) fresh_after: u64,
    /// By UID. Whoever is missing has never been told, or has been taken back.
    pub(crate) told: BTreeMap<String, Told>,
    /// Wakes its thread.
    event: OwnedFd,
}

/// What it has said about one workload.
#[derive(Debug)]
pub(crate) struct Told {
    /// Which put it was told of.
    pub(crate) revision: u64,
    /// `None`: it was told to keep what it has.
    pub(crate) netns: Option<NetnsId>,
    /// How often it was told of this network namespace.
    pub(crate) attempts: u32,
    pub(crate) refusal: Option<Refusal>,
    /// Accepted, kept or refused since.
    pub(crate) since: SystemTime,
}

/// It cannot serve the workload (yet).
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) error: String,
    /// When it is asked again.
    pub(crate) again: Instant,
}

impl Connection {
    pub(crate) fn new(version: i32, fresh_after: u64, peer: Peer, event: OwnedFd) -> Self {
        let since = SystemTime::now();
        Self { since, version, peer, in_sync: false, fresh_after, told: BTreeMap::new(), event }
    }

    /// Never waits: the event counts.
    pub(crate) fn wake(&self) {
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Whether it has to be told of a workload, apart from asking again.
    pub(crate) fn lacks(&self, wanted: &Wanted) -> bool {
        let told = self.told.get(&wanted.workload.uid);
        match (told, &wanted.workload.netns) {
            (None, Some(_)) => true,
            // To keep something can be asked within the snapshot only: ztunnel would end its process.
            (None, None) => !self.in_sync,
            (Some(_), None) => false,
            // Kept: it goes on with what it has until the snapshot is complete.
            (Some(Told { netns: None, .. }), Some(_)) => self.in_sync,
            (Some(told), Some(_)) => told.revision != wanted.revision,
        }
    }

    /// It has acknowledged the workload in the network namespace that it has now.
    pub(crate) fn serves(&self, wanted: &Wanted) -> bool {
        let netns = wanted.workload.netns.as_ref().map(|netns| netns.id());
        let told = self.told.get(&wanted.workload.uid);
        netns.is_some() && told.is_some_and(|told| told.netns == netns && told.refusal.is_none())
    }

    /// It has refused the workload when it was last told.
    pub(crate) fn refuses(&self, uid: &str) -> bool {
        self.told.get(uid).is_some_and(|told| told.refusal.is_some())
    }

    /// Notes that a request was acknowledged. Whether somebody should know.
    pub(crate) fn note(&mut self, step: Step, error: Option<&str>, retry: impl Fn(u32) -> Duration) -> bool {
        match step {
            Step::SnapshotSent => self.in_sync = true,
            // Nothing more can be done if it refuses one of these.
            Step::Del { uid } => drop(self.told.remove(&uid)),
            Step::Keep { uid, revision } => {
                let since = SystemTime::now();
                let kept = Told { revision, netns: None, attempts: 0, refusal: None, since };
                self.told.insert(uid, kept);
            }
            Step::Add { uid, revision, netns } => {
                return self.note_add(uid, revision, netns, error, retry);
            }
        }
        false
    }

    fn note_add(
        &mut self,
        uid: String,
        revision: u64,
        netns: NetnsId,
        error: Option<&str>,
        retry: impl Fn(u32) -> Duration,
    ) -> bool {
        let before = self.told.remove(&uid).filter(|told| told.netns == Some(netns));
        let attempts = before.as_ref().map_or(0, |told| told.attempts).saturating_add(1);
        let refusal =
            error.map(|error| Refusal { error: error.to_owned(), again: Instant::now() + retry(attempts) });
        let is_news = before.as_ref().is_none_or(|told| {
            error.is_none() || told.revision != revision || told.refusal.as_ref().map(|r| &*r.error) != error
        });
        let unchanged = before.filter(|told| told.refusal.is_some() == refusal.is_some());
        let since = unchanged.map_or_else(SystemTime::now, |told| told.since);
        self.told.insert(uid, Told { revision, netns: Some(netns), attempts, refusal, since });
        is_news
    }
}
