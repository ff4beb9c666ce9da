//! Log messages about connections, rate-limited, because peers determine the number of connections.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Period of the limits.
pub(crate) const PERIOD: Duration = Duration::from_secs(60);
/// Maximum number of messages of one kind about ztunnels of the node, in each period.
const ZTUNNELS: u64 = 10;
/// Maximum number of messages of one kind about other peers, in each period.
const UNKNOWN_PEERS: u64 = 1;

model::word_enum! {
    /// Subject of a log message.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum Notice {
        /// No place was available for a connection.
        NoPlace = "connection refused: limit reached",
        /// A peer's network namespace could not be examined.
        Unlocated = "network namespace not determined",
        /// A ztunnel has sent its hello.
        Connected = "connected",
        /// A peer runs in no ztunnel pod.
        UnknownPeer = "runs in no ztunnel pod",
        /// A ztunnel refused a request.
        Refusal = "refused a request",
        /// A connection has ended.
        Ended = "connection ended",
    }
}

/// Messages of each subject, and of each kind of peer, in the current period.
#[derive(Debug, Default)]
pub(crate) struct NoticeBudget(BTreeMap<(Notice, bool), NoticeCount>);

#[derive(Debug)]
struct NoticeCount {
    since: Instant,
    logged: u64,
    suppressed: u64,
}

impl NoticeBudget {
    /// Returns whether a message may be logged; otherwise it is counted.
    pub(crate) fn may_log(&mut self, notice: Notice, of_unknown_peer: bool, now: Instant) -> bool {
        let fresh = NoticeCount { since: now, logged: 0, suppressed: 0 };
        let count = self.0.entry((notice, of_unknown_peer)).or_insert(fresh);
        if count.suppressed == 0 && now.saturating_duration_since(count.since) >= PERIOD {
            *count = NoticeCount { since: now, logged: 0, suppressed: 0 };
        }
        let may = count.logged < if of_unknown_peer { UNKNOWN_PEERS } else { ZTUNNELS };
        *(if may { &mut count.logged } else { &mut count.suppressed }) += 1;
        may
    }

    /// Returns the numbers of messages that were suppressed in ended periods, each once, with their subject and whether
    /// they were about unknown peers.
    pub(crate) fn drain_summaries(&mut self, now: Instant) -> Vec<(Notice, bool, u64)> {
        let mut over = Vec::new();
        self.0.retain(|&(notice, of_unknown_peer), count| {
            let is_over = now.saturating_duration_since(count.since) >= PERIOD;
            if is_over && count.suppressed > 0 {
                over.push((notice, of_unknown_peer, count.suppressed));
            }
            !is_over
        });
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_in_each_minute_and_the_rest_is_counted() {
        let (mut budget, start) = (NoticeBudget::default(), Instant::now());
        let lines = |budget: &mut NoticeBudget, stranger, at: Duration| {
            (0..1000).filter(|_| budget.may_log(Notice::Ended, stranger, start + at)).count()
        };
        assert_eq!(lines(&mut budget, true, Duration::ZERO), 1);
        assert_eq!(lines(&mut budget, false, Duration::ZERO), 10, "strangers silence no ztunnel");
        assert_eq!(lines(&mut budget, true, PERIOD / 2), 0);
        assert!(budget.drain_summaries(start + PERIOD / 2).is_empty());
        let ended = [(Notice::Ended, false, 990), (Notice::Ended, true, 1999)];
        assert_eq!(budget.drain_summaries(start + PERIOD), ended);
        assert!(budget.drain_summaries(start + PERIOD * 2).is_empty());
        assert_eq!(lines(&mut budget, true, PERIOD), 1);
    }
}
