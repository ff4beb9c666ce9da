//! When to search for network namespaces again.

use std::time::{Duration, Instant};

use retry::{Attempts, Backoff};

/// Until the next search: at first while a pod has no namespace, and while all have one.
pub(super) const SOON: Duration = Duration::from_secs(1);
const REGULAR: Duration = Duration::from_secs(30);
const BACKOFF: Backoff = Backoff::new(SOON, REGULAR);

/// When the next search is due.
#[derive(Debug)]
pub(super) struct SearchSchedule {
    pub(super) next: Instant,
    /// Searches in a row that did not find all.
    attempts: Attempts,
}

impl SearchSchedule {
    /// The first search is due at once.
    pub(super) fn new(now: Instant) -> SearchSchedule {
        SearchSchedule { next: now, attempts: BACKOFF.start_attempts() }
    }

    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// The next search begins no later than after that time; `is_new`: and no earlier.
    pub(super) fn schedule_within(&mut self, time: Duration, is_new: bool) {
        let next = Instant::now() + time;
        self.next = if is_new { next } else { self.next.min(next) };
        self.attempts.record_success();
    }

    /// The interval doubles after each search that did not find all.
    pub(super) fn schedule_retry(&mut self) {
        self.next = Instant::now() + self.attempts.record_failure();
    }

    /// All were found.
    pub(super) fn schedule_regular(&mut self) {
        self.next = Instant::now() + REGULAR;
    }
}
