//! Timestamps as text.

#[expect(clippy::disallowed_types, reason = "a value that callers bring; no clock is read here")]
use std::time::SystemTime;

/// Formats a time for logs and the debug state; see [`rfc3339_micros`]. A time before 1970 is replaced by the epoch.
#[expect(clippy::disallowed_types, reason = "see above")]
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    rfc3339_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

/// Formats microseconds since 1970-01-01 00:00:00 UTC (without leap seconds, as in Unix time) as RFC 3339 text with six digits of
/// fraction and `Z`, as in `2026-11-21T09:32:06.536815Z`. Years before 0 or after 9999, which RFC 3339 cannot represent, get a sign
/// or more digits, as in ISO 8601.
pub fn rfc3339_micros(unix_micros: i64) -> String {
    const DAY: i64 = 86_400_000_000;
    let (days, in_day) = (unix_micros.div_euclid(DAY), unix_micros.rem_euclid(DAY));
    let (year, month, day) = civil_date(days);
    let (seconds, micros) = (in_day / 1_000_000, in_day % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Converts days since 1970-01-01 to year, month and day in the proleptic Gregorian calendar. Years are counted from 1 March, so
/// that the leap day is the last of its year; 400 years (146,097 days) are one cycle.
fn civil_date(days: i64) -> (i64, i64, i64) {
    // Days since 0000-03-01.
    let days = days + 719_468;
    let (cycle, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    // A leap day ends every fourth year, but not the 100th, 200th, 300th.
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    // From March on, months have 31, 30, 31, 30, 31 days, repeated: 153 days in five months.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    (cycle * 400 + year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_times_are_written() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_078_012_800, "2004-02-29T00:00:00.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000000Z"),
            (1_795_253_526, "2026-11-21T09:32:06.000000Z"),
            (253_402_300_799, "9999-12-31T23:59:59.000000Z"),
        ] {
            assert_eq!(rfc3339_micros(seconds * 1_000_000), text);
        }
        assert_eq!(rfc3339_micros(1), "1970-01-01T00:00:00.000001Z");
        assert_eq!(rfc3339_micros(-1), "1969-12-31T23:59:59.999999Z");
        // The ends of the range do not overflow.
        assert!(rfc3339_micros(i64::MAX).starts_with("294247-"));
        assert!(rfc3339_micros(i64::MIN).starts_with('-'));
    }

    /// Counts day by day over more than one cycle, with the rule of the calendar written out.
    #[test]
    fn every_day_of_1600_to_2401_follows_the_one_before() {
        let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let mut days = -135_140; // 1600-01-01
        for year in 1600..2402 {
            let february = if leap(year) { 29 } else { 28 };
            for (month, length) in (1..).zip([31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]) {
                for day in 1..=length {
                    assert_eq!(civil_date(days), (year, month, day));
                    days += 1;
                }
            }
        }
    }
}
