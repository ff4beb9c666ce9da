/// Parses a boolean as Istio does (Go's `strconv.ParseBool`): `1 t T true TRUE True` and `0 f F false FALSE False`; any other text
/// yields `None`.
pub fn parse_go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
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
