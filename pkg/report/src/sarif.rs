//! Checks and findings in the form of SARIF 2.1.0, which services for code and its results show.
//!
//! Source: [SARIF 2.1.0](https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html).

use serde_json::{Value, json};

use crate::findings::Severity;

const SCHEMA: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

/// A check that was made.
#[derive(Clone, Debug)]
pub struct SarifRule {
    /// The code of its findings.
    pub code: String,
    /// The condition that holds if it passed.
    pub check: String,
    /// Recommended action, and where to read on.
    pub help: String,
    /// How bad its findings are, as a rule; `None`: that depends.
    pub severity: Option<Severity>,
}

/// A finding.
#[derive(Clone, Debug)]
pub struct SarifResult {
    /// The code of its check.
    pub code: String,
    /// How bad it is.
    pub severity: Severity,
    /// The problem and its cause.
    pub message: String,
    /// Kind, namespace (if it is in one) and name of the object that it is about, as `Pod/shop/web`; `None`: it is about the
    /// cluster.
    pub object: Option<String>,
    /// The node, if it is about something on one.
    pub node: Option<String>,
}

/// Returns a log of one run, in which each finding has the place of its check. What could not be determined is `open`, which has no
/// level.
pub fn render_sarif(tool: &str, rules: &[SarifRule], results: &[SarifResult]) -> String {
    let results = results.iter().map(|result| {
        // A part below a rule's own place is written behind a slash (section 3.27.5).
        let is_of = |rule: &SarifRule| result.code.split('/').next() == Some(&rule.code);
        let index = rules.iter().position(is_of);
        result_value(result, index)
    });
    let log = json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": tool, "rules": rules.iter().map(rule_value).collect::<Vec<_>>()}},
            "results": results.collect::<Vec<_>>(),
        }],
    });
    format!("{log:#}\n")
}

fn rule_value(rule: &SarifRule) -> Value {
    let level = rule.severity.map(sarif_level);
    without_nulls(json!({
        "id": rule.code,
        "shortDescription": {"text": rule.check},
        "help": {"text": rule.help},
        "defaultConfiguration": level.map(|level| json!({"level": level})),
    }))
}

fn result_value(result: &SarifResult, index: Option<usize>) -> Value {
    let kind = if result.severity == Severity::Unknown { "open" } else { "fail" };
    let locations = result.object.as_ref().map(|object| {
        let name = object.rsplit('/').next().unwrap_or(object);
        let place = json!({"name": name, "fullyQualifiedName": object, "kind": "resource"});
        json!([{"logicalLocations": [place]}])
    });
    without_nulls(json!({
        "ruleId": result.code,
        "ruleIndex": index,
        "kind": kind,
        "level": sarif_level(result.severity),
        "message": {"text": result.message},
        "locations": locations,
        "properties": result.node.as_ref().map(|node| json!({"node": node})),
    }))
}

/// Removes the members of an object that have no value.
fn without_nulls(mut value: Value) -> Value {
    if let Some(members) = value.as_object_mut() {
        members.retain(|_, member| !member.is_null());
    }
    value
}

fn sarif_level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Unknown => "none",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_names_each_check_once_and_each_finding_at_its_object() {
        let rule = |code: &str, severity| SarifRule {
            code: code.to_owned(),
            check: "it holds".to_owned(),
            help: "Do it. See docs/millrace.md.".to_owned(),
            severity,
        };
        let result = |code: &str, severity, object: Option<&str>, node: Option<&str>| SarifResult {
            code: code.to_owned(),
            severity,
            message: "it does not".to_owned(),
            object: object.map(str::to_owned),
            node: node.map(str::to_owned),
        };
        let log = render_sarif(
            "millrace check",
            &[rule("no-agents", Some(Severity::Error)), rule("pod-held", None)],
            &[
                result("pod-held", Severity::Error, Some("Pod/shop/web"), Some("n1")),
                result("no-agents", Severity::Unknown, None, None),
            ],
        );
        let text = |text: &str| json!({"text": text});
        assert_eq!(
            serde_json::from_str::<Value>(&log).unwrap(),
            json!({
                "$schema": SCHEMA,
                "version": "2.1.0",
                "runs": [{
                    "tool": {"driver": {"name": "millrace check", "rules": [
                        {
                            "id": "no-agents",
                            "shortDescription": text("it holds"),
                            "help": text("Do it. See docs/millrace.md."),
                            "defaultConfiguration": {"level": "error"},
                        },
                        {
                            "id": "pod-held",
                            "shortDescription": text("it holds"),
                            "help": text("Do it. See docs/millrace.md."),
                        },
                    ]}},
                    "results": [
                        {
                            "ruleId": "pod-held",
                            "ruleIndex": 1,
                            "kind": "fail",
                            "level": "error",
                            "message": text("it does not"),
                            "locations": [{"logicalLocations": [
                                {"name": "web", "fullyQualifiedName": "Pod/shop/web", "kind": "resource"},
                            ]}],
                            "properties": {"node": "n1"},
                        },
                        {
                            "ruleId": "no-agents",
                            "ruleIndex": 0,
                            "kind": "open",
                            "level": "none",
                            "message": text("it does not"),
                        },
                    ],
                }],
            })
        );
    }
}
