//! Schedule of searches for network namespaces.

use std::time::{Duration, Instant};

use retry::{Attempts, Backoff};

/// Interval between searches: at first while a pod has no namespace, and while all have one.
pub(super) const SOON: Duration = Duration::from_secs(1);
const REGULAR: Duration = Duration::from_secs(30);
const BACKOFF: Backoff = Backoff::new(SOON, REGULAR);

/// Time of the next search.
#[derive(Debug)]
pub(super) struct SearchSchedule {
    pub(super) next: Instant,
    /// Consecutive searches that did not find all namespaces.
    attempts: Attempts,
}

impl Default for SearchSchedule {
    /// Returns a schedule whose first search is due immediately.
    fn default() -> SearchSchedule {
        SearchSchedule { next: Instant::now(), attempts: BACKOFF.start_attempts() }
    }
}

impl SearchSchedule {
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Schedules the next search no later than after `time`; `is_new`: and no earlier.
    pub(super) fn schedule_within(&mut self, time: Duration, is_new: bool) {
        let next = Instant::now() + time;
        self.next = if is_new { next } else { self.next.min(next) };
        self.attempts.record_success();
    }

    /// Schedules a retry: the interval doubles after each search that did not find all namespaces.
    pub(super) fn schedule_retry(&mut self) {
        self.next = Instant::now() + self.attempts.record_failure();
    }

    /// Schedules the regular search, because all namespaces were found.
    pub(super) fn schedule_regular(&mut self) {
        self.next = Instant::now() + REGULAR;
    }
}
