//! Retries: delays between attempts, and selection of errors to log.

mod pace;

use std::{fmt, time::Duration};

pub use pace::{ChangePace, FIRST_DELAY, LAST_DELAY};

/// Delays between attempts: the first, doubled after each further consecutive failure, up to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    last: Duration,
}

impl Backoff {
    /// Returns a back-off. `first`: delay after the first failure; `last`: maximum delay.
    pub const fn new(first: Duration, last: Duration) -> Backoff {
        Backoff { first, last }
    }

    /// Returns the delay after this number of consecutive failures; 0 counts as 1.
    pub fn delay_after(&self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.last)
    }

    /// Returns a series without failures.
    pub const fn start_attempts(self) -> Attempts {
        Attempts { backoff: self, failures: 0 }
    }
}

/// Consecutive failures, and the delays after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    backoff: Backoff,
    failures: u32,
}

impl Attempts {
    /// Records a failure; returns the delay until the next attempt.
    pub fn record_failure(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.backoff.delay_after(self.failures)
    }

    /// Records a success.
    pub fn record_success(&mut self) {
        self.failures = 0;
    }

    /// Returns the number of consecutive failures.
    pub const fn failure_count(&self) -> u32 {
        self.failures
    }
}

/// Error of the last attempt, so that a persistent one is logged once, and its end too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastError(Option<String>);

impl LastError {
    /// Stores an error. Returns whether it differs from the last one.
    pub fn replace(&mut self, error: &dyn fmt::Display) -> bool {
        let error = error.to_string();
        let is_other = self.0.as_ref() != Some(&error);
        self.0 = Some(error);
        is_other
    }

    /// Clears the error. Returns whether there was one.
    pub fn clear(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_last() {
        let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        let delays =
            [0, 1, 2, 3, 7, 8, 9, 33, u32::MAX].map(|failures| backoff.delay_after(failures).as_millis());
        assert_eq!(delays, [50, 50, 100, 200, 3200, 5000, 5000, 5000, 5000]);
    }

    #[test]
    fn no_delay_overflows() {
        let backoff = Backoff::new(Duration::MAX, Duration::MAX);
        assert_eq!(backoff.delay_after(u32::MAX), Duration::MAX);
    }

    #[test]
    fn a_success_begins_anew() {
        let mut attempts = Backoff::new(Duration::from_secs(1), Duration::from_secs(60)).start_attempts();
        let seconds: Vec<u64> = (0..8).map(|_| attempts.record_failure().as_secs()).collect();
        assert_eq!(
            (seconds.as_slice(), attempts.failure_count()),
            ([1, 2, 4, 8, 16, 32, 60, 60].as_slice(), 8)
        );
        attempts.record_success();
        assert_eq!((attempts.record_failure().as_secs(), attempts.failure_count()), (1, 1));
    }

    #[test]
    fn an_error_is_new_until_it_repeats() {
        let mut last = LastError::default();
        assert!(!last.clear());
        assert_eq!(["a", "a", "b", "a"].map(|error| last.replace(&error)), [true, false, true, true]);
        assert!(last.clear() && !last.clear() && last.replace(&"a"));
    }
}
