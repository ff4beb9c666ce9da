//! Checks as a JUnit test report, which CI servers display.

use std::fmt::Write as _;

use crate::findings::Severity;

/// A check, as a test case.
#[derive(Clone, Debug)]
pub struct JunitCase {
    /// Class that the test case belongs to.
    pub class: String,
    /// Condition that holds if the check passed.
    pub name: String,
    /// Severity, code and message of the finding; `None`: the check passed.
    pub failed: Option<(Severity, String, String)>,
}

/// Returns a report with a test case for each check. A finding of severity `least` or above is a failure, or an error if it is of
/// unknown severity; one below is skipped.
pub fn render_junit(suite: &str, cases: &[JunitCase], least: Severity) -> String {
    let severities = || cases.iter().filter_map(|case| Some(case.failed.as_ref()?.0));
    let counted = |severity| severities().filter(|found| *found == severity && severity >= least).count();
    let failures = counted(Severity::Error) + counted(Severity::Warning);
    let errors = counted(Severity::Unknown);
    let skipped = severities().count() - failures - errors;
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "<testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\">",
        escape_xml(suite),
        cases.len()
    );
    for case in cases {
        let (class, name) = (escape_xml(&case.class), escape_xml(&case.name));
        let _ = write!(text, "  <testcase classname=\"{class}\" name=\"{name}\"");
        match &case.failed {
            None => text.push_str("/>\n"),
            Some((severity, code, message)) => {
                let element = match severity {
                    severity if *severity < least => "skipped",
                    Severity::Unknown => "error",
                    Severity::Error | Severity::Warning => "failure",
                };
                let (code, message) = (escape_xml(code), escape_xml(message));
                let _ = writeln!(text, "><{element} type=\"{code}\" message=\"{message}\"/></testcase>");
            }
        }
    }
    text.push_str("</testsuite>\n");
    text
}

/// Escapes XML's special characters; characters that XML does not allow become `?`.
fn escape_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push('?'),
            c if c.is_control() => escaped.push('?'),
            c => escaped.push(c),
        }
    }
    escaped
}
