//! From OpenMetrics text to Prometheus text 0.0.4, line by line.
//!
//! They differ in what a family is called (a counter's is the sample's name, with `_total`; an info's too, with `_info`),
//! and in what only OpenMetrics has: units, exemplars, a mark at the end.

/// The text that Prometheus' own client would print.
pub(super) fn from_open_metrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            // Its name depends on the type, which comes next.
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = family(kind);
            if let Some((_, help)) = help.take().filter(|(named, _)| *named == name) {
                push(&mut out, &["# HELP ", name, suffix, " ", help]);
            }
            push(&mut out, &["# TYPE ", name, suffix, " ", kind]);
        } else if !line.starts_with('#') {
            push(&mut out, &[without_exemplar(line)]);
        }
    }
    out
}

fn push(out: &mut String, parts: &[&str]) {
    out.extend(parts.iter().copied());
    out.push('\n');
}

/// What the samples' names have in addition to the family's, and the type.
fn family(kind: &str) -> (&'static str, &str) {
    match kind {
        "counter" => ("_total", "counter"),
        "info" => ("_info", "gauge"),
        "unknown" => ("", "untyped"),
        kind => ("", kind),
    }
}

/// `name{label="value"} 1 # {trace="x"} 0.5` up to the ` # `. A label's value may hold that too, so the labels are passed
/// over first.
fn without_exemplar(sample: &str) -> &str {
    let labels = sample.find('{').filter(|brace| sample.find(' ').is_none_or(|blank| *brace < blank));
    let value = labels.map_or(0, |brace| end_of_labels(sample, brace));
    let exemplar = sample.get(value..).and_then(|rest| rest.find(" # "));
    exemplar.and_then(|at| sample.get(..value + at)).unwrap_or(sample)
}

/// The place of the closing brace: one that is in no quotes.
fn end_of_labels(sample: &str, brace: usize) -> usize {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in sample.bytes().enumerate().skip(brace) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return at,
            _ => {}
        }
    }
    sample.len()
}

#[cfg(test)]
mod tests;
