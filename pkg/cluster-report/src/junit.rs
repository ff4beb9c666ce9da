//! Checks as a test report in the form of JUnit, which build servers show.

use std::fmt::Write as _;

use crate::{
    check::CheckLine,
    finding::{Finding, Severity},
};

/// Returns a report with a test case for each check. One that is as bad as `least` has failed, or if it could not be determined, has an
/// error; one that is not as bad is skipped.
#[must_use]
pub fn junit(suite: &str, checks: &[CheckLine], findings: &[Finding], least: Severity) -> String {
    let of = |severity: Severity| checks.iter().filter(move |line| line.severity == Some(severity)).count();
    let counted = |severity: Severity| if severity >= least { of(severity) } else { 0 };
    let failures = counted(Severity::Error) + counted(Severity::Warning);
    let errors = counted(Severity::Unknown);
    let skipped = checks.iter().filter(|line| line.severity.is_some()).count() - failures - errors;
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "<testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\">",
        escape(suite),
        checks.len()
    );
    for line in checks {
        let (class, title) = (escape(line.section.title()), escape(line.title));
        let _ = write!(text, "  <testcase classname=\"{class}\" name=\"{title}\"");
        match line.severity {
            None => text.push_str("/>\n"),
            Some(severity) => {
                let element = match severity {
                    severity if severity < least => "skipped",
                    Severity::Unknown => "error",
                    Severity::Error | Severity::Warning => "failure",
                };
                let (code, message) = (line.code.word(), escape(&message(line, findings)));
                let _ = writeln!(text, "><{element} type=\"{code}\" message=\"{message}\"/></testcase>");
            }
        }
    }
    text.push_str("</testsuite>\n");
    text
}

/// Returns the findings of a check and the parts that are missing, on one line.
fn message(line: &CheckLine, findings: &[Finding]) -> String {
    let of_check = findings.iter().filter(|finding| finding.code == line.code);
    let found = of_check.map(|finding| match finding.object.title().as_str() {
        "" => finding.message.clone(),
        title => format!("{title}: {}", finding.message),
    });
    let unknown = line.unknown.iter().map(|why| format!("unknown: {why}"));
    found.chain(unknown).collect::<Vec<_>>().join("; ")
}

/// Escapes what has a meaning in XML; characters that it cannot contain become `?`.
fn escape(text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Code, ObjectName};

    fn line(code: Code, severity: Option<Severity>, unknown: &[&str]) -> CheckLine {
        let unknown = unknown.iter().map(|why| (*why).to_owned()).collect();
        CheckLine { code, section: code.section(), title: code.check(), severity, findings: 0, unknown }
    }

    #[test]
    fn each_check_is_a_test_case_and_nothing_breaks_the_markup() {
        let node = ObjectName::node("n<1>");
        let finding = Finding::new(Code::NodeDrift, node, "a \"quote\" & a \u{1} byte");
        let checks = [
            line(Code::NoAgents, None, &[]),
            line(Code::AgentSilent, Some(Severity::Unknown), &["1 of 2 agents did not answer"]),
            line(Code::NodeDrift, Some(Severity::Error), &[]),
            line(Code::PodPending, Some(Severity::Warning), &[]),
        ];
        let text = junit("millrace check", &checks, &[finding], Severity::Unknown);
        assert_eq!(
            text,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <testsuite name=\"millrace check\" tests=\"4\" failures=\"1\" errors=\"1\" skipped=\"1\">\n  \
             <testcase classname=\"cluster\" name=\"agents are deployed\"/>\n  \
             <testcase classname=\"agents\" name=\"every agent answers\"><error type=\"agent-silent\" message=\"unknown: 1 of 2 \
             agents did not answer\"/></testcase>\n  \
             <testcase classname=\"nodes\" name=\"every node's network is as desired\"><failure type=\"node-drift\" message=\"node \
             n&lt;1&gt;: a &quot;quote&quot; &amp; a \\u{1} byte\"/></testcase>\n  \
             <testcase classname=\"pods\" name=\"no pod waits to be captured\"><skipped type=\"pod-pending\" message=\"\"/></testcase>\n\
             </testsuite>\n"
        );
        assert!(
            junit("s", &checks, &[], Severity::Warning).contains("failures=\"2\" errors=\"1\" skipped=\"0\"")
        );
        assert!(
            junit("s", &checks, &[], Severity::Error).contains("failures=\"1\" errors=\"0\" skipped=\"2\"")
        );
    }
}
