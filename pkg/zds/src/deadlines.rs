//! Deadlines of connections and requests.

use std::time::Duration;

use retry::Backoff;

/// Deadlines for ztunnel's answers, and intervals between retries of refused workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZdsDeadlines {
    /// For the hello, from the connection on.
    pub hello: Duration,
    /// Like `hello`, but for a peer that is not known to run in a ztunnel pod.
    pub unknown_peer_hello: Duration,
    /// From the end of such a peer's connection until its place is available again.
    pub unknown_peer_delay: Duration,
    /// For sending a request, and then for its answer.
    pub answer: Duration,
    /// From a refusal to the first retry; doubled for each further one.
    pub first_retry: Duration,
    /// Maximum delay of a retry.
    pub last_retry: Duration,
}

impl Default for ZdsDeadlines {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(5),
            unknown_peer_hello: Duration::from_secs(1),
            unknown_peer_delay: Duration::from_secs(1),
            answer: Duration::from_secs(5),
            first_retry: Duration::from_secs(5),
            last_retry: Duration::from_secs(60),
        }
    }
}

impl ZdsDeadlines {
    /// Returns the delay from the refusal of this attempt (the first is 1) to the next one.
    pub(crate) fn retry_delay(&self, attempts: u32) -> Duration {
        Backoff::new(self.first_retry, self.last_retry).delay_after(attempts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_double_up_to_a_minute() {
        let seconds = |attempts| ZdsDeadlines::default().retry_delay(attempts).as_secs();
        assert_eq!([1, 2, 3, 4, 5, 6, 40, u32::MAX].map(seconds), [5, 10, 20, 40, 60, 60, 60, 60]);
    }
}
