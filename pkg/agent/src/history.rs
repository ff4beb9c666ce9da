//! The last changes, and the cause of each.

use std::{
    collections::VecDeque,
    path::Path,
    time::{Duration, SystemTime},
};

use report::{ChangeRecord, ChangeStatus};

use crate::history_file::HistoryFile;

/// How many changes are remembered.
const MOST: usize = 400;
/// How many causes of one pass are named.
const MOST_CAUSES: usize = 3;
/// Longer lists are cut in an entry.
const MOST_STEPS: usize = 6;

/// The last changes, oldest first, and the causes of the next pass.
#[derive(Debug)]
pub struct ChangeHistory {
    changes: VecDeque<ChangeRecord>,
    causes: Vec<String>,
    more: usize,
    /// `None`: they end with the process.
    file: Option<HistoryFile>,
}

impl Default for ChangeHistory {
    fn default() -> ChangeHistory {
        ChangeHistory { changes: VecDeque::new(), causes: vec!["start".to_owned()], more: 0, file: None }
    }
}

/// A change that ends now.
#[derive(Debug)]
pub struct HistoryEntry {
    /// Cause of the change, such as an ADD, a fact or drift.
    pub cause: String,
    /// Description of the change.
    pub what: String,
    /// The pod concerned, as `namespace/name`; `None`: the node.
    pub pod: Option<String>,
    /// How long it took.
    pub took: Duration,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

impl ChangeHistory {
    /// Keeps the changes in a file from now on, and begins with those that an earlier agent left there.
    pub(crate) fn keep_in(&mut self, path: &Path) {
        let (file, mut earlier) = HistoryFile::open(path);
        drop(earlier.drain(..earlier.len().saturating_sub(MOST)));
        (self.changes, self.file) = (earlier, Some(file));
    }

    /// An event that the next pass handles.
    pub fn add_cause(&mut self, cause: impl FnOnce() -> String) {
        if self.causes.len() >= MOST_CAUSES {
            self.more = self.more.saturating_add(1);
            return;
        }
        let cause = cause();
        if !self.causes.contains(&cause) {
            self.causes.push(cause);
        }
    }

    /// The causes of this pass. Without any, another component must have changed what the pass finds changed: drift.
    #[must_use]
    pub fn pass_cause(&self) -> String {
        match (self.causes.as_slice(), self.more) {
            ([], _) => "drift".to_owned(),
            (causes, 0) => causes.join(", "),
            (causes, more) => format!("{} and {more} more", causes.join(", ")),
        }
    }

    /// The pass has ended.
    pub(crate) fn clear_causes(&mut self) {
        self.causes.clear();
        self.more = 0;
    }

    /// Records a change. One that fails again as the last one did replaces it.
    pub fn record_change(&mut self, entry: HistoryEntry) {
        let change = ChangeRecord {
            started_at: wire::rfc3339(
                SystemTime::now().checked_sub(entry.took).unwrap_or(SystemTime::UNIX_EPOCH),
            ),
            cause: entry.cause,
            action: entry.what,
            pod: entry.pod,
            duration_ms: to_milliseconds(entry.took),
            outcome: if entry.error.is_some() { ChangeStatus::Failed } else { ChangeStatus::Succeeded },
            error: entry.error,
        };
        // Repeated failures are one entry, with the time of the last attempt.
        if let Some(last) = self.changes.back_mut()
            && last.error.is_some()
            && (&last.error, &last.action, &last.pod) == (&change.error, &change.action, &change.pod)
        {
            *last = change;
            return;
        }
        if self.changes.len() >= MOST {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
        if let Some(file) = &mut self.file {
            file.append_newest(&self.changes);
        }
    }

    /// All, newest first.
    pub(crate) fn newest_changes(&self) -> Vec<ChangeRecord> {
        self.changes.iter().rev().cloned().collect()
    }
}

/// The steps of a plan in one line: the first six, and the number of the others.
#[must_use]
pub fn summarize_steps(steps: &[impl ToString]) -> String {
    let first: Vec<String> = steps.iter().take(MOST_STEPS).map(ToString::to_string).collect();
    match steps.len().saturating_sub(MOST_STEPS) {
        0 => first.join("; "),
        more => format!("{}; and {more} more", first.join("; ")),
    }
}

/// Milliseconds, to the microsecond.
#[must_use]
pub fn to_milliseconds(took: Duration) -> f64 {
    (took.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(what: &str) -> HistoryEntry {
        HistoryEntry {
            cause: "start".to_owned(),
            what: what.to_owned(),
            pod: None,
            took: Duration::ZERO,
            error: None,
        }
    }

    #[test]
    fn the_newest_comes_first_and_the_oldest_goes() {
        let mut history = ChangeHistory::default();
        (0..=MOST).for_each(|number| history.record_change(entry(&number.to_string())));
        let changes = history.newest_changes();
        assert_eq!(changes.len(), MOST);
        assert_eq!(changes[0].action, MOST.to_string());
        assert_eq!(changes[MOST - 1].action, "1");
    }

    #[test]
    fn a_turn_that_nothing_set_off_finds_drift() {
        let mut history = ChangeHistory::default();
        assert_eq!(history.pass_cause(), "start");
        history.clear_causes();
        assert_eq!(history.pass_cause(), "drift");
        (0..5).for_each(|number| history.add_cause(|| format!("pod {number}")));
        assert_eq!(history.pass_cause(), "pod 0, pod 1, pod 2 and 2 more");
        history.clear_causes();
        (0..5).for_each(|_| history.add_cause(|| "pod 0".to_owned()));
        assert_eq!(history.pass_cause(), "pod 0");
    }

    #[test]
    fn what_fails_again_is_told_once() {
        let mut history = ChangeHistory::default();
        (0..3).for_each(|_| {
            history.record_change(HistoryEntry { error: Some("no".to_owned()), ..entry("try") });
        });
        history.record_change(entry("try"));
        history.record_change(entry("try"));
        assert_eq!(history.newest_changes().len(), 3);
    }

    #[test]
    fn a_long_plan_is_cut() {
        let steps: Vec<String> = (0..8).map(|number| number.to_string()).collect();
        assert_eq!(summarize_steps(&steps), "0; 1; 2; 3; 4; 5; and 2 more");
        assert_eq!(summarize_steps(&steps[..2]), "0; 1");
    }
}
