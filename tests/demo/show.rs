//! What the person in front of the screen sees.

use std::{fmt::Display, process::ExitCode};

/// Counts what was shown to be so, and what was not.
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

    /// A line that claims nothing.
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

    /// The closing line; failure when any claim did not hold, or nothing was claimed.
    pub(crate) fn close(self) -> ExitCode {
        println!("\ndemo: {} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 && self.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
