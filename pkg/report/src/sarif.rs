//! Checks and findings in SARIF 2.1.0, which code scanning services display.
//!
//! Source: [SARIF 2.1.0](https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html).

use serde_json::{Value, json};

use crate::findings::Severity;

const SCHEMA: &str =
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

/// A check, as a rule.
#[derive(Clone, Debug)]
pub struct SarifRule {
    /// Code of its findings.
    pub code: String,
    /// Condition that holds if the check passed.
    pub check: String,
    /// Recommended action, and link to the documentation.
    pub help: String,
    /// Usual severity of its findings; `None`: it varies.
    pub severity: Option<Severity>,
}

/// A finding.
#[derive(Clone, Debug)]
pub struct SarifResult {
    /// Code of its check.
    pub code: String,
    /// Severity of the finding.
    pub severity: Severity,
    /// The problem and its cause.
    pub message: String,
    /// Kind, namespace (if namespaced) and name of the object, as `Pod/shop/web`; `None`: the cluster.
    pub object: Option<String>,
    /// Node, if the object is on one.
    pub node: Option<String>,
}

/// Returns a log of one run, in which each finding refers to its check by index. A finding of unknown severity has kind `open`,
/// without a level.
pub fn render_sarif(tool: &str, rules: &[SarifRule], results: &[SarifResult]) -> String {
    let results = results.iter().map(|result| {
        // A sub-rule is written behind a slash (section 3.27.5).
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

/// Removes the members of an object that are null.
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
