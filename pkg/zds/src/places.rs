//! Places for connections, assigned by peer: a ztunnel pod of the node always gets one, whatever other peers are
//! connected.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Weak;
use std::time::{Duration, Instant};

use model::PodUid;
use rustix::net::{Shutdown, shutdown};

use crate::peer::{PeerNetns, PeerStanding};

/// Maximum number of connections. There are two ztunnels during a takeover.
pub const MAX_CONNECTIONS: usize = 8;
/// Of these, maximum for peers that are not known to run in a ztunnel pod.
pub const MAX_UNKNOWN_PEERS: usize = 4;
/// Of these, maximum for peers of one ztunnel pod: the existing connection, and its replacement.
pub const MAX_PER_POD: usize = 2;

/// Progress of a connection; the least counts least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Progress {
    /// The peer has not sent its hello.
    Dialled,
    /// The peer has sent its hello.
    Greeted,
    /// The peer has acknowledged its snapshot.
    Synced,
}

/// Owner of a connection, as far as known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) standing: PeerStanding,
    /// UID of its pod; `None`: unknown, or one of several.
    pub(crate) pod: Option<PodUid>,
}

/// A connection that holds a place.
#[derive(Debug, Default)]
pub(crate) struct PlaceHolder {
    pub(crate) netns: PeerNetns,
    pub(crate) socket: Weak<OwnedFd>,
}

/// Place of an admitted connection.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) id: u64,
    /// The connection that must be closed in favour of this one, if any.
    pub(crate) evicted: Option<PlaceHolder>,
}

/// All places in use.
#[derive(Debug, Default)]
pub(crate) struct PlaceTable {
    places: BTreeMap<u64, Place>,
    /// Times at which places that unknown peers left recently become available.
    cooling: Vec<Instant>,
    given: u64,
}

#[derive(Debug)]
struct Place {
    claim: Claim,
    progress: Progress,
    holder: PlaceHolder,
}

impl PlaceHolder {
    /// Closes the connection: its thread notices that, and ends.
    pub(crate) fn close_connection(&self) {
        if let Some(socket) = self.socket.upgrade() {
            let _ = shutdown(&socket, Shutdown::Both); // it may have been closed already
        }
    }
}

impl PlaceTable {
    /// Assigns a place; `None`: none is available. Unknown peers never get one for which a peer of a ztunnel pod would
    /// have to wait.
    pub(crate) fn admit_connection(
        &mut self,
        claim: Claim,
        holder: PlaceHolder,
        now: Instant,
    ) -> Option<Admission> {
        self.cooling.retain(|free_at| *free_at > now);
        let evicted = self.room_for(&claim).ok()?;
        let evicted = evicted.and_then(|evicted| self.places.remove(&evicted)).map(|place| place.holder);
        self.given += 1;
        self.places.insert(self.given, Place { claim, progress: Progress::Dialled, holder });
        Some(Admission { id: self.given, evicted })
    }

    /// Returns whether a place was not given to another connection.
    pub(crate) fn is_held(&self, id: u64) -> bool {
        self.places.contains_key(&id)
    }

    /// Returns whether an unknown peer would get a place.
    pub(crate) fn has_room_for_unknown(&mut self, now: Instant) -> bool {
        self.cooling.retain(|free_at| *free_at > now);
        self.room_for(&Claim { standing: PeerStanding::Unknown, pod: None }).is_ok()
    }

    /// Returns the place to evict for a claim; `None`: a place is free. Error: no place can be evicted for it.
    fn room_for(&self, claim: &Claim) -> Result<Option<u64>, ()> {
        if claim.standing == PeerStanding::Unknown {
            let unknown = self.count_places(|place| place.claim.standing == PeerStanding::Unknown);
            let fits =
                unknown + self.cooling.len() < MAX_UNKNOWN_PEERS && self.places.len() < MAX_CONNECTIONS;
            return if fits { Ok(None) } else { Err(()) };
        }
        let is_same_pod = |place: &Place| place.claim == *claim;
        if self.count_places(is_same_pod) >= MAX_PER_POD {
            // A connection that serves pods outranks a new one.
            let weak = self.weakest_place(|place| is_same_pod(place) && place.progress < Progress::Synced);
            return weak.map(Some).ok_or(());
        }
        if self.places.len() < MAX_CONNECTIONS {
            return Ok(None);
        }
        self.weakest_place(|place| place.claim.standing < claim.standing).map(Some).ok_or(())
    }

    fn count_places(&self, is: impl Fn(&Place) -> bool) -> usize {
        self.places.values().filter(|place| is(place)).count()
    }

    /// Returns the matching place that counts least; of several the oldest.
    fn weakest_place(&self, is: impl Fn(&Place) -> bool) -> Option<u64> {
        let all = self.places.iter().filter(|(_, place)| is(place));
        all.min_by_key(|(id, place)| (place.claim.standing, place.progress, **id)).map(|(id, _)| *id)
    }

    /// Records the progress of a connection.
    pub(crate) fn record_progress(&mut self, id: u64, progress: Progress) {
        if let Some(place) = self.places.get_mut(&id) {
            place.progress = progress;
        }
    }

    /// Updates the owners of connections by the present knowledge of the node's ztunnel pods. A process stays in its
    /// namespace: an owner that was known by it stays so.
    pub(crate) fn update_claims(&mut self, claim: impl Fn(&PlaceHolder) -> Claim) {
        for place in self.places.values_mut() {
            let claim = claim(&place.holder);
            if place.claim.standing.may_become(claim.standing) {
                place.claim = claim;
            }
        }
    }

    /// Releases the place of an ended connection. That of an unknown peer stays in use for `delay`: peers that
    /// reconnect repeatedly cost no more than that. Changes nothing if it was evicted before.
    pub(crate) fn release_place(&mut self, id: u64, now: Instant, delay: Duration) {
        if self.places.remove(&id).is_some_and(|place| place.claim.standing == PeerStanding::Unknown) {
            self.cooling.push(now + delay);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAUSE: Duration = Duration::from_secs(1);

    fn stranger() -> Claim {
        Claim { standing: PeerStanding::Unknown, pod: None }
    }

    fn ztunnel(uid: &str, standing: PeerStanding) -> Claim {
        Claim { standing, pod: Some(uid.into()) }
    }

    fn known(uid: &str) -> Claim {
        ztunnel(uid, PeerStanding::Namespace)
    }

    /// The place of an admitted connection, and the evicted one.
    fn admitted(table: &mut PlaceTable, claim: Claim, now: Instant) -> Option<(u64, Option<u64>)> {
        let before: Vec<u64> = table.places.keys().copied().collect();
        let Admission { id, evicted } = table.admit_connection(claim, PlaceHolder::default(), now)?;
        let gone = before.into_iter().find(|id| !table.is_held(*id));
        assert_eq!(gone.is_some(), evicted.is_some());
        Some((id, gone))
    }

    #[test]
    fn strangers_hold_a_part_of_the_places_and_keep_it_for_a_while() {
        let (mut table, now) = (PlaceTable::default(), Instant::now());
        for id in 1..=4 {
            assert_eq!(admitted(&mut table, stranger(), now), Some((id, None)));
        }
        assert_eq!(admitted(&mut table, stranger(), now), None);
        assert_eq!(admitted(&mut table, known("a"), now), Some((5, None)));
        table.release_place(1, now, PAUSE);
        assert_eq!(admitted(&mut table, stranger(), now), None, "it left a moment ago");
        assert!(!table.has_room_for_unknown(now + PAUSE / 2) && table.has_room_for_unknown(now + PAUSE));
        assert_eq!(admitted(&mut table, stranger(), now + PAUSE), Some((6, None)));
    }

    #[test]
    fn the_weakest_leaves_for_a_ztunnel() {
        let (mut table, now) = (PlaceTable::default(), Instant::now());
        (0..4).for_each(|_| assert!(admitted(&mut table, stranger(), now).is_some()));
        for (id, uid) in [(5, "a"), (6, "b"), (7, "c"), (8, "d")] {
            let claim = ztunnel(uid, PeerStanding::Address);
            assert_eq!(admitted(&mut table, claim, now), Some((id, None)));
        }
        (1..=3).for_each(|id| table.record_progress(id, Progress::Greeted));
        table.record_progress(1, Progress::Synced);
        assert_eq!(admitted(&mut table, known("e"), now), Some((9, Some(4))), "it has not said hello");
        assert_eq!(admitted(&mut table, known("f"), now), Some((10, Some(2))));
        table.release_place(2, now, PAUSE);
        assert!(table.cooling.is_empty(), "it was evicted");
        assert_eq!(admitted(&mut table, ztunnel("g", PeerStanding::Address), now), Some((11, Some(3))));
        assert_eq!(admitted(&mut table, known("h"), now), Some((12, Some(1))));
        assert_eq!(admitted(&mut table, known("i"), now), Some((13, Some(5))), "known by its address alone");
    }

    #[test]
    fn a_ztunnel_that_leaks_connections_takes_no_place_of_another() {
        let (mut table, now) = (PlaceTable::default(), Instant::now());
        assert_eq!(admitted(&mut table, known("a"), now), Some((1, None)));
        assert_eq!(admitted(&mut table, known("a"), now), Some((2, None)));
        table.record_progress(1, Progress::Synced);
        assert_eq!(admitted(&mut table, known("a"), now), Some((3, Some(2))));
        table.record_progress(3, Progress::Synced);
        assert_eq!(admitted(&mut table, known("a"), now), None, "both serve");
        assert_eq!(admitted(&mut table, known("b"), now), Some((4, None)));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Admit(Claim),
        Release(u64),
        Note(u64, Progress),
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let claim = prop_oneof![
            4 => Just(stranger()),
            1 => "[a-c]".prop_map(|uid| known(&uid)),
            1 => "[a-c]".prop_map(|uid| ztunnel(&uid, PeerStanding::Address)),
        ];
        let progress = prop_oneof![Just(Progress::Greeted), Just(Progress::Synced)];
        prop_oneof![
            5 => claim.prop_map(Step::Admit),
            2 => (1..40_u64).prop_map(Step::Release),
            2 => (1..40_u64, progress).prop_map(|(id, progress)| Step::Note(id, progress)),
            1 => (0..1500_u64).prop_map(Step::Pass),
        ]
    }

    proptest! {
        /// Whatever unknown peers do, in any order: the limits hold, no unknown peer displaces another connection, a ztunnel is
        /// never displaced by one of lower precedence, and a ztunnel pod without a connection gets a place immediately.
        #[test]
        fn a_ztunnel_pod_always_gets_a_place(steps in prop::collection::vec(step(), 1..80)) {
            let (mut table, mut now) = (PlaceTable::default(), Instant::now());
            for step in steps {
                match step {
                    Step::Admit(claim) => {
                        let held: BTreeMap<u64, Claim> =
                            table.places.iter().map(|(id, place)| (*id, place.claim.clone())).collect();
                        if let Some((_, Some(evicted))) = admitted(&mut table, claim.clone(), now) {
                            prop_assert!(claim.standing > PeerStanding::Unknown);
                            let victim = &held[&evicted];
                            prop_assert!(victim.standing < claim.standing || *victim == claim);
                        }
                    }
                    Step::Release(id) => table.release_place(id, now, PAUSE),
                    Step::Note(id, progress) => table.record_progress(id, progress),
                    Step::Pass(millis) => now += Duration::from_millis(millis),
                }
                let strangers = table.count_places(|place| place.claim.standing == PeerStanding::Unknown);
                prop_assert!(table.places.len() <= MAX_CONNECTIONS && strangers <= MAX_UNKNOWN_PEERS);
                prop_assert!(table.cooling.len() <= 2 * MAX_UNKNOWN_PEERS);
                prop_assert!(table.room_for(&known("new")).is_ok());
            }
        }
    }
}
