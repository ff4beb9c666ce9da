//! Decides which entries have passed, failed, or are flaky.

use std::fmt::{self, Display, Formatter};

/// Maximum number of entries that may fail once and pass when repeated; one more is no coincidence.
pub(crate) const MOST_FLAKY: usize = 3;

/// Number of checks of an entry that held, and the claims of those that did not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) passed: usize,
    pub(crate) failed: Vec<String>,
}

impl Outcome {
    /// Whether all checks held.
    pub(crate) fn is_good(&self) -> bool {
        self.failed.is_empty()
    }
}

/// An entry and its results: of the first run, and of the repetition alone on a new cluster, if any.
#[derive(Debug, Clone)]
pub(crate) struct Played {
    pub(crate) name: String,
    pub(crate) first: Outcome,
    pub(crate) again: Option<Outcome>,
}

impl Played {
    fn is_flaky(&self) -> bool {
        !self.first.is_good() && self.again.as_ref().is_some_and(Outcome::is_good)
    }
}

/// Indices of entries to repeat: all that failed, unless there are too many for the run to pass.
pub(crate) fn to_play_again(played: &[Played]) -> Vec<usize> {
    let failed = played.iter().enumerate().filter(|(_, one)| !one.first.is_good());
    let failed: Vec<_> = failed.map(|(index, _)| index).collect();
    if failed.len() > MOST_FLAKY { Vec::new() } else { failed }
}

/// Result of a run; its last line is the summary.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    passed: usize,
    failed: Vec<String>,
    flaky: Vec<String>,
}

impl Verdict {
    /// Counts the last result of each entry.
    pub(crate) fn new(played: &[Played]) -> Self {
        let (mut passed, mut failed, mut flaky) = (0, Vec::new(), Vec::new());
        for one in played {
            let last = one.again.as_ref().unwrap_or(&one.first);
            passed += last.passed;
            failed.extend(last.failed.iter().map(|claim| format!("{}: {claim}", one.name)));
            if one.is_flaky() {
                flaky.push(format!("{}: {}", one.name, one.first.failed.join("; ")));
            }
        }
        Self { passed, failed, flaky }
    }

    /// Whether anything was checked, and all checks held at the end.
    pub(crate) fn is_good(&self) -> bool {
        self.passed > 0 && self.failed.is_empty()
    }
}

impl Display for Verdict {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        self.failed.iter().try_for_each(|claim| writeln!(formatter, "failed: {claim}"))?;
        self.flaky.iter().try_for_each(|entry| writeln!(formatter, "flaky: {}", entry.replace('\n', " ")))?;
        write!(formatter, "e2e: {} passed, {} failed", self.passed, self.failed.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(passed: usize, failed: &[&str]) -> Outcome {
        Outcome { passed, failed: failed.iter().map(|claim| (*claim).to_owned()).collect() }
    }

    fn played(name: &str, first: Outcome, again: Option<Outcome>) -> Played {
        Played { name: name.to_owned(), first, again }
    }

    #[test]
    fn the_last_outcome_counts_and_the_first_is_named() {
        let good = played("sidecars", outcome(5, &[]), None);
        let flaky = played("chart", outcome(2, &["it is\nready", "it goes"]), Some(outcome(9, &[])));
        let bad = played("tainted", outcome(1, &["a"]), Some(outcome(2, &["b", "c"])));
        let verdict = Verdict::new(&[good.clone(), flaky.clone()]);
        assert!(verdict.is_good());
        assert_eq!(verdict.to_string(), "flaky: chart: it is ready; it goes\ne2e: 14 passed, 0 failed");
        let verdict = Verdict::new(&[good, flaky, bad]);
        assert!(!verdict.is_good());
        assert_eq!(
            verdict.to_string(),
            "failed: tainted: b\nfailed: tainted: c\nflaky: chart: it is ready; it goes\ne2e: 16 passed, 2 failed"
        );
    }

    #[test]
    fn nothing_checked_is_a_failure() {
        assert!(!Verdict::new(&[]).is_good());
        assert!(!Verdict::new(&[played("not here", outcome(0, &[]), None)]).is_good());
    }

    #[test]
    fn more_than_three_are_not_played_again() {
        let failed = || played("chart", outcome(1, &["a"]), None);
        let good = played("sidecars", outcome(1, &[]), None);
        assert_eq!(to_play_again(&[failed(), good.clone(), failed(), failed()]), [0, 2, 3]);
        assert!(to_play_again(&[failed(), failed(), failed(), good, failed()]).is_empty());
    }
}
