//! Stability of a pod's rules. A process in the pod with NET_ADMIN, or another component, may remove them repeatedly.

use std::time::Duration;

use retry::Backoff;

use super::AgentTime;

/// Delay of the next observation after a repair, doubled after each further repair of a series up to the last, which bounds the
/// rate of repairs of one pod.
pub const FIRST_RECHECK: Duration = Duration::from_secs(1);
/// Maximum interval between observations of a pod whose rules were removed.
pub const LAST_RECHECK: Duration = Duration::from_secs(16);
const RECHECK: Backoff = Backoff::new(FIRST_RECHECK, LAST_RECHECK);
/// Time within which a further repair belongs to the same series. Longer than three regular observations.
pub const SERIES: Duration = Duration::from_secs(130);
/// Number of repairs in a series that make the pod unstable, and of consecutive observations without one that make it stable.
const ENOUGH: u32 = 2;
/// Reason of the Event about a pod whose rules are removed repeatedly.
pub const UNSTABLE: &str = "CaptureUnstable";
/// Maximum length of the rules in its message, in characters: the API server rejects messages longer than 1 KiB.
const LONGEST: usize = 500;

/// Last series of repairs of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stability {
    repairs: u32,
    repaired: AgentTime,
    /// Number of consecutive observations that found the rules in place, and the time of the last one counted.
    intact: u32,
    observed: AgentTime,
    unstable: bool,
}

impl Stability {
    /// Records an observation of the pod's rules. `repaired`: rules were missing, and were restored.
    pub fn record_observation(&mut self, repaired: bool, now: AgentTime) {
        if !repaired {
            // Observations that follow immediately, due to any change in the namespace, prove nothing.
            if now.saturating_sub(self.observed) < FIRST_RECHECK {
                return;
            }
            (self.intact, self.observed) = (self.intact.saturating_add(1), now);
            self.unstable &= self.intact < ENOUGH;
            return;
        }
        if now.saturating_sub(self.repaired) > SERIES {
            self.repairs = 0;
        }
        (self.repairs, self.repaired, self.intact) = (self.repairs.saturating_add(1), now, 0);
        self.observed = now;
        self.unstable |= self.repairs >= ENOUGH;
    }

    /// Records that restored rules were missing again immediately.
    pub fn record_conflict(&mut self, now: AgentTime) {
        self.record_observation(true, now);
        self.unstable = true;
    }

    /// Records a failure to observe or keep the pod's rules.
    pub fn record_failure(&mut self) {
        self.intact = 0;
    }

    /// Returns the delay of the next observation of its rules; `None`: the regular one.
    pub fn recheck_delay(&self) -> Option<Duration> {
        (self.repairs > 0 && self.intact < ENOUGH).then(|| RECHECK.delay_after(self.repairs))
    }

    /// Whether rules were removed repeatedly, and have not been found in place often enough since.
    pub fn is_unstable(&self) -> bool {
        self.unstable
    }

    /// Returns the number of repairs in the last series.
    pub fn repair_count(&self) -> u32 {
        self.repairs
    }
}

/// Reason why a repair did not last, for the history.
pub const UNDONE: &str = "removed again at once";

/// Returns a clause that names the process that changed rules, to follow the rules; empty if it is unknown.
pub fn writer_clause(writer: Option<&str>) -> String {
    writer.map_or_else(String::new, |writer| format!("; changed by {writer}"))
}

/// Returns the message of the Event `CaptureUnstable` about a pod whose rules redirect to this proxy, with the rules and, if known,
/// the process that removes them.
pub fn describe_conflict(proxy: &str, rules: &str, writer: Option<&str>, repairs: u32) -> String {
    let rules: String = rules.chars().take(LONGEST).collect();
    let writer = writer_clause(writer);
    let times = if repairs == 1 { "once".to_owned() } else { format!("{repairs} times") };
    format!(
        "Rules that redirect its traffic to {proxy} are removed or changed repeatedly, and have been restored {times}: \
         {rules}{writer}. Its traffic bypasses the mesh in between. The pod is pending until its rules stay in place."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observes for this duration. `period` is the interval at which another component removes the rules. Returns the number of
    /// repairs, of observations that found the pod unstable, and of all.
    fn under_attack(period: u64, duration: u64) -> (u32, u32, u32) {
        let (mut pod, mut removed, mut now) = (Stability::default(), false, 0);
        let (mut repairs, mut unstable, mut observations, mut due) = (0, 0, 0, 40);
        while now < duration {
            now += 1;
            removed |= now % period == 0;
            if now >= due {
                let repaired = std::mem::take(&mut removed);
                pod.record_observation(repaired, Duration::from_secs(now));
                due = now + pod.recheck_delay().map_or(40, |recheck| recheck.as_secs());
                observations += 1;
                repairs += u32::from(repaired);
                unstable += u32::from(pod.is_unstable());
            }
        }
        (repairs, unstable, observations)
    }

    #[test]
    fn a_pod_whose_rules_go_again_and_again_is_unstable_and_repaired_at_a_bounded_rate() {
        for period in [1, 2, 5, 10, 16] {
            let (repairs, unstable, observations) = under_attack(period, 3600);
            assert!(repairs <= 3600 / 16 + 5, "every {period} s: {repairs}");
            assert!(unstable + 8 >= observations, "every {period} s: {unstable} of {observations}");
        }
    }

    #[test]
    fn rules_that_were_removed_once_do_not_make_a_pod_unstable() {
        let (repairs, unstable, _) = under_attack(300, 3600);
        assert_eq!((repairs, unstable), (11, 0));
    }

    #[test]
    fn a_pod_is_stable_when_it_was_found_in_place_twice_in_a_row() {
        let mut pod = Stability::default();
        assert_eq!(pod.recheck_delay(), None);
        let mut now = Duration::from_secs(100);
        let mut found = |repaired| {
            now += FIRST_RECHECK;
            pod.record_observation(repaired, now);
            pod.record_observation(false, now + FIRST_RECHECK / 2); // too soon to count
            (pod.is_unstable(), pod.recheck_delay().map(|recheck| recheck.as_secs()))
        };
        let observations = [true, true, false, true, false, false, false];
        let expected = [
            (false, Some(1)),
            (true, Some(2)),
            (true, Some(2)),
            (true, Some(4)),
            (true, Some(4)),
            (false, None),
            (false, None),
        ];
        assert_eq!(observations.map(&mut found), expected);
        pod.record_failure();
        assert_eq!(pod.recheck_delay(), Some(Duration::from_secs(4)), "a failure is no such observation");
    }
}
