//! How long anything may take.

use std::time::Duration;

use retry::Backoff;

/// How long ztunnel is waited for, and when it is asked again what it refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZdsDeadlines {
    /// For the hello, from the connection on.
    pub hello: Duration,
    /// For a request to be taken, and then for its answer.
    pub answer: Duration,
    /// From a refusal to the next try. Doubles with each that follows.
    pub first_retry: Duration,
    /// At most that long.
    pub last_retry: Duration,
}

impl Default for ZdsDeadlines {
    fn default() -> Self {
        Self {
            hello: Duration::from_secs(5),
            answer: Duration::from_secs(5),
            first_retry: Duration::from_secs(5),
            last_retry: Duration::from_secs(60),
        }
    }
}

impl ZdsDeadlines {
    /// From the refusal of this attempt (the first is 1) to the next one.
    pub(crate) fn retry(&self, attempts: u32) -> Duration {
        Backoff::new(self.first_retry, self.last_retry).after(attempts)
    }
}
