//! Pauses that grow.

use std::time::Duration;

/// The pause after so many failures in a row, at least one: the first one, then twice as long each time, up to the last.
pub(crate) fn after(failures: u32, first: Duration, last: Duration) -> Duration {
    first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_twice_as_long_up_to_the_last() {
        let [first, last] = [50, 5000].map(Duration::from_millis);
        let pauses = [1, 2, 3, 7, 8, 9, u32::MAX].map(|failures| after(failures, first, last).as_millis());
        assert_eq!(pauses, [50, 100, 200, 3200, 5000, 5000, 5000]);
    }
}
