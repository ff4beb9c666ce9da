//! Retries.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use retry::Backoff;

use crate::FailureReason;

/// Duration and frequency of the attempts of one `get`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Time limit of all attempts, from the call on. Default 30 s.
    pub deadline: Duration,
    /// Time limit of one attempt; at most the rest of the deadline. Default 5 s.
    pub per_try: Duration,
    /// Maximum delay after the first attempt; doubled after each. The delay is random between 0 and this. Default 50 ms.
    pub backoff: Duration,
    /// Upper bound of the doubling. Default 2 s.
    pub backoff_max: Duration,
    /// Time for which a 404 is retried, from the first one on: this server's cache may not have the pod yet. Default 2 s.
    pub not_found_grace: Duration,
    /// Time for which a 401, 403 or an untrusted certificate is retried, from the first one on: tokens and authorities rotate.
    /// Default 5 s.
    pub unauthorized_grace: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            deadline: Duration::from_secs(30),
            per_try: Duration::from_secs(5),
            backoff: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            not_found_grace: Duration::from_secs(2),
            unauthorized_grace: Duration::from_secs(5),
        }
    }
}

/// State of one series of attempts.
#[derive(Debug, Default)]
pub(crate) struct RetrySeries {
    pub(crate) tries: u32,
    first_not_found: Option<Duration>,
    first_refused: Option<Duration>,
}

impl RetrySeries {
    /// Returns the delay after an attempt that failed at `elapsed` since the call; `None`: give up. `random` is between 0 and 1.
    pub(crate) fn next_delay(
        &mut self,
        policy: &RetryPolicy,
        reason: &FailureReason,
        elapsed: Duration,
        random: f64,
    ) -> Option<Duration> {
        let end = match reason {
            FailureReason::Config(_)
            | FailureReason::Provider(_)
            | FailureReason::Redirected { .. }
            | FailureReason::Malformed(_) => {
                return None;
            }
            FailureReason::Server { status, .. } if *status != 429 && *status < 500 => return None,
            FailureReason::Server { .. } | FailureReason::Unreachable(_) | FailureReason::TimedOut(_) => {
                policy.deadline
            }
            FailureReason::NotFound(_) => {
                self.first_not_found.get_or_insert(elapsed).saturating_add(policy.not_found_grace)
            }
            FailureReason::Unauthorized(_) | FailureReason::Forbidden(_) | FailureReason::Untrusted(_) => {
                self.first_refused.get_or_insert(elapsed).saturating_add(policy.unauthorized_grace)
            }
        };
        let doubled = Backoff::new(policy.backoff, policy.backoff_max).delay_after(self.tries);
        let jittered = doubled.min(Duration::from_secs(3600)).mul_f64(random.clamp(0.0, 1.0));
        let asked = match reason {
            FailureReason::Server { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let delay = jittered.max(asked);
        (elapsed.saturating_add(delay) < end.min(policy.deadline)).then_some(delay)
    }
}

/// Returns a number from 0 to 1, random enough to spread retries, derived from the keys of the standard library's hash maps.
pub(crate) fn random_fraction() -> f64 {
    random_bits() as f64 / u64::MAX as f64
}

pub(crate) fn random_bits() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(status: u16, retry_after: Option<u64>) -> FailureReason {
        FailureReason::Server {
            status,
            message: String::new(),
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    #[test]
    fn each_class_has_its_end() {
        let policy = RetryPolicy::default();
        let text = String::new;
        for (reason, last) in [
            (FailureReason::Config(text()), None),
            (FailureReason::Provider(text()), None),
            (FailureReason::Malformed(text()), None),
            (FailureReason::Redirected { status: 302, location: text() }, None),
            (server(400, None), None),
            (server(429, None), Some(29)),
            (server(503, None), Some(29)),
            (FailureReason::Unreachable(text()), Some(29)),
            (FailureReason::TimedOut(text()), Some(29)),
            (FailureReason::NotFound(text()), Some(1)),
            (FailureReason::Unauthorized(text()), Some(4)),
            (FailureReason::Forbidden(text()), Some(4)),
            (FailureReason::Untrusted(text()), Some(4)),
        ] {
            let mut series = RetrySeries::default();
            let retried: Vec<u64> = (0..40)
                .filter(|second| {
                    series.next_delay(&policy, &reason, Duration::from_secs(*second), 0.0).is_some()
                })
                .collect();
            assert_eq!(retried.last().copied(), last, "{reason:?}");
        }
    }

    #[test]
    fn a_grace_begins_at_the_first_such_answer() {
        let mut series = RetrySeries::default();
        let policy = RetryPolicy::default();
        let mut at = |second| {
            series.next_delay(
                &policy,
                &FailureReason::NotFound(String::new()),
                Duration::from_secs(second),
                0.0,
            )
        };
        assert!(at(10).is_some() && at(11).is_some() && at(12).is_none());
    }

    #[test]
    fn pauses_double_up_to_the_greatest_and_retry_after_is_heeded() {
        let policy = RetryPolicy::default();
        let millis: Vec<u128> = (1..9)
            .map(|tries| {
                let mut series = RetrySeries { tries, ..RetrySeries::default() };
                series.next_delay(&policy, &server(500, None), Duration::ZERO, 1.0).unwrap().as_millis()
            })
            .collect();
        assert_eq!(millis, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        let mut series = RetrySeries { tries: 1, ..RetrySeries::default() };
        let pause = series.next_delay(&policy, &server(429, Some(3)), Duration::ZERO, 0.5);
        assert_eq!(pause, Some(Duration::from_secs(3)));
        assert_eq!(series.next_delay(&policy, &server(429, Some(31)), Duration::ZERO, 0.5), None);
        assert_eq!(series.next_delay(&policy, &server(429, Some(u64::MAX)), Duration::ZERO, 0.5), None);
    }

    #[test]
    fn no_policy_overflows() {
        let max = Duration::MAX;
        let policy = RetryPolicy {
            deadline: max,
            per_try: max,
            backoff: max,
            backoff_max: max,
            not_found_grace: max,
            unauthorized_grace: max,
        };
        for reason in [
            FailureReason::NotFound(String::new()),
            FailureReason::Forbidden(String::new()),
            server(500, None),
        ] {
            let mut series = RetrySeries { tries: u32::MAX, ..RetrySeries::default() };
            assert!(series.next_delay(&policy, &reason, Duration::from_secs(1), 1.0).is_some());
        }
    }

    #[test]
    fn random_numbers_differ() {
        assert!((0..20).any(|_| random_fraction() != random_fraction()));
        assert!((0..1000).all(|_| (0.0..=1.0).contains(&random_fraction())));
    }
}
