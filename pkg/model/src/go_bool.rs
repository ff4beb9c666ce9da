/// Parses a boolean as Istio does (Go's `strconv.ParseBool`): `1 t T true TRUE True` and `0 f F false FALSE False`; any other text
/// yields `None`.
pub fn parse_go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a switch; empty counts as false, as in Istio.
///
/// # Errors
/// The text is neither true nor false.
pub fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "" => Ok(false),
        _ => parse_go_bool(text).ok_or_else(|| format!("{text:?} is neither true nor false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_twelve_spellings_count() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(parse_go_bool(text), Some(true), "{text}");
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(parse_go_bool(text), Some(false), "{text}");
        }
        for text in ["", "yes", "tRUE", " true", "2"] {
            assert_eq!(parse_go_bool(text), None, "{text:?}");
        }
    }
}
