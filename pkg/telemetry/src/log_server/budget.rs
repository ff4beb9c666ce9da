//! Rate limit of the plugins' lines. Senders are root, but a misbehaving plugin must neither fill the node's disk nor suppress the
//! lines of other pods.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use tokio::time::Instant;

/// Token bucket parameters for lines and bytes: burst, and refill per second.
#[derive(Clone, Copy, Debug)]
struct LogRate {
    lines: u32,
    bytes: u32,
    lines_per_second: u32,
    bytes_per_second: u32,
}

/// Limit of one pod. An ADD has a dozen lines of 300 bytes.
const ONE: LogRate =
    LogRate { lines: 1000, bytes: 256 * 1024, lines_per_second: 50, bytes_per_second: 16 * 1024 };
/// Limit of all pods. A node that boots starts some hundred pods within a minute.
const ALL: LogRate =
    LogRate { lines: 10_000, bytes: 4 * 1024 * 1024, lines_per_second: 500, bytes_per_second: 128 * 1024 };
/// Maximum number of pods with a bucket of their own. Further ones share one.
const MAX_PODS: usize = 1024;

/// Remaining budget of lines and bytes.
#[derive(Debug)]
pub(super) struct LogBudget {
    all: TokenBucket,
    pods: HashMap<u64, TokenBucket>,
    others: TokenBucket,
    hasher: RandomState,
}

#[derive(Debug)]
struct TokenBucket {
    rate: LogRate,
    lines: f64,
    bytes: f64,
    refilled: Instant,
}

impl TokenBucket {
    fn full(rate: LogRate, now: Instant) -> TokenBucket {
        TokenBucket { rate, lines: f64::from(rate.lines), bytes: f64::from(rate.bytes), refilled: now }
    }

    fn refill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.refilled).as_secs_f64();
        let LogRate { lines, bytes, lines_per_second, bytes_per_second } = self.rate;
        self.lines = (self.lines + seconds * f64::from(lines_per_second)).min(f64::from(lines));
        self.bytes = (self.bytes + seconds * f64::from(bytes_per_second)).min(f64::from(bytes));
        self.refilled = now;
    }

    fn has_tokens(&self, bytes: f64) -> bool {
        self.lines >= 1.0 && self.bytes >= bytes
    }

    fn take_tokens(&mut self, bytes: f64) {
        self.lines -= 1.0;
        self.bytes -= bytes;
    }

    fn is_full(&self) -> bool {
        self.lines >= f64::from(self.rate.lines) && self.bytes >= f64::from(self.rate.bytes)
    }
}

impl LogBudget {
    pub(super) fn new(now: Instant) -> LogBudget {
        LogBudget {
            all: TokenBucket::full(ALL, now),
            pods: HashMap::new(),
            others: TokenBucket::full(ONE, now),
            hasher: RandomState::new(),
        }
    }

    /// Whether a line of this size about this pod may be printed; if so, it is counted.
    pub(super) fn try_admit(&mut self, pod: &str, bytes: usize, now: Instant) -> bool {
        let bytes = f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
        self.all.refill(now);
        let key = self.hasher.hash_one(pod);
        if self.pods.len() >= MAX_PODS && !self.pods.contains_key(&key) {
            // Full buckets need not be kept.
            self.pods.values_mut().for_each(|bucket| bucket.refill(now));
            self.pods.retain(|_, bucket| !bucket.is_full());
        }
        let own = if self.pods.len() < MAX_PODS || self.pods.contains_key(&key) {
            self.pods.entry(key).or_insert_with(|| TokenBucket::full(ONE, now))
        } else {
            &mut self.others
        };
        own.refill(now);
        let admitted = own.has_tokens(bytes) && self.all.has_tokens(bytes);
        if admitted {
            own.take_tokens(bytes);
            self.all.take_tokens(bytes);
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Number of lines of 100 bytes that pass.
    fn passed(budget: &mut LogBudget, pod: impl Fn(usize) -> String, lines: usize, now: Instant) -> usize {
        (0..lines).filter(|number| budget.try_admit(&pod(*number), 100, now)).count()
    }

    #[test]
    fn a_pod_that_floods_takes_no_others_share() {
        let now = Instant::now();
        let mut budget = LogBudget::new(now);
        assert_eq!(passed(&mut budget, |_| "mad".to_owned(), 100_000, now), 1000);
        assert!(budget.try_admit("other", 100, now));
        let later = now + Duration::from_secs(10);
        assert_eq!(passed(&mut budget, |_| "mad".to_owned(), 100_000, later), 500);
        assert!(!budget.try_admit("other", 1024 * 1024, later), "a line of a mebibyte");
    }

    #[test]
    fn whoever_invents_pods_is_bounded_in_lines_and_memory() {
        let now = Instant::now();
        let mut budget = LogBudget::new(now);
        assert_eq!(passed(&mut budget, |number| number.to_string(), 100_000, now), 1024 + 1000);
        assert_eq!(budget.pods.len(), MAX_PODS);
        let later = now + Duration::from_secs(3600);
        assert!(budget.try_admit("new", 100, later));
        assert_eq!(budget.pods.len(), 1, "those who are silent are forgotten");
        let all = passed(&mut budget, |number| (number % 100).to_string(), 1_000_000, later);
        assert_eq!(all, 10_000 - 1, "the share of all");
    }
}
