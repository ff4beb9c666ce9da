//! History of recent changes, with their causes.

use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
    time::{Duration, SystemTime},
};

use pod_status::lifecycle::writer_clause;
use report::{ChangeRecord, ChangeStatus};

use crate::history_file::HistoryFile;

/// Maximum number of changes.
const MOST: usize = 400;
/// Number of changes kept for a pod, however many others have. Of a pod with more, the oldest are dropped first.
const SHARE: usize = 20;
/// Time within which a repeated change is merged into one entry.
const SERIES: Duration = Duration::from_secs(900);
/// Maximum number of causes listed for one pass.
const MOST_CAUSES: usize = 3;
/// Maximum number of steps listed in an entry.
const MOST_STEPS: usize = 6;

/// Recent changes, oldest first, and the causes of the next pass.
#[derive(Debug)]
pub struct ChangeHistory {
    changes: VecDeque<ChangeRecord>,
    causes: Vec<String>,
    more: usize,
    /// File of the history; `None`: it is not kept across restarts.
    file: Option<HistoryFile>,
}

impl Default for ChangeHistory {
    fn default() -> ChangeHistory {
        ChangeHistory { changes: VecDeque::new(), causes: vec!["start".to_owned()], more: 0, file: None }
    }
}

/// A change that has just ended.
#[derive(Debug, Default)]
pub struct HistoryEntry {
    /// Cause of the change, such as an ADD, a fact or drift.
    pub cause: String,
    /// Description of the change.
    pub what: String,
    /// Pod concerned, as `namespace/name`; `None`: the node.
    pub pod: Option<String>,
    /// Duration of the change.
    pub took: Duration,
    /// Error, if it failed.
    pub error: Option<String>,
}

impl HistoryEntry {
    /// Returns an entry for foreign rules that precede ours, as text, or that no longer do: empty. `writer`: the last process that
    /// changed any.
    pub fn for_overruling_rules(pod: Option<String>, rules: &str, writer: Option<&str>) -> HistoryEntry {
        let rules = if rules.is_empty() { "none" } else { rules };
        let what = format!("rules of other components that precede ours: {rules}{}", writer_clause(writer));
        HistoryEntry { cause: "drift".to_owned(), what, pod, took: Duration::ZERO, error: None }
    }
}

impl ChangeHistory {
    /// Stores changes in a file from now on, and loads those of an earlier agent.
    pub(crate) fn keep_in(&mut self, path: &Path) {
        let (file, earlier) = HistoryFile::open(path);
        (self.changes, self.file) = (earlier, Some(file));
        while self.changes.len() > MOST {
            self.forget_oldest();
        }
    }

    /// Adds an event to the causes of the next pass.
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

    /// Returns the causes of this pass. Without any, a change found by the pass was made by another component: drift.
    pub fn pass_cause(&self) -> String {
        match (self.causes.as_slice(), self.more) {
            ([], _) => "drift".to_owned(),
            (causes, 0) => causes.join(", "),
            (causes, more) => format!("{} and {more} more", causes.join(", ")),
        }
    }

    /// Clears the causes after a pass.
    pub(crate) fn clear_causes(&mut self) {
        self.causes.clear();
        self.more = 0;
    }

    /// Records a change. One that repeats the last change of the same pod within 15 minutes replaces and counts it.
    pub fn record_change(&mut self, entry: HistoryEntry) {
        let ago = |time| {
            agent_protocol::rfc3339(SystemTime::now().checked_sub(time).unwrap_or(SystemTime::UNIX_EPOCH))
        };
        let mut change = ChangeRecord {
            started_at: ago(entry.took),
            cause: entry.cause,
            action: entry.what,
            pod: entry.pod,
            duration_ms: to_milliseconds(entry.took),
            outcome: if entry.error.is_some() { ChangeStatus::Failed } else { ChangeStatus::Succeeded },
            error: entry.error,
            ..ChangeRecord::default()
        };
        let recent = ago(SERIES); // these timestamps have equal lengths, and therefore compare as text
        let before = self.changes.iter().rposition(|known| known.pod == change.pod);
        let is_same = |known: &ChangeRecord| known.started_at >= recent && change.repeats_change(known);
        let before = before.filter(|at| self.changes.get(*at).is_some_and(is_same));
        if let Some(before) = before.and_then(|at| self.changes.remove(at)) {
            change.repeats = before.repeats.saturating_add(1);
            change.first_started_at = before.first_started_at.or(Some(before.started_at));
        } else if self.changes.len() >= MOST {
            self.forget_oldest();
        }
        self.changes.push_back(change);
        if let Some(file) = &mut self.file {
            file.append_newest(&self.changes);
        }
    }

    /// Drops the oldest change of the pod with the most, if it has more than its share, else the oldest of all.
    fn forget_oldest(&mut self) {
        let mut numbers: BTreeMap<Option<&str>, usize> = BTreeMap::new();
        self.changes.iter().for_each(|change| *numbers.entry(change.pod.as_deref()).or_default() += 1);
        let most =
            numbers.into_iter().max_by_key(|(_, number)| *number).filter(|(_, number)| *number > SHARE);
        let is_its = |change: &ChangeRecord| most.is_none_or(|(pod, _)| change.pod.as_deref() == pod);
        let oldest = self.changes.iter().position(is_its);
        drop(oldest.and_then(|at| self.changes.remove(at)));
    }

    /// Returns all changes, newest first.
    pub(crate) fn newest_changes(&self) -> Vec<ChangeRecord> {
        self.changes.iter().rev().cloned().collect()
    }
}

/// Joins the descriptions of preceding rules into one text; empty without any.
pub fn join_reasons(reasons: impl Iterator<Item: ToString>) -> String {
    reasons.map(|reason| reason.to_string()).collect::<Vec<_>>().join("; ")
}

/// Formats the steps of a plan in one line: the first six, and the number of the others.
pub fn summarize_steps(steps: &[impl ToString]) -> String {
    let first: Vec<String> = steps.iter().take(MOST_STEPS).map(ToString::to_string).collect();
    match steps.len().saturating_sub(MOST_STEPS) {
        0 => first.join("; "),
        more => format!("{}; and {more} more", first.join("; ")),
    }
}

/// Converts to milliseconds, with microsecond precision.
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
    fn what_is_done_again_is_one_entry_with_its_number_also_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        let mut history = ChangeHistory::default();
        history.keep_in(&path);
        let pod = |name: &str, what: &str| HistoryEntry { pod: Some(name.to_owned()), ..entry(what) };
        for process in 0..3 {
            history.record_change(HistoryEntry { error: Some("no".to_owned()), ..entry("try") });
            history
                .record_change(pod("shop/web", &format!("restored: a; changed by nft (process {process})")));
        }
        history.record_change(pod("shop/web", "restored: b"));
        history.record_change(pod("shop/api", "restored: b"));
        history.record_change(entry("try"));
        let known = history.newest_changes();
        let shown =
            known.iter().map(|change| (change.pod.as_deref(), change.action.as_str(), change.repeats));
        let expected = [
            (None, "try", 0),
            (Some("shop/api"), "restored: b", 0),
            (Some("shop/web"), "restored: b", 0),
            (Some("shop/web"), "restored: a; changed by nft (process 2)", 2),
            (None, "try", 2),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        assert!(
            known.iter().all(|change| (change.repeats > 0) == change.first_started_at.is_some()),
            "{known:?}"
        );
        // The file has each of them, for the previous version.
        let lines = std::fs::read_to_string(&path).unwrap();
        assert_eq!(lines.lines().count(), 9, "{lines}");
        let mut next = ChangeHistory::default();
        next.keep_in(&path);
        assert_eq!(next.newest_changes(), known);
        next.record_change(pod("shop/web", "restored: b"));
        let again = next.newest_changes();
        assert_eq!((again.len(), again[0].repeats), (known.len(), 1));
        assert_eq!(again[0].first_started_at.as_ref(), Some(&known[2].started_at));
    }

    #[test]
    fn a_pod_that_changes_all_the_time_erases_no_other_ones_changes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        let mut history = ChangeHistory::default();
        history.keep_in(&path);
        let change = |pod: String, what: String| HistoryEntry { pod: Some(pod), ..entry(&what) };
        for number in 0..50 {
            (0..4)
                .for_each(|at| history.record_change(change(format!("shop/calm-{number}"), at.to_string())));
        }
        (0..5000).for_each(|at| history.record_change(change("shop/busy".to_owned(), at.to_string())));
        let of = |history: &ChangeHistory, part: &str| {
            let all = history.newest_changes();
            all.iter().filter(|change| change.pod.as_ref().is_some_and(|pod| pod.contains(part))).count()
        };
        assert_eq!((of(&history, "calm"), of(&history, "busy")), (200, MOST - 200));
        let mut next = ChangeHistory::default();
        next.keep_in(&path);
        assert_eq!(of(&next, "calm"), 200, "they are in the file, too");
        // If all have few, the oldest is removed.
        (0..MOST).for_each(|at| history.record_change(change(format!("shop/new-{at}"), "x".to_owned())));
        assert_eq!((of(&history, "calm"), of(&history, "busy")), (0, 0));
    }

    #[test]
    fn a_long_plan_is_cut() {
        let steps: Vec<String> = (0..8).map(|number| number.to_string()).collect();
        assert_eq!(summarize_steps(&steps), "0; 1; 2; 3; 4; 5; and 2 more");
        assert_eq!(summarize_steps(&steps[..2]), "0; 1");
    }
}
