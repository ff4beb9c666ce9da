//! Reasons for people.

use std::{error, fmt, iter};

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

/// Describes an error and its causes, each once: the description of an error usually contains its cause.
pub fn describe_error(error: &(dyn error::Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in iter::successors(error.source(), |cause| cause.source()).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Failure(&'static str, Option<Box<Failure>>);

    impl fmt::Display for Failure {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl error::Error for Failure {
        fn source(&self) -> Option<&(dyn error::Error + 'static)> {
            self.1.as_deref().map(|cause| cause as &(dyn error::Error + 'static))
        }
    }

    #[test]
    fn each_cause_is_named_once() {
        let error = |text: [&'static str; 3]| {
            text.into_iter().rev().fold(None, |cause, text| Some(Box::new(Failure(text, cause)))).unwrap()
        };
        let described = |text| describe_error(&*error(text));
        assert_eq!(
            described(["cannot start", "cannot run a tool", "no such file"]),
            "cannot start: cannot run a tool: no such file"
        );
        assert_eq!(
            described(["cannot run a tool: no such file", "no such file", "no such file"]),
            "cannot run a tool: no such file"
        );
        assert_eq!(
            described(["cannot start", "cannot run a tool: no such file", "no such file"]),
            "cannot start: cannot run a tool: no such file"
        );
    }
}
