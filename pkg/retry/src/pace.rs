//! Rate of observations after reported changes.

use std::time::Duration;

use crate::Backoff;

/// Delay before the second observation of a series of changes; doubled for each further one, up to the last.
pub const FIRST_DELAY: Duration = Duration::from_millis(50);
/// Maximum delay.
pub const LAST_DELAY: Duration = Duration::from_secs(5);
const DELAY: Backoff = Backoff::new(FIRST_DELAY, LAST_DELAY);
/// A delay is halved after a time without changes that is this many times as long.
const CALM: u32 = 8;
/// Number of steps after which the maximum delay is reached.
const LAST_STEP: u32 = 8;
/// Number of observations that may follow one another faster than one in [`LAST_DELAY`]; each such time permits one more.
const BURST: u32 = 60;

/// Rate of observations: immediate after a single change, and ever slower while changes continue. Times are relative to any moment
/// before the first change, by the caller's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangePace {
    /// Number of doublings of the delay, plus one; 0: no delay.
    step: u32,
    /// Scheduled time of the last observation.
    last: Duration,
    /// Used part of [`BURST`], and since when.
    used: u32,
    since: Duration,
}

impl ChangePace {
    /// Returns when to begin the observation that follows a change.
    pub fn next_observation(&mut self, now: Duration) -> Duration {
        let mut calm = now.saturating_sub(self.last);
        while self.step > 0 {
            let needed = DELAY.delay_after(self.step) * CALM;
            let Some(remaining) = calm.checked_sub(needed) else { break };
            (calm, self.step) = (remaining, self.step - 1);
        }
        self.recover_burst(now);
        let delay = match self.step {
            _ if self.used >= BURST => LAST_DELAY,
            0 => Duration::ZERO,
            step => DELAY.delay_after(step),
        };
        self.used = (self.used + 1).min(BURST);
        self.last = now.max(self.last + delay);
        self.step = (self.step + 1).min(LAST_STEP);
        self.last
    }

    fn recover_burst(&mut self, now: Duration) {
        while self.used > 0 && now.saturating_sub(self.since) >= LAST_DELAY {
            (self.used, self.since) = (self.used - 1, self.since + LAST_DELAY);
        }
        if self.used == 0 {
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delays until each observation, for a change each `period` for `duration`.
    fn delays(period: Duration, duration: Duration) -> Vec<Duration> {
        let (mut pace, mut now, mut begins) =
            (ChangePace::default(), Duration::from_secs(100), Duration::ZERO);
        let (end, mut delays) = (now + duration, Vec::new());
        while now < end {
            now += period;
            if now >= begins {
                begins = pace.next_observation(now); // until then further changes result in the same observation
                delays.push(begins - now);
            }
        }
        delays
    }

    #[test]
    fn a_change_that_comes_alone_is_observed_at_once() {
        for (period, number) in [(500, 60), (1000, 60), (2000, 90), (5000, 500), (60_000, 500)] {
            let period = Duration::from_millis(period);
            let delays = delays(period, period * number);
            assert!(delays.iter().all(|delay| delay.is_zero()), "every {period:?}: {delays:?}");
        }
    }

    #[test]
    fn changes_that_do_not_end_are_observed_at_a_bounded_rate() {
        for period in [1, 10, 50, 100, 200].map(Duration::from_millis) {
            let delays = delays(period, Duration::from_secs(600));
            assert!(delays.len() < 140, "every {period:?}: {}", delays.len());
            assert!(delays.iter().all(|delay| *delay <= LAST_DELAY), "every {period:?}: {delays:?}");
        }
    }

    #[test]
    fn changes_that_come_one_by_one_without_an_end_are_observed_at_a_bounded_rate() {
        let number = delays(Duration::from_secs(1), Duration::from_secs(3600)).len();
        assert!((600..800).contains(&number), "{number}");
    }

    #[test]
    fn the_pause_doubles_up_to_the_last_and_is_forgotten() {
        let mut pace = ChangePace::default();
        let (mut now, mut pauses) = (Duration::from_secs(10), Vec::new());
        for _ in 0..10 {
            let next = pace.next_observation(now);
            pauses.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(pauses, [0, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        let later = now + Duration::from_secs(300);
        assert_eq!(pace.next_observation(later), later);
    }
}
