//! Detection of another program that keeps undoing our changes.
//!
//! Immediate repair is right for an accident and wrong for a conflict: two programs that keep reacting to each other wear out disk
//! and logs unnoticed. A file that drifts as fast as it is repaired is therefore left alone for a while, longer each time, and the
//! conflict is reported.

use std::time::{Duration, Instant};

/// Drift sooner than this after our last repair is a reaction to it.
const ANSWER: Duration = Duration::from_millis(250);
/// Consecutive reactions that make a conflict.
const ANSWERS: u32 = 6;
/// Drifts within [`LONG`] that make a conflict with a slower writer.
const MANY: u32 = 200;
const LONG: Duration = Duration::from_secs(600);
/// First and last back-off.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LAST_BACKOFF: Duration = Duration::from_secs(64);
/// Time for which a repair must last to count as permanent.
const PEACE: Duration = Duration::from_secs(60);

/// Conflict detection for one object that other components may change.
#[derive(Debug, Default)]
pub(crate) struct ConflictBackoff {
    /// Time of our last repair.
    repaired: Option<Instant>,
    answers: u32,
    /// Start of the period counted against [`LONG`], and the drifts since.
    long: Option<(Instant, u32)>,
    /// Next back-off; `None`: no conflict.
    backoff: Option<Duration>,
    /// End of the current back-off.
    until: Option<Instant>,
}

/// Decision on a drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConflictVerdict {
    /// Repair it.
    Repair,
    /// Report a conflict, which begins now, and back off until then.
    Conflict(Instant),
    /// Back off until then.
    BackOff(Instant),
}

impl ConflictBackoff {
    /// Records a drift and decides what to do about it.
    pub(crate) fn record_drift(&mut self, now: Instant) -> ConflictVerdict {
        if let Some(until) = self.until {
            if now < until {
                return ConflictVerdict::BackOff(until);
            }
            self.until = None;
            return ConflictVerdict::Repair; // the back-off is over
        }
        let Some(since) = self.repaired.map(|repaired| now.saturating_duration_since(repaired)) else {
            return ConflictVerdict::Repair;
        };
        if since > self.backoff.map_or(PEACE, |backoff| PEACE.max(backoff * 2)) {
            *self = ConflictBackoff::default();
            return ConflictVerdict::Repair;
        }
        self.answers = if since <= ANSWER { self.answers + 1 } else { 0 };
        let many = self.count_drift(now) >= MANY;
        match self.backoff {
            None if self.answers < ANSWERS && !many => ConflictVerdict::Repair,
            None => ConflictVerdict::Conflict(self.start_backoff(now, FIRST_BACKOFF)),
            Some(last) => ConflictVerdict::BackOff(self.start_backoff(now, (last * 2).min(LAST_BACKOFF))),
        }
    }

    /// Records that the drift has been repaired.
    pub(crate) fn record_repair(&mut self, now: Instant) {
        self.repaired = Some(now);
    }

    /// Returns the number of consecutive reactions so far, for messages.
    pub(crate) fn answer_count(&self) -> u32 {
        self.answers.max(self.long.map_or(0, |(_, count)| if count >= MANY { count } else { 0 }))
    }

    fn start_backoff(&mut self, now: Instant, backoff: Duration) -> Instant {
        self.backoff = Some(backoff);
        let until = now + backoff;
        self.until = Some(until);
        until
    }

    fn count_drift(&mut self, now: Instant) -> u32 {
        let long = self.long.filter(|(began, _)| now.saturating_duration_since(*began) <= LONG);
        let (began, count) = long.unwrap_or((now, 0));
        self.long = Some((began, count + 1));
        count + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A conflicting writer that answers each repair after `after`; returns the times of our repairs, in milliseconds.
    fn against(after: Duration, damages: usize) -> (Vec<u128>, usize) {
        let start = Instant::now();
        let (mut conflict, mut now) = (ConflictBackoff::default(), start);
        let (mut repaired, mut told) = (Vec::new(), 0);
        while repaired.len() < damages {
            match conflict.record_drift(now) {
                ConflictVerdict::Repair => {
                    conflict.record_repair(now);
                    repaired.push((now - start).as_millis());
                    now += after;
                }
                ConflictVerdict::Conflict(until) => {
                    told += 1;
                    now = until;
                }
                ConflictVerdict::BackOff(until) => now = until,
            }
        }
        (repaired, told)
    }

    #[test]
    fn a_rival_that_answers_at_once_is_left_alone_longer_each_time_and_told_once() {
        let (repaired, told) = against(Duration::from_millis(20), 16);
        assert_eq!(repaired[..7], [0, 20, 40, 60, 80, 100, 1120]);
        let pauses: Vec<u128> = repaired.windows(2).skip(5).map(|pair| (pair[1] - pair[0]) / 1000).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]);
        assert_eq!(told, 1);
    }

    #[test]
    fn accidents_are_repaired_at_once_however_often() {
        let (repaired, told) = against(Duration::from_millis(300), 150);
        assert_eq!((repaired[149], told), (149 * 300, 0));
        let (repaired, told) = against(Duration::from_secs(61), 1000);
        assert_eq!((repaired[999], told), (999 * 61_000, 0), "each long after the last");
    }

    #[test]
    fn a_slow_rival_that_keeps_on_is_one_too() {
        let (repaired, told) = against(Duration::from_secs(1), 300);
        assert_eq!(told, 1);
        assert!(repaired[299] > 300 * 1000 + 64_000, "{}", repaired[299]);
    }

    #[test]
    fn a_conflict_ends_when_nobody_undoes_anything() {
        let (mut conflict, mut now) = (ConflictBackoff::default(), Instant::now());
        conflict.record_repair(now);
        for _ in 0..ANSWERS - 1 {
            assert_eq!(conflict.record_drift(now), ConflictVerdict::Repair);
            conflict.record_repair(now);
        }
        let ConflictVerdict::Conflict(until) = conflict.record_drift(now) else { panic!("a conflict") };
        assert_eq!(conflict.record_drift(now), ConflictVerdict::BackOff(until));
        now = until;
        assert_eq!(conflict.record_drift(now), ConflictVerdict::Repair);
        conflict.record_repair(now);
        now += PEACE + Duration::from_secs(1);
        assert_eq!(conflict.record_drift(now), ConflictVerdict::Repair);
        conflict.record_repair(now);
        assert_eq!(conflict.record_drift(now), ConflictVerdict::Repair, "it begins anew");
    }
}
