//! What was checked, for the person in front of the screen and for `.ci/run`.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Instant;

/// Counts what held and what did not.
pub(crate) struct Checks {
    start: Instant,
    passed: u32,
    failed: Vec<String>,
}

impl Checks {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), passed: 0, failed: Vec::new() }
    }

    /// A headline.
    pub(crate) fn chapter(&self, title: impl Display) {
        println!("\n── {title} ({} s)", self.start.elapsed().as_secs());
    }

    /// A line that claims nothing.
    pub(crate) fn note(&self, text: impl Display) {
        println!("   {text}");
    }

    /// A claim, checked. True if it holds.
    pub(crate) fn check(&mut self, holds: bool, claim: impl Display) -> bool {
        if holds {
            self.passed += 1;
            println!(" ✓ {claim}");
        } else {
            println!(" ✗ NOT SO: {claim}");
            self.failed.push(claim.to_string());
        }
        holds
    }

    /// The closing line.
    pub(crate) fn close(self) -> ExitCode {
        let done = self.failed.is_empty() && self.passed > 0;
        println!("\n{} s", self.start.elapsed().as_secs());
        self.failed.iter().for_each(|claim| println!("failed: {claim}"));
        println!("e2e: {} passed, {} failed", self.passed, self.failed.len());
        if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
