//! docs/state.md has exactly the fields of the document.
#![expect(clippy::disallowed_methods, reason = "a test of a pure crate may read the documentation")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

#[path = "page/fixtures.rs"]
mod fixtures;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use report::{PodState, PreflightFact, StatePart, StateReport, Unobserved, judge_preflight};
use serde_json::Value;

/// The fixtures with their missing fields, so that each has a value in one of them.
fn whole() -> Vec<StateReport> {
    let mut state = fixtures::well();
    state.node.problem = Some("words".into());
    state.observation.unobserved = vec![Unobserved::new(StatePart::Network, "words")];
    state.preflight = judge_preflight(&[PreflightFact::Memory(Err("words".into()))]);
    state.network.overruling = vec!["words".into()];
    state.history[0].first_started_at = Some("words".into());
    let pod: &mut PodState = &mut state.pods[0];
    pod.problem = Some("words".into());
    pod.kernel.unobserved = Some("words".into());
    pod.kernel.preceding_rules = vec!["words".into()];
    pod.kernel.repair_count = 2;
    pod.kernel.netns_witness = Some("words".into());
    pod.kernel.bypassing_connections.connections = vec!["words".into()];
    pod.privilege = Some("none".into());
    let mut all: Vec<_> = fixtures::all().into_iter().map(|(_, state)| state).chain([state]).collect();
    all.iter_mut().for_each(StateReport::fill_conclusions);
    all
}

/// Path of each field, and whether one of its values is not empty.
fn members(value: &Value, path: &str, found: &mut BTreeMap<String, bool>) {
    match value {
        Value::Object(all) => all.iter().for_each(|(name, value)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let says = !(value.is_null() || value.as_array().is_some_and(Vec::is_empty));
            *found.entry(short(&path)).or_default() |= says;
            members(value, &path, found);
        }),
        Value::Array(all) => all.iter().for_each(|one| members(one, &format!("{path}[]"), found)),
        _ => {}
    }
}

/// Desired and observed objects have equal fields, and so have the comparisons of all kinds.
fn short(path: &str) -> String {
    let Some((kind, rest)) = path.strip_prefix("network.").and_then(|rest| rest.split_once('.')) else {
        return path.to_owned();
    };
    match rest.split_once("[].") {
        Some(("desired" | "observed", member)) => format!("network.{kind}.*[].{member}"),
        _ => format!("network.*.{rest}"),
    }
}

/// Names in backticks at the beginning of table rows.
fn documented(text: &str) -> Vec<&str> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).collect()
}

#[test]
fn every_member_is_documented_and_nothing_else_is() {
    let mut found = BTreeMap::new();
    for state in whole() {
        members(&serde_json::to_value(&state).unwrap(), "", &mut found);
    }
    let unpopulated: Vec<_> = found.iter().filter(|(_, says)| !**says).collect();
    assert!(
        unpopulated.is_empty(),
        "no value that says something, so its own members do not show: {unpopulated:?}"
    );
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/state.md");
    let text = fs::read_to_string(path).unwrap();
    let rows = documented(&text);
    let listed: BTreeSet<&str> = rows.iter().copied().collect();
    assert_eq!(rows.len(), listed.len(), "a member is listed twice");
    let there: BTreeSet<&str> = found.keys().map(String::as_str).collect();
    let missing: Vec<_> = there.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&there).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "missing in docs/state.md: {missing:#?}\nnot in the document: {gone:#?}"
    );
}

#[test]
fn the_schema_that_is_documented_is_the_one_that_is_told() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/state.md");
    let text = fs::read_to_string(path).unwrap();
    assert!(text.starts_with(&format!("# The document `{}`\n", report::SCHEMA)));
}
