//! Checks as a JUnit test report.

use std::collections::BTreeMap;

use report::JunitCase;

use crate::{
    check::CheckLine,
    finding::{Finding, Severity},
};

/// Returns a report with a test case for each check, as [`report::render_junit`].
pub fn render_junit(suite: &str, checks: &[CheckLine], findings: &[Finding], least: Severity) -> String {
    let cases: Vec<JunitCase> = checks.iter().flat_map(|line| junit_cases(line, findings)).collect();
    report::render_junit(suite, &cases, least)
}

/// Returns the case of a check, and one for each check of nodes themselves that has a finding.
fn junit_cases(line: &CheckLine, findings: &[Finding]) -> Vec<JunitCase> {
    let mut of_nodes: BTreeMap<&str, Vec<&Finding>> = BTreeMap::new();
    let mut own = Vec::new();
    for finding in findings.iter().filter(|finding| finding.code == line.code) {
        match &finding.check {
            Some(check) => of_nodes.entry(check).or_default().push(finding),
            None => own.push(finding),
        }
    }
    let case = |name: String, failed| JunitCase { class: line.section.as_str().to_owned(), name, failed };
    let nodes = of_nodes.iter().filter_map(|(check, found)| {
        let worst = found.iter().map(|finding| finding.severity).max()?;
        let code = found.first()?.full_code();
        Some(case(format!("{}: {check}", line.title), Some((worst, code, failure_message(&[], found)))))
    });
    let at_least = (!line.unknown.is_empty()).then_some(Severity::Unknown);
    let severity = own.iter().map(|finding| finding.severity).max().max(at_least);
    let failed = severity
        .map(|severity| (severity, line.code.as_str().to_owned(), failure_message(&line.unknown, &own)));
    let whole = (of_nodes.is_empty() || failed.is_some()).then(|| case(line.title.to_owned(), failed));
    whole.into_iter().chain(nodes).collect()
}

/// Returns the findings of a check and the missing data, on one line.
fn failure_message(unknown: &[String], findings: &[&Finding]) -> String {
    let found = findings.iter().map(|finding| match finding.object.title().as_str() {
        "" => finding.message_with_advice(),
        title => format!("{title}: {}", finding.message_with_advice()),
    });
    let unknown = unknown.iter().map(|why| format!("unknown: {why}"));
    found.chain(unknown).collect::<Vec<_>>().join("; ")
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
        let findings = [
            Finding::new(Code::NodeDrift, node, "a \"quote\" & a \u{1} byte"),
            Finding::new(Code::PodPending, ObjectName::cluster(), ""),
        ];
        let checks = [
            line(Code::NoAgents, None, &[]),
            line(Code::AgentSilent, Some(Severity::Unknown), &["1 of 2 agents did not answer"]),
            line(Code::NodeDrift, Some(Severity::Error), &[]),
            line(Code::PodPending, Some(Severity::Warning), &[]),
        ];
        let text = render_junit("millrace check", &checks, &findings, Severity::Unknown);
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
        for (least, counts) in [
            (Severity::Warning, "failures=\"2\" errors=\"1\" skipped=\"0\""),
            (Severity::Error, "failures=\"1\" errors=\"0\" skipped=\"2\""),
        ] {
            let text = render_junit("s", &checks, &findings, least);
            let suite = format!("<testsuite name=\"s\" tests=\"4\" {counts}>");
            assert_eq!(text.lines().nth(1), Some(suite.as_str()));
        }
    }
}
