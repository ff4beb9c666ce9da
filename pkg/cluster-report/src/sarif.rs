//! Checks as a SARIF log.

use report::{SarifResult, SarifRule};

use crate::{
    check::CheckLine,
    finding::{DOCS, Finding, Severity},
};

/// Returns a log with a rule for each check, and a result for each finding and each reason why a check could not be completed.
pub fn render_sarif(tool: &str, checks: &[CheckLine], findings: &[Finding]) -> String {
    let rule = |line: &CheckLine| SarifRule {
        code: line.code.as_str().to_owned(),
        check: line.title.to_owned(),
        help: report::link_docs(&format!("{} See {DOCS}#{}.", line.code.hint(), line.code.as_str())),
        severity: Some(line.code.severity()),
    };
    let found = findings.iter().map(|finding| SarifResult {
        code: finding.full_code(),
        severity: finding.severity,
        message: finding.message_with_advice(),
        object: finding.object.path(),
        node: finding.node.clone(),
    });
    let unknown = checks.iter().flat_map(|line| {
        line.unknown.iter().map(|why| SarifResult {
            code: line.code.as_str().to_owned(),
            severity: Severity::Unknown,
            message: why.clone(),
            object: None,
            node: None,
        })
    });
    let rules: Vec<SarifRule> = checks.iter().map(rule).collect();
    report::render_sarif(tool, &rules, &found.chain(unknown).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::{
        check::check_lines,
        finding::{Code, ObjectName},
    };

    fn texts<'v>(values: &'v Value, member: &str) -> Vec<&'v str> {
        values
            .as_array()
            .unwrap()
            .iter()
            .map(|value| value.pointer(member).unwrap().as_str().unwrap())
            .collect()
    }

    /// Properties that SARIF 2.1.0 requires, and those of its rules that concern ours: sections 3.13, 3.14, 3.18, 3.19, 3.27, 3.33
    /// and 3.49.
    #[test]
    fn a_log_has_what_the_standard_requires() {
        let finding = |code, object| Finding::new(code, object, "a message").on_node("n1");
        let findings = [
            finding(Code::NodeDrift, ObjectName::node("n1")),
            finding(Code::PodHeld, ObjectName::in_namespace("Pod", "shop", "web")),
            Finding::new(Code::NoAgents, ObjectName::cluster(), "a message"),
            Finding::new(Code::NotReadable, ObjectName::cluster(), "pods: forbidden"),
        ];
        let unknown =
            |code| if code == Code::AgentSilent { vec!["no answer".to_owned()] } else { Vec::new() };
        let checks = check_lines(Code::ALL.iter(), &findings, unknown);
        let log: Value = serde_json::from_str(&render_sarif("millrace check", &checks, &findings)).unwrap();
        assert_eq!(log["version"], "2.1.0");
        let [run] = log["runs"].as_array().unwrap().as_slice() else { panic!("{log}") };
        let driver = &run["tool"]["driver"];
        assert_eq!(driver["name"], "millrace check");
        let ids = texts(&driver["rules"], "/id");
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), Code::ALL.len(), "each once: {ids:?}");
        for member in ["/shortDescription/text", "/help/text"] {
            assert!(
                texts(&driver["rules"], member)
                    .iter()
                    .all(|text| text.ends_with(|c: char| !c.is_whitespace()))
            );
        }
        let results = run["results"].as_array().unwrap();
        assert_eq!(results.len(), findings.len() + 1);
        for result in results {
            let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
            assert_eq!(result["ruleId"], ids[index]);
            assert_ne!(result["message"]["text"].as_str().unwrap(), "");
            let (kind, level) = (result["kind"].as_str().unwrap(), result["level"].as_str().unwrap());
            assert!(matches!((kind, level), ("fail", "warning" | "error") | ("open", "none")), "{result}");
        }
        let place = |result: &Value| {
            let place = result.pointer("/locations/0/logicalLocations/0/fullyQualifiedName");
            place.map(|place| place.as_str().unwrap().to_owned())
        };
        let places: Vec<_> = results.iter().map(place).collect();
        let named = |text: &str| Some(text.to_owned());
        assert_eq!(places, [named("Node/n1"), named("Pod/shop/web"), None, None, None]);
    }
}
