//! Which form a client asks for.

use super::Format;

/// OpenMetrics when the `Accept` header asks for a version of it that we print, and does not like plain text better; else
/// Prometheus text. Wildcards ask for nothing in particular.
#[must_use]
pub fn negotiate(accept: Option<&str>) -> Format {
    let (mut open_metrics, mut text) = (0.0, 0.0);
    for range in accept.unwrap_or_default().split(',') {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
        if media.eq_ignore_ascii_case("application/openmetrics-text") && known_version(&parameters) {
            open_metrics = f64::max(open_metrics, quality(&parameters));
        } else if media.eq_ignore_ascii_case("text/plain") {
            text = f64::max(text, quality(&parameters));
        }
    }
    if open_metrics > 0.0 && open_metrics >= text { Format::OpenMetrics } else { Format::Prometheus }
}

fn parameter<'a>(parameters: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    let (_, value) = parameters.iter().find(|(key, _)| key.trim().eq_ignore_ascii_case(name))?;
    Some(value.trim().trim_matches('"'))
}

fn known_version(parameters: &[(&str, &str)]) -> bool {
    matches!(parameter(parameters, "version"), None | Some("0.0.1" | "1.0.0"))
}

/// 1 unless said otherwise; what is no number from 0 to 1 counts as a refusal.
fn quality(parameters: &[(&str, &str)]) -> f64 {
    match parameter(parameters, "q").map(str::parse) {
        None => 1.0,
        Some(Ok(quality)) if (0.0..=1.0).contains(&quality) => quality,
        Some(_) => 0.0,
    }
}
