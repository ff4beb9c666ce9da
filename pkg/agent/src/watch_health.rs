//! Health of the watches of API collections. A failing watch leaves the known state unchanged, which would go unnoticed.
//!
//! Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use enrolment::WatchedCollection;

/// Time before which a failure is not reported: a broken connection is re-established immediately.
const GRACE: Duration = Duration::from_secs(10);
/// Maximum time between errors of a failing watch: its back-off is at most a minute, and an attempt without a response fails after
/// half a minute. One that is silent for longer works again, and nothing has changed since.
const SILENCE: Duration = Duration::from_secs(95);

/// A collection whose changes are unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleCollection {
    /// Collection.
    pub collection: WatchedCollection,
    /// Time for which its watch has failed.
    pub age: Duration,
    /// Last error.
    pub error: String,
}

#[derive(Debug)]
struct WatchFailure {
    first: Instant,
    last: Instant,
    error: String,
}

/// Failures of watches since they last delivered an event.
#[derive(Debug, Default)]
pub(crate) struct WatchHealth(BTreeMap<WatchedCollection, WatchFailure>);

impl WatchHealth {
    /// Records an event or a failure of a watch.
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

    /// Returns the collections whose watches have failed for long enough to be reported.
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
