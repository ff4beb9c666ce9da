//! Reconciliation of API server lists with what is already known.
//!
//! A list is served from the cache of any one server, which may lag behind what another one has shown before; a restored store is
//! of an earlier time, too. So an object that a list lacks, or shows in an older state, is unconfirmed: it stays as it is known
//! until a request for it alone, which is served from the store itself. Changes reported by a watch are applied immediately, unless
//! they are older than what is known.
//!
//! Pure: the caller passes the time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use model::PodUid;
use retry::{Attempts, Backoff};

/// Delay before the first request: a lagging cache has usually caught up by then.
const FIRST: Duration = Duration::from_secs(1);
/// Delay after an inconclusive response, doubled after each further one up to the last.
const AGAIN: Duration = Duration::from_secs(5);
const LAST: Duration = Duration::from_secs(300);

/// Response of the API server to a request for one object alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObjectAnswer {
    /// No object of this name exists.
    Gone,
    /// The object exists.
    There(ObjectVersion),
    /// No response, or one that is not credible.
    Unknown,
}

impl ObjectAnswer {
    /// Returns the answer for a node on which the pod with this UID ran. `is_here`: the pod of the response is on it; another one
    /// elsewhere shows that ours is gone, and is not one of this collection.
    pub(crate) fn restrict_to_node(self, uid: &PodUid, is_here: bool) -> ObjectAnswer {
        match self {
            ObjectAnswer::There(version) if version.uid != *uid && !is_here => ObjectAnswer::Gone,
            answer => answer,
        }
    }
}

/// Identity of an object under its name, and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectVersion {
    /// UID; also that of a namespace, see [`model::ObjectMeta::uid`].
    pub(crate) uid: PodUid,
    /// Resource version, if it is a number, as with every API server. Greater numbers are newer.
    pub(crate) number: Option<u64>,
}

/// Consequence of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DoubtOutcome {
    /// The object was deleted.
    Gone,
    /// Another object has its name.
    Replaced,
    /// The object exists, in the state of the response.
    There,
    /// No change.
    Nothing,
}

#[derive(Debug)]
struct KnownObject {
    version: ObjectVersion,
    doubt: Option<ObjectDoubt>,
}

#[derive(Debug)]
struct ObjectDoubt {
    next: Instant,
    attempts: Attempts,
    /// Whether the list lacks the object.
    lacks: bool,
}

/// Objects of one collection, by name.
#[derive(Debug, Default)]
pub(crate) struct CollectionCache<K> {
    known: BTreeMap<K, KnownObject>,
}

impl<K: Ord + Clone> CollectionCache<K> {
    /// Applies a list. Known objects that it contradicts become unconfirmed, unless they do not `matter`: then the list is applied.
    pub(crate) fn apply_list(
        &mut self,
        list: impl Iterator<Item = (K, ObjectVersion)>,
        matters: impl Fn(&K) -> bool,
        now: Instant,
    ) {
        let listed = list.map(|(name, version)| (name, KnownObject { version, doubt: None }));
        let listed: BTreeMap<K, KnownObject> = listed.collect();
        for (name, mut before) in std::mem::replace(&mut self.known, listed) {
            let is_lacking = match self.known.get(&name) {
                Some(now) if is_older(&now.version, &before.version) => false,
                Some(_) => continue,
                None if matters(&name) => true,
                None => continue,
            };
            before.begin_doubt(is_lacking, now);
            self.known.insert(name, before);
        }
    }

    /// Applies a new or changed object from a watch. Returns whether it was accepted.
    pub(crate) fn apply_event(&mut self, name: K, version: ObjectVersion, now: Instant) -> bool {
        match self.known.get_mut(&name) {
            Some(known) if version.number < known.version.number && version.number.is_some() => {
                known.begin_doubt(false, now);
                false
            }
            _ => {
                self.known.insert(name, KnownObject { version, doubt: None });
                true
            }
        }
    }

    /// Applies a deletion from a watch. Returns false if another object has the name by now.
    pub(crate) fn apply_delete(&mut self, name: &K, uid: &PodUid) -> bool {
        let is_other = self.known.get(name).is_some_and(|known| known.version.uid != *uid);
        if !is_other {
            self.known.remove(name);
        }
        !is_other
    }

    /// Returns the names of unconfirmed objects.
    pub(crate) fn unconfirmed_names(&self) -> BTreeSet<K> {
        self.open_doubts().map(|(name, _, _)| name.clone()).collect()
    }

    /// Returns the names of all known objects.
    pub(crate) fn known_names(&self) -> impl Iterator<Item = &K> {
        self.known.keys()
    }

    /// Whether the object was observed and is not known to be deleted.
    pub(crate) fn is_known(&self, name: &K) -> bool {
        self.known.contains_key(name)
    }

    /// Returns the next object to request, by name and UID, and when.
    pub(crate) fn next_query(&self) -> Option<(K, PodUid, Instant)> {
        let next = self.open_doubts().min_by_key(|(_, _, doubt)| doubt.next);
        next.map(|(name, known, doubt)| (name.clone(), known.version.uid.clone(), doubt.next))
    }

    /// Applies the response to a request for the object with this UID.
    pub(crate) fn apply_answer(
        &mut self,
        name: &K,
        uid: &PodUid,
        answer: ObjectAnswer,
        now: Instant,
    ) -> DoubtOutcome {
        let Some(known) = self.known.get_mut(name).filter(|known| known.version.uid == *uid) else {
            return DoubtOutcome::Nothing;
        };
        match answer {
            ObjectAnswer::Unknown => {
                known.ask_later(now);
                DoubtOutcome::Nothing
            }
            ObjectAnswer::Gone => {
                self.known.remove(name);
                DoubtOutcome::Gone
            }
            ObjectAnswer::There(version) if version.uid == *uid => {
                known.version = version;
                // An object missing in a list may be deleted without an event of the watch.
                if known.doubt.as_ref().is_some_and(|doubt| doubt.lacks) {
                    known.ask_later(now);
                } else {
                    known.doubt = None;
                }
                DoubtOutcome::There
            }
            ObjectAnswer::There(version) => {
                *known = KnownObject { version, doubt: None };
                DoubtOutcome::Replaced
            }
        }
    }

    fn open_doubts(&self) -> impl Iterator<Item = (&K, &KnownObject, &ObjectDoubt)> {
        self.known.iter().filter_map(|(name, known)| Some((name, known, known.doubt.as_ref()?)))
    }
}

impl KnownObject {
    fn begin_doubt(&mut self, lacks: bool, now: Instant) {
        let doubt = self.doubt.get_or_insert(ObjectDoubt {
            next: now + FIRST,
            attempts: Backoff::new(AGAIN, LAST).start_attempts(),
            lacks,
        });
        doubt.lacks = lacks;
    }

    fn ask_later(&mut self, now: Instant) {
        if let Some(doubt) = &mut self.doubt {
            doubt.next = now + doubt.attempts.record_failure();
        }
    }
}

/// Whether the listed object is older than the known one, or may be.
fn is_older(listed: &ObjectVersion, known: &ObjectVersion) -> bool {
    match (listed.number, known.number) {
        (Some(listed), Some(known)) => listed < known,
        _ => listed.uid != known.uid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(uid: &str, number: u64) -> ObjectVersion {
        ObjectVersion { uid: uid.into(), number: Some(number) }
    }

    fn belief(list: &[(&'static str, &str, u64)], now: Instant) -> CollectionCache<&'static str> {
        let mut belief = CollectionCache::default();
        list_again(&mut belief, list, now);
        belief
    }

    fn list_again(
        belief: &mut CollectionCache<&'static str>,
        list: &[(&'static str, &str, u64)],
        now: Instant,
    ) {
        let list = list.iter().map(|(name, uid, number)| (*name, version(uid, *number)));
        belief.apply_list(list, |name| *name != "none of ours", now);
    }

    fn unconfirmed(belief: &CollectionCache<&'static str>) -> Vec<&'static str> {
        belief.unconfirmed_names().into_iter().collect()
    }

    #[test]
    fn a_list_is_not_believed_where_it_lacks_or_is_older() {
        let now = Instant::now();
        for (what, list, expected) in [
            ("the same", &[("a", "1", 5), ("b", "2", 6), ("none of ours", "3", 7)][..], &[][..]),
            ("newer", &[("a", "1", 9), ("b", "2", 6)], &[]),
            ("empty", &[], &["a", "b"]),
            ("one is missing", &[("a", "1", 5)], &["b"]),
            ("one is as it was before", &[("a", "1", 4), ("b", "2", 6)], &["a"]),
            ("a predecessor", &[("a", "0", 3), ("b", "2", 6)], &["a"]),
            ("a successor", &[("a", "9", 8), ("b", "2", 6)], &[]),
        ] {
            let mut belief = belief(&[("a", "1", 5), ("b", "2", 6), ("none of ours", "3", 7)], now);
            list_again(&mut belief, list, now);
            assert_eq!(unconfirmed(&belief), expected, "{what}");
            list_again(&mut belief, &[("a", "1", 5), ("b", "2", 6)], now);
            assert!(unconfirmed(&belief).is_empty() || what == "newer" || what == "a successor", "{what}");
        }
    }

    #[test]
    fn versions_that_are_no_numbers_are_told_by_uid() {
        let now = Instant::now();
        let mut belief = CollectionCache::default();
        let other = |uid: &str| ObjectVersion { uid: uid.into(), number: None };
        belief.apply_list([("a", other("1")), ("b", other("2"))].into_iter(), |_| true, now);
        belief.apply_list([("a", other("1")), ("b", other("0"))].into_iter(), |_| true, now);
        assert_eq!(unconfirmed(&belief), ["b"]);
        assert!(
            belief.apply_event("b", other("3"), now) && unconfirmed(&belief).is_empty(),
            "a watch is believed"
        );
    }

    #[test]
    fn what_a_watch_tells_counts_unless_it_is_older() {
        let now = Instant::now();
        let mut belief = belief(&[("a", "1", 5)], now);
        assert!(!belief.apply_event("a", version("0", 3), now), "history told once more");
        assert_eq!(unconfirmed(&belief), ["a"]);
        assert!(belief.apply_event("a", version("1", 6), now) && unconfirmed(&belief).is_empty());
        list_again(&mut belief, &[], now);
        assert!(
            belief.apply_event("a", version("1", 6), now) && unconfirmed(&belief).is_empty(),
            "it is caught up"
        );
        assert!(!belief.apply_delete(&"a", &"0".into()), "another one has its name");
        assert!(belief.is_known(&"a"));
        assert!(belief.apply_delete(&"a", &"1".into()) && !belief.is_known(&"a"));
    }

    #[test]
    fn answers_settle_it_and_questions_become_rare() {
        let now = Instant::now();
        let empty = |now| {
            let mut belief = belief(&[("a", "1", 5)], now);
            list_again(&mut belief, &[], now);
            belief
        };
        let mut gone = empty(now);
        assert_eq!(gone.next_query(), Some(("a", "1".into(), now + FIRST)));
        assert_eq!(gone.apply_answer(&"a", &"1".into(), ObjectAnswer::Gone, now), DoubtOutcome::Gone);
        assert!(gone.next_query().is_none() && !gone.is_known(&"a"));
        assert_eq!(gone.apply_answer(&"a", &"1".into(), ObjectAnswer::Gone, now), DoubtOutcome::Nothing);
        let mut replaced = empty(now);
        assert_eq!(
            replaced.apply_answer(&"a", &"1".into(), ObjectAnswer::There(version("2", 9)), now),
            DoubtOutcome::Replaced
        );
        assert!(unconfirmed(&replaced).is_empty());
        let mut moved = empty(now);
        let elsewhere = ObjectAnswer::There(version("2", 9)).restrict_to_node(&"1".into(), false);
        assert_eq!(moved.apply_answer(&"a", &"1".into(), elsewhere, now), DoubtOutcome::Gone);
        list_again(&mut moved, &[], now);
        assert_eq!(unconfirmed(&moved), [""; 0], "no list of this node has the pod of another one");
        for (uid, is_here) in [("1", true), ("1", false), ("2", true)] {
            let answer = ObjectAnswer::There(version(uid, 9));
            assert_eq!(answer.clone().restrict_to_node(&"1".into(), is_here), answer, "{uid} {is_here}");
        }
        for answer in [ObjectAnswer::There(version("1", 5)), ObjectAnswer::Unknown] {
            let (mut belief, mut at, mut pauses) = (empty(now), now, Vec::new());
            for _ in 0..9 {
                belief.apply_answer(&"a", &"1".into(), answer.clone(), at);
                let next = belief.next_query().unwrap().2;
                pauses.push((next - at).as_secs());
                at = next;
            }
            assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
            assert_eq!(unconfirmed(&belief), ["a"], "the list lacks it still");
        }
        // A restored store: everything is older, and true.
        let mut restored = belief(&[("a", "1", 5)], now);
        list_again(&mut restored, &[("a", "1", 2)], now);
        assert_eq!(
            restored.apply_answer(&"a", &"1".into(), ObjectAnswer::There(version("1", 2)), now),
            DoubtOutcome::There
        );
        assert!(unconfirmed(&restored).is_empty() && restored.apply_event("a", version("1", 3), now));
    }
}
