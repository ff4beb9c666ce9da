//! Results of checks, for the person at the terminal.

use std::fmt::Display;
use std::time::Instant;

use crate::verdict::Outcome;

/// Counts checks that held and those that did not.
pub(crate) struct Checks {
    start: Instant,
    outcome: Outcome,
}

impl Checks {
    /// Without results; headlines have the time since `start`.
    pub(crate) fn new(start: Instant) -> Self {
        Self { start, outcome: Outcome::default() }
    }

    /// A headline.
    pub(crate) fn chapter(&self, title: impl Display) {
        println!("\n── {title} ({} s)", self.start.elapsed().as_secs());
    }

    /// A line without a claim.
    pub(crate) fn note(&self, text: impl Display) {
        println!("   {text}");
    }

    /// Checks a claim. True if it holds.
    pub(crate) fn check(&mut self, holds: bool, claim: impl Display) -> bool {
        if holds {
            self.outcome.passed += 1;
            println!(" ✓ {claim}");
        } else {
            println!(" ✗ NOT SO: {claim}");
            self.outcome.failed.push(claim.to_string());
        }
        holds
    }

    /// Returns the counts, and resets them.
    pub(crate) fn take(&mut self) -> Outcome {
        std::mem::take(&mut self.outcome)
    }
}
