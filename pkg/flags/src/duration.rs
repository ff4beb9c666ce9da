//! Durations on a command line.

use std::time::Duration;

/// Parses a duration in the syntax of Go programs: `500ms`, `1.5s`, `1m30s`, `2h`, `0`. `None`: `text` is none, is negative, or
/// exceeds 64 bits of nanoseconds.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if unsigned == "0" {
        return Some(Duration::ZERO);
    }
    let (mut rest, mut nanos) = (unsigned, 0_u64);
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        nanos = nanos.checked_add(multiply_decimal(number, unit_nanos(unit)?)?)?;
        rest = tail;
    }
    (!unsigned.is_empty()).then(|| Duration::from_nanos(nanos))
}

/// Multiplies a decimal number such as `1.5`, `.5` or `1.`; what is below one is dropped.
fn multiply_decimal(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.get(..18).unwrap_or(fraction);
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let power = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    u64::try_from(digits.checked_mul(unit.into())? / power).ok()
}

fn unit_nanos(unit: &str) -> Option<u64> {
    match unit {
        "ns" => Some(1),
        "us" | "µs" | "μs" => Some(1_000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        "m" => Some(60_000_000_000),
        "h" => Some(3_600_000_000_000),
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
            ("0", 0),
            ("+1s", 1000),
            ("1.5s", 1500),
            (".5s", 500),
            ("1.s", 1000),
            ("1.5h30.25s", 5_430_250),
            ("0.5000000000000000000000001s", 500),
            ("3000000ns", 3),
            ("2000us", 2),
            ("2000µs", 2),
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
            "+",
            ".s",
            ".",
            "1.5.5s",
            "+-1s",
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
        assert_eq!(duration_or_seconds("1.5"), Some(Duration::from_millis(1500)));
        for text in ["", "1d", "-1", "1..5", "1mm"] {
            assert_eq!(duration_or_seconds(text), None, "{text}");
        }
    }
}
