//! Output for the person at the terminal.

use std::{collections::HashSet, fmt::Display, process::ExitCode};

/// Counts claims that held, and those that did not.
#[derive(Default)]
pub(crate) struct Show {
    passed: u32,
    failed: u32,
}

impl Show {
    /// A headline.
    pub(crate) fn chapter(&self, title: &str) {
        println!("\n── {title}");
    }

    /// A line without a claim.
    pub(crate) fn note(&self, text: impl Display) {
        println!("   {text}");
    }

    /// A claim, checked.
    pub(crate) fn check(&mut self, holds: bool, claim: impl Display) {
        if holds {
            self.passed += 1;
            println!(" ✓ {claim}");
        } else {
            self.failed += 1;
            println!(" ✗ NOT SO: {claim}");
        }
    }

    /// A claim that two texts are identical; if it does not hold, the lines that only one of them has follow.
    pub(crate) fn check_same(&mut self, before: &str, after: &str, claim: impl Display) {
        self.check(before == after, claim);
        for (mark, ours, theirs) in [('-', before, after), ('+', after, before)] {
            let theirs: HashSet<&str> = theirs.lines().collect();
            ours.lines().filter(|line| !theirs.contains(line)).for_each(|line| println!("   {mark} {line}"));
        }
    }

    /// The last line; fails if a claim did not hold, or there was none.
    pub(crate) fn close(self) -> ExitCode {
        println!("\ndemo: {} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 && self.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
