//! Durations on a command line.

use std::time::Duration;

/// Parses a duration in the syntax of Go programs, in whole numbers: `500ms`, `30s`, `1m30s`, `2h`. `None`: `text` is none, or
/// exceeds 64 bits of milliseconds.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut millis: u64 = 0;
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let part = number.parse::<u64>().ok()?.checked_mul(unit_millis(unit)?)?;
        millis = millis.checked_add(part)?;
        rest = tail;
    }
    (!text.is_empty()).then(|| Duration::from_millis(millis))
}

fn unit_millis(unit: &str) -> Option<u64> {
    match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    }
}

/// Parses like [`parse_duration`]; a number without a unit is in seconds.
pub fn duration_or_seconds(text: &str) -> Option<Duration> {
    parse_duration(text).or_else(|| parse_duration(&format!("{text}s")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_their_units() {
        for (text, millis) in [
            ("500ms", 500),
            ("2s", 2000),
            ("0s", 0),
            ("5m", 300_000),
            ("24h", 86_400_000),
            ("1m30s", 90_000),
            ("1h0m1s5ms", 3_601_005),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
            assert_eq!(duration_or_seconds(text), parse_duration(text), "{text}");
        }
        let no_durations = [
            "",
            "s",
            "1d",
            "-1s",
            "+1s",
            "1.5s",
            "1 s",
            "s1",
            "1m30",
            "99999999999999999999s",
            "99999999999999999h",
        ];
        for text in no_durations {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn a_number_alone_is_in_seconds_only_where_that_is_meant() {
        assert_eq!((parse_duration("3"), duration_or_seconds("3")), (None, Some(Duration::from_secs(3))));
        for text in ["", "1d", "-1", "1.5", "1mm"] {
            assert_eq!(duration_or_seconds(text), None, "{text}");
        }
    }
}
