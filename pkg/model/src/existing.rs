//! What becomes of connections that a pod has when it joins the mesh.

use std::str::FromStr;

/// Handling of a pod's TCP connections that exist when its traffic is redirected for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExistingConnections {
    /// They go on past the proxy until they close.
    #[default]
    Keep,
    /// They are closed, so that nothing of the pod stays outside the mesh.
    Reset,
}

/// The text is neither `keep` nor `reset`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not one of: keep, reset")]
pub struct UnknownExistingConnections(pub String);

impl FromStr for ExistingConnections {
    type Err = UnknownExistingConnections;

    fn from_str(text: &str) -> Result<ExistingConnections, UnknownExistingConnections> {
        match text {
            "keep" => Ok(ExistingConnections::Keep),
            "reset" => Ok(ExistingConnections::Reset),
            _ => Err(UnknownExistingConnections(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_words_are_read_and_nothing_else_is() {
        for (text, one) in [("keep", ExistingConnections::Keep), ("reset", ExistingConnections::Reset)] {
            assert_eq!(text.parse(), Ok(one));
        }
        for text in ["", "Keep", "close", " reset"] {
            assert_eq!(text.parse::<ExistingConnections>().unwrap_err().0, text);
        }
    }
}
