//! The tables of docs/state.md are made from the types of the document: paths, types, and the documentation comments of the fields.
#![expect(clippy::disallowed_methods, reason = "a test of a pure crate may read the documentation")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test")]

#[path = "schema/descriptions.rs"]
mod descriptions;
#[path = "page/fixtures.rs"]
mod fixtures;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use report::{
    CaptureState, DifferenceKind, PodState, PreflightFact, RedirectionMode, Severity, StatePart, StateReport,
    Unobserved, judge_preflight,
};
use serde_json::{Value, json};

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
    pod.unconfirmed = Some("words".into());
    pod.created_at = Some("words".into());
    let mut all: Vec<_> = fixtures::all().into_iter().map(|(_, state)| state).chain([state]).collect();
    all.iter_mut().for_each(StateReport::fill_conclusions);
    all
}

/// A member of the document.
struct Member {
    /// Type of its values; `None`: no value says something.
    kind: Option<&'static str>,
    /// Form of the document in which it has none: ` or null`, ` or absent`; empty: it always has one.
    without_value: &'static str,
}

/// Members of all fixtures, by path.
fn all_members() -> BTreeMap<String, Member> {
    let mut all = BTreeMap::<String, Member>::new();
    for state in whole() {
        let document = serde_json::to_value(&state).unwrap();
        let mut found = BTreeMap::new();
        add_members(&document, "", "", &mut found);
        for (path, (pointer, kind)) in found {
            let without_value = || form_without_value(&document, &pointer);
            let known = all.entry(path).or_insert_with(|| Member { kind, without_value: without_value() });
            known.kind = known.kind.or(kind);
        }
    }
    all
}

/// JSON pointer and type of each member, by path.
type Found = BTreeMap<String, (String, Option<&'static str>)>;

fn add_members(value: &Value, path: &str, pointer: &str, found: &mut Found) {
    match value {
        Value::Object(all) => all.iter().for_each(|(name, value)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let pointer = format!("{pointer}/{name}");
            let (_, kind) = found.entry(short(&path)).or_insert_with(|| (pointer.clone(), None));
            *kind = kind.or(value_type(name, value));
            add_members(value, &path, &pointer, found);
        }),
        Value::Array(all) => all.iter().enumerate().for_each(|(at, one)| {
            add_members(one, &format!("{path}[]"), &format!("{pointer}/{at}"), found);
        }),
        _ => {}
    }
}

/// Type of a member's value, as docs/state.md names it; `None`: null, or an empty list.
fn value_type(name: &str, value: &Value) -> Option<&'static str> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) if name.ends_with("At") || name.ends_with("Time") => "time",
        Value::String(_) => "text",
        Value::Array(all) if all.first()?.is_string() => "list of text",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    })
}

/// Form of a document in which the member at `pointer` has no value, as its type decides: see [`Member::without_value`].
fn form_without_value(document: &Value, pointer: &str) -> &'static str {
    for empty in [Value::Null, json!([])] {
        let mut without = document.clone();
        without.pointer_mut(pointer).unwrap().clone_from(&empty);
        let Ok(read) = serde_json::from_value::<StateReport>(without) else { continue };
        match serde_json::to_value(read).unwrap().pointer(pointer) {
            None => return " or absent",
            Some(Value::Null) => return " or null",
            Some(_) => {}
        }
    }
    ""
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

/// A row for each member, in the order of the types' fields: its path, and the row.
fn table_rows(members: &BTreeMap<String, Member>) -> Vec<(String, String)> {
    let mut rows: Vec<(String, String)> = Vec::new();
    for (path, description) in descriptions::described_members() {
        let path = short(&path);
        let Some(Member { kind: Some(kind), without_value }) = members.get(&path) else { continue };
        if rows.iter().all(|(known, _)| *known != path) {
            let meaning = page_text(&description, without_value);
            rows.push((path.clone(), format!("| `{path}` | {kind}{without_value} | {meaning} |")));
        }
    }
    // Members that are common to all kinds come first.
    rows.sort_by_key(|(path, _)| path.starts_with("network.") && !path.starts_with("network.*."));
    rows
}

/// A documentation comment as the text of a table: the beginning of a clause, in terms of JSON.
fn page_text(description: &str, without_value: &str) -> String {
    let none = if without_value == " or absent" { "absent" } else { "null" };
    let text = description.trim_end_matches('.').replace("`None`", none);
    let is_acronym = text.chars().nth(1).is_some_and(char::is_uppercase);
    if is_acronym { text } else { text[..1].to_lowercase() + &text[1..] }
}

/// The page with these rows in its tables, in the place of the rows about the same members of the document.
fn with_rows(text: &str, rows: &[(String, String)]) -> String {
    let head = |path: &str| path.split(['.', '[']).next().unwrap_or_default().to_owned();
    let mut listed = BTreeSet::new();
    let mut page = String::new();
    for line in text.lines() {
        match documented(line).first().map(|path| head(path)) {
            None => page.push_str(&format!("{line}\n")),
            Some(member) if listed.insert(member.clone()) => {
                let same = rows.iter().filter(|(path, _)| head(path) == member);
                same.for_each(|(_, row)| page.push_str(&format!("{row}\n")));
            }
            Some(_) => {}
        }
    }
    page
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/state.md")
}

/// Names in backticks at the beginning of table rows.
fn documented(text: &str) -> Vec<&str> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).collect()
}

#[test]
fn every_member_is_documented_and_nothing_else_is() {
    let found = all_members();
    let unpopulated = found.iter().filter(|(_, member)| member.kind.is_none());
    let unpopulated: Vec<_> = unpopulated.map(|(path, _)| path).collect();
    assert!(
        unpopulated.is_empty(),
        "no value that says something, so its own members do not show: {unpopulated:?}"
    );
    let text = fs::read_to_string(page()).unwrap();
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

/// To write them: `MILLRACE_UPDATE_GOLDEN=1 cargo test -p report --test schema`.
#[test]
fn the_tables_are_made_from_the_types() {
    let text = fs::read_to_string(page()).unwrap();
    let expected = with_rows(&text, &table_rows(&all_members()));
    if std::env::var_os("MILLRACE_UPDATE_GOLDEN").is_some() {
        return fs::write(page(), expected).unwrap();
    }
    let differs = text.lines().zip(expected.lines()).find(|(old, new)| old != new);
    assert!(text == expected, "docs/state.md is out of date; first difference: {differs:?}");
}

#[test]
fn a_row_says_in_terms_of_json_what_the_comment_says() {
    for (comment, without_value, expected) in [
        ("Whether the link is up.", "", "whether the link is up"),
        ("UID of the pod; `None`: unknown.", " or null", "UID of the pod; null: unknown"),
        ("Phase; `None`: unknown. Kept.", " or absent", "phase; absent: unknown. Kept"),
    ] {
        assert_eq!(page_text(comment, without_value), expected);
    }
}

#[test]
fn every_value_of_an_enumeration_is_documented() {
    let text = fs::read_to_string(page()).unwrap();
    let severities = || Severity::ALL.map(Severity::code).to_vec();
    let parts = StatePart::ALL.map(StatePart::code).to_vec();
    for (path, values) in [
        ("observation.unobserved[].part", parts),
        ("findings[].severity", severities()),
        ("causes[].severity", severities()),
        ("preflight[].severity", severities()),
        ("pods[].capture", CaptureState::ALL.map(CaptureState::as_str).to_vec()),
        ("pods[].mode", RedirectionMode::ALL.map(RedirectionMode::as_str).to_vec()),
        ("network.*.differences[].kind", DifferenceKind::ALL.map(DifferenceKind::as_str).to_vec()),
    ] {
        let row = text.lines().find(|line| line.starts_with(&format!("| `{path}` |"))).unwrap();
        let spans: Vec<&str> = row.split('`').skip(3).step_by(2).collect();
        let missing: Vec<_> = values.into_iter().filter(|value| !spans.contains(value)).collect();
        assert_eq!(missing, Vec::<&str>::new(), "{path}");
    }
}

#[test]
fn the_schema_that_is_documented_is_the_one_that_is_told() {
    let text = fs::read_to_string(page()).unwrap();
    assert!(text.starts_with(&format!("# The document `{}`\n", report::SCHEMA)));
}
