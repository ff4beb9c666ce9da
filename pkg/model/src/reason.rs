//! Reasons for people.

use std::{error, fmt};

/// Reason of a fault: a sentence for people, which is shown and never parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason(String);

impl Reason {
    /// Returns the sentence.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl error::Error for Reason {}

impl From<String> for Reason {
    fn from(sentence: String) -> Reason {
        Reason(sentence)
    }
}

impl From<&str> for Reason {
    fn from(sentence: &str) -> Reason {
        Reason(sentence.to_owned())
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> String {
        reason.0
    }
}
