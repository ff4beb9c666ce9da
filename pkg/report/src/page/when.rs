//! Times, as RFC 3339 has them, told for people.

use super::html::HtmlWriter;

/// A time, and how long before `now` that was. What is not RFC 3339 is shown as it is.
pub(super) fn time(html: &mut HtmlWriter, at: &str, now: &str) {
    let Some(then) = seconds(at) else { return html.text(at) };
    html.element("time", &[("datetime", at)], |html| {
        html.text(&shown(at));
        if let Some(age) = seconds(now).map(|now| now - then).filter(|age| *age >= 0) {
            html.text(&format!(" ({})", words(age)));
        }
    });
}

/// `2026-11-22 03:14:15 UTC`; what is not RFC 3339 stays as it is.
pub(super) fn shown(at: &str) -> String {
    match (seconds(at), at.get(..10), at.get(11..19)) {
        (Some(_), Some(date), Some(time)) => format!("{date} {time} UTC"),
        _ => at.to_owned(),
    }
}

/// Milliseconds, as one would say them.
pub(super) fn milliseconds(took: f64) -> String {
    match took {
        took if took >= 10_000.0 => format!("{:.0} s", took / 1000.0),
        took if took >= 1000.0 => format!("{:.1} s", took / 1000.0),
        took if took >= 10.0 => format!("{took:.0} ms"),
        took => format!("{took:.1} ms"),
    }
}

/// How long ago, in its largest unit.
fn words(seconds: i64) -> String {
    match seconds {
        0 => "just now".to_owned(),
        1..=119 => format!("{seconds} s ago"),
        120..=7199 => format!("{} min ago", seconds / 60),
        7200..=172_799 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

/// Seconds since 1970 of a time in UTC; fractions are dropped.
fn seconds(at: &str) -> Option<i64> {
    let number = |from: usize, to: usize| at.get(from..to)?.parse::<i64>().ok();
    let is =
        |position: usize, wanted: char| at.get(position..)?.chars().next().filter(|found| *found == wanted);
    is(4, '-')?;
    is(7, '-')?;
    is(10, 'T')?;
    is(13, ':')?;
    at.strip_suffix('Z').or_else(|| at.strip_suffix("+00:00"))?;
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    Some(days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Days from 1970-01-01. Years begin in March here, so that the leap day is a year's last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let in_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + in_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_from_1970() {
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(seconds("2000-03-01T00:00:00Z"), Some(951_868_800));
        assert_eq!(seconds("2026-11-22T03:14:15.123Z"), Some(1_795_317_255));
        assert_eq!(seconds("2024-02-29T23:59:59+00:00"), Some(1_709_251_199));
        for bad in ["", "yesterday", "2026-11-22", "2026-11-22T03:14:15+02:00", "ä026-11-22T03:14:15Z"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn ages_have_one_unit() {
        let said: Vec<_> = [0, 1, 119, 120, 7200, 172_800].into_iter().map(words).collect();
        assert_eq!(said, ["just now", "1 s ago", "119 s ago", "2 min ago", "2 h ago", "2 days ago"]);
    }

    #[test]
    fn durations_are_short() {
        let said: Vec<_> = [0.42, 12.4, 1234.0, 45_678.0].into_iter().map(milliseconds).collect();
        assert_eq!(said, ["0.4 ms", "12 ms", "1.2 s", "46 s"]);
    }
}
