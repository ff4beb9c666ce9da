//! How well the API server's collections are followed. A watch that fails leaves what is known as it is, and nobody notices.
//!
//! Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use enrolment::WatchedCollection;

/// A failure is not reported before: a connection that breaks is made again at once.
const GRACE: Duration = Duration::from_secs(10);
/// A watch that fails says so at least so often: its pauses are a minute at most, and an attempt without an answer fails after
/// half a minute. One that is silent for longer works again, and nothing has changed since.
const SILENCE: Duration = Duration::from_secs(95);

/// A collection whose changes are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleCollection {
    /// The collection.
    pub collection: WatchedCollection,
    /// How long its watch has failed.
    pub age: Duration,
    /// The last error.
    pub error: String,
}

#[derive(Debug)]
struct WatchFailure {
    first: Instant,
    last: Instant,
    error: String,
}

/// The failures of watches since they last showed something.
#[derive(Debug, Default)]
pub(crate) struct WatchHealth(BTreeMap<WatchedCollection, WatchFailure>);

impl WatchHealth {
    /// A watch showed something, or failed.
    pub(crate) fn record_watch(
        &mut self,
        collection: WatchedCollection,
        result: Result<(), String>,
        now: Instant,
    ) {
        let before = self.0.remove(&collection).filter(|failure| failure.is_current(now));
        if let Err(error) = result {
            let first = before.map_or(now, |failure| failure.first);
            self.0.insert(collection, WatchFailure { first, last: now, error });
        }
    }

    /// Whether changes of a collection may be missing.
    pub(crate) fn is_failing(&self, collection: WatchedCollection, now: Instant) -> bool {
        self.0.get(&collection).is_some_and(|failure| failure.is_current(now))
    }

    /// The collections whose watches have failed for so long that it is reported.
    pub(crate) fn stale_collections(&self, now: Instant) -> Vec<StaleCollection> {
        let current = self.0.iter().filter(|(_, failure)| failure.is_current(now));
        current
            .map(|(collection, failure)| StaleCollection {
                collection: *collection,
                age: now.saturating_duration_since(failure.first),
                error: failure.error.clone(),
            })
            .filter(|stale| stale.age >= GRACE)
            .collect()
    }
}

impl WatchFailure {
    fn is_current(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) < SILENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use WatchedCollection::{Namespaces, Pods};

    #[test]
    fn a_watch_that_fails_is_stale_until_it_shows_something_or_no_longer_fails() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut health = WatchHealth::default();
        health.record_watch(Namespaces, Err("refused".into()), at(0));
        assert!(health.is_failing(Namespaces, at(0)) && !health.is_failing(Pods, at(0)));
        assert_eq!(health.stale_collections(at(9)), []);
        health.record_watch(Namespaces, Err("reset".into()), at(40));
        let stale =
            StaleCollection { collection: Namespaces, age: Duration::from_secs(60), error: "reset".into() };
        assert_eq!(health.stale_collections(at(60)), [stale]);
        assert_eq!(health.stale_collections(at(135)), [], "it has been silent");
        health.record_watch(Namespaces, Err("refused".into()), at(140));
        assert_eq!(health.stale_collections(at(145)), [], "that is another failure");
        health.record_watch(Namespaces, Ok(()), at(151));
        assert!(!health.is_failing(Namespaces, at(151)));
    }
}
