//! Rests, during which a namespace is not read after its changes were. Only computes.

use std::time::{Duration, Instant};

use retry::Backoff;

/// Much shorter than the longest pause between two observations of a namespace that changes all the time
/// (`retry::ChangePace`), which it hardly prolongs.
const REST: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(640));
/// Step at which the longest rest is reached.
const LAST_STEP: u32 = 6;
/// Ratio of a time without changes to the last rest after which the next rest is the first again.
const CALM: u32 = 8;

/// Rests of one namespace, each twice as long as the previous one while changes continue.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    step: u32,
    /// When the last one ends; `None`: there was none.
    pub(crate) ends: Option<Instant>,
}

impl Rest {
    /// Begins a rest, because changes were just read.
    pub(crate) fn begin(&mut self, now: Instant) {
        let calm = self.ends.map(|ends| now.saturating_duration_since(ends));
        let follows = calm.is_some_and(|calm| calm < REST.delay_after(self.step) * CALM);
        self.step = if follows { (self.step + 1).min(LAST_STEP) } else { 1 };
        self.ends = Some(now + REST.delay_after(self.step));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rests in milliseconds, for `number` changes, one each `period`.
    fn rests(period: u64, number: u32) -> Vec<u128> {
        let period = Duration::from_millis(period);
        let (began, mut rest) = (Instant::now(), Rest::default());
        let changes = (0..number).map(|number| began + period * number);
        let mut rests = Vec::new();
        for change in changes {
            if rest.ends.is_none_or(|ends| ends <= change) {
                rest.begin(change);
                rests.push((rest.ends.unwrap() - change).as_millis());
            }
        }
        rests
    }

    #[test]
    fn changes_that_do_not_end_are_read_ever_more_rarely() {
        assert_eq!(rests(1, 3000), [20, 40, 80, 160, 320, 640, 640, 640, 640]);
        assert_eq!(rests(100, 30), [20, 40, 80, 160, 320, 640, 640, 640]);
    }

    #[test]
    fn changes_that_come_alone_are_read_at_once() {
        assert_eq!(rests(200, 100), [20; 100]);
    }
}
