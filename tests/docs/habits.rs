//! Habits of tests that are counted, so that they do not come back.

use std::path::Path;

use crate::repository;

/// Comparisons with a part of a text, in all tests but the benchmarks: as `grep -rhoE '\bcontains\((&?format!\()?"' tests
/// --include='*.rs' --exclude-dir=bench` counts them. Such a test fails when a message is worded better, and passes when another
/// message has these words. Codes, kinds, fields, whole lines and parsed documents do not. Lower it when there are fewer.
const MOST_PARTS_OF_TEXT: usize = 91;

fn sources(directory: &Path) -> Vec<String> {
    let entries = directory.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let sources = entries.flat_map(|path| match path.extension() {
        _ if path.ends_with("bench") => Vec::new(),
        _ if path.is_dir() => sources(&path),
        Some(extension) if extension == "rs" => vec![std::fs::read_to_string(&path).unwrap()],
        _ => Vec::new(),
    });
    sources.collect()
}

/// Calls of `contains` with a text that is written there.
fn count_parts_of_text(source: &str) -> usize {
    let calls = source.match_indices("contains(").filter(|(at, _)| {
        let before = source[..*at].chars().next_back();
        before.is_none_or(|before| !before.is_alphanumeric() && before != '_')
    });
    let is_text = |(at, call): &(usize, &str)| {
        let argument = &source[at + call.len()..];
        let formatted = argument.strip_prefix('&').unwrap_or(argument).strip_prefix("format!(");
        formatted.unwrap_or(argument).starts_with('"')
    };
    calls.filter(is_text).count()
}

#[test]
fn tests_compare_no_more_parts_of_texts_than_they_did() {
    let count: usize = sources(&repository().join("tests")).iter().map(|one| count_parts_of_text(one)).sum();
    assert!(
        count <= MOST_PARTS_OF_TEXT,
        "{count} comparisons with a part of a text, {MOST_PARTS_OF_TEXT} allowed: compare a code, a field or a whole line"
    );
}

#[test]
fn only_written_texts_count() {
    let source = r#"a.contains("b") || a.contains(&format!("{b}")) && a.contains(b) || c.contains(&d) && has_contains("e")
        || a.contains(format!("f").as_str()) || a.contains('g')"#;
    assert_eq!(count_parts_of_text(source), 3);
}
