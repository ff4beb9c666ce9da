//! Documents of an older and of a newer program can be read.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

#[path = "page/fixtures.rs"]
mod fixtures;

use report::{
    CaptureState, ChangeStatus, DocumentError, Explanation, PodVerdict, Severity, StatePart, StateReport,
    Unobserved,
};
use serde_json::{Value, json};

fn documents() -> Vec<Value> {
    let mut all: Vec<StateReport> = fixtures::all().into_iter().map(|(_, state)| state).collect();
    all.push(StateReport {
        observation: report::Provenance {
            unobserved: vec![Unobserved::new(StatePart::Network, "why")],
            ..report::Provenance::default()
        },
        ..fixtures::well()
    });
    all.iter_mut().for_each(StateReport::fill_conclusions);
    let documents = all.into_iter().map(|state| StateReport { schema: report::SCHEMA.to_owned(), ..state });
    documents.map(|state| serde_json::to_value(state).unwrap()).collect()
}

fn parse(document: &Value) -> Result<StateReport, DocumentError> {
    StateReport::parse(&serde_json::to_vec(document).unwrap())
}

/// JSON pointer of each field, at any depth.
fn members(value: &Value, path: &str, found: &mut Vec<String>) {
    let mut below = |name: &str, value: &Value| {
        let path = format!("{path}/{name}");
        members(value, &path, found);
        found.push(path);
    };
    match value {
        Value::Object(all) => all.iter().for_each(|(name, value)| below(name, value)),
        Value::Array(all) => all.iter().enumerate().for_each(|(at, value)| below(&at.to_string(), value)),
        _ => {}
    }
}

fn pointers(document: &Value) -> Vec<String> {
    let mut found = Vec::new();
    members(document, "", &mut found);
    found
}

/// An agent of an earlier version lacks the fields added since.
#[test]
fn a_document_of_the_past_lacks_any_member() {
    for document in documents() {
        assert_eq!(serde_json::to_value(parse(&document).unwrap()).unwrap(), document, "whole");
        for pointer in pointers(&document) {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let mut without = document.clone();
            let parent = without.pointer_mut(parent).unwrap();
            let removed = parent.as_object_mut().and_then(|members| members.remove(name));
            if removed.is_some() && pointer != "/schema" {
                parse(&without).unwrap_or_else(|error| panic!("without {pointer}: {error}"));
            }
        }
    }
}

/// An agent of a later version has fields and values that this program does not know.
#[test]
fn a_document_of_the_future_has_other_members_and_values() {
    for mut document in documents() {
        let known = parse(&document).unwrap();
        for pointer in pointers(&document).iter().map(String::as_str).chain([""]) {
            if let Some(members) = document.pointer_mut(pointer).unwrap().as_object_mut() {
                members.insert("ofTheFuture".to_owned(), json!({"some": ["thing"]}));
            }
        }
        assert_eq!(parse(&document).unwrap(), known);
        let values = ["/observer", "/part", "/mode", "/capture", "/kind", "/outcome", "/severity"]
            .map(|name| move |pointer: &&String| pointer.ends_with(name));
        let all = pointers(&document);
        for pointer in all.iter().filter(|pointer| values.iter().any(|is_one| is_one(pointer))) {
            *document.pointer_mut(pointer).unwrap() = json!("of-the-future");
        }
        let read = parse(&document).unwrap();
        assert!(read.pods.iter().all(|pod| pod.capture == CaptureState::Unknown && pod.mode.is_none()));
        let severities = read.findings.iter().map(|finding| finding.severity);
        assert!(severities.chain(read.causes.iter().map(|cause| cause.severity)).all(is_unknown));
        assert!(read.history.iter().all(|change| change.outcome == ChangeStatus::Failed));
        assert!(read.observation.unobserved.iter().all(|blind| blind.part == StatePart::Other));
        assert_eq!(read.differences().len(), known.differences().len(), "no difference is lost");
    }
}

fn is_unknown(severity: Option<Severity>) -> bool {
    severity == Some(Severity::Unknown)
}

#[test]
fn the_schema_is_looked_at_before_the_content() {
    let of = |document: Value| parse(&document).unwrap_err();
    let error = of(json!({"schema": "millrace.state/v9\u{1b}", "pods": {"by": "uid"}}));
    let DocumentError::Schema { found } = &error else { panic!("{error}") };
    assert!(found.starts_with("millrace.state/v9") && !found.contains('\u{1b}'), "{found:?}");
    for document in [json!({}), json!({"schema": 1}), json!([]), json!({"schema": report::SCHEMA, "pods": 1})]
    {
        assert!(matches!(of(document.clone()), DocumentError::Content(_)), "{document}");
    }
}

#[test]
fn explanations_of_other_versions_are_read() {
    let answer = report::explain_pod(&fixtures::well(), "shop", "web");
    let mut json = serde_json::to_value(&answer).unwrap();
    json["ofTheFuture"] = json!(true);
    assert_eq!(serde_json::from_value::<Explanation>(json.clone()).unwrap(), answer);
    json["verdict"] = json!("of-the-future");
    json["capture"] = json!("of-the-future");
    json["mode"] = json!("of-the-future");
    let read: Explanation = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(
        (read.verdict, read.capture, read.mode),
        (PodVerdict::Unknown, Some(CaptureState::Unknown), None)
    );
    for name in json.as_object().unwrap().keys() {
        let mut without = json.clone();
        without.as_object_mut().unwrap().remove(name);
        assert!(serde_json::from_value::<Explanation>(without).is_ok(), "without {name}");
    }
}
