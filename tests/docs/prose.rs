//! Mechanically checked style: one sentence per line, and no phrase for which the project has a term.

use crate::markdown::{Kind, Line, lines, without_code};
use crate::{pages, read, report};

/// Phrases, each with its replacement.
const PHRASES: &[(&str, &str)] = &[
    ("gets past", "bypasses"),
    ("goes round the mesh", "bypasses the mesh"),
    ("mended", "repaired"),
    ("put right", "repaired"),
    ("somebody", "another component, or who it is"),
    ("in words", "as a message"),
    ("with in-pod redirection", "with in-pod capture"),
];

/// Abbreviations with a full stop, which end no sentence.
const ABBREVIATIONS: &[&str] = &["e.g", "i.e", "vs", "cf"];

/// Index at which a second sentence begins.
fn second_sentence(line: &str) -> Option<usize> {
    let text = without_code(line);
    let text = text.trim_start().trim_start_matches(|c: char| c.is_ascii_digit());
    let text = text.strip_prefix(". ").unwrap_or(text);
    let mut from = 0;
    while let Some(at) = text[from..].find(". ").map(|at| from + at) {
        let begins = text[at + 2..].trim_start_matches(['*', '_', '[', '(', '"']).chars().next();
        let word = text[..at].rsplit([' ', '(']).next().unwrap_or_default();
        if begins.is_some_and(char::is_uppercase) && !ABBREVIATIONS.contains(&word) {
            return Some(at);
        }
        from = at + 2;
    }
    None
}

/// Findings in all lines outside blocks.
fn findings(check: impl Fn(&str, Line<'_>) -> Option<String>) -> Vec<String> {
    let mut findings = Vec::new();
    for page in pages() {
        let text = read(&page);
        for line in lines(&text) {
            let wrong = check(&page, line).filter(|_| !matches!(line.kind, Kind::Block(_)));
            findings.extend(wrong.map(|wrong| format!("{page}:{}: {wrong}: {}", line.number, line.text)));
        }
    }
    findings
}

#[test]
fn a_line_has_one_sentence() {
    let check = |_: &str, line: Line<'_>| {
        let second = second_sentence(line.text).filter(|_| line.kind == Kind::Prose);
        second.map(|_| "more than one sentence".to_owned())
    };
    report("lines of prose have more than one sentence", &findings(check));
}

#[test]
fn terms_are_used_where_there_are_terms() {
    let check = |page: &str, line: Line<'_>| {
        if page == "ARCHITECTURE.md" && line.kind == Kind::Table {
            return None; // the glossary, which lists words to avoid
        }
        let text = without_code(line.text).to_lowercase();
        let found = PHRASES.iter().find(|(phrase, _)| text.contains(phrase));
        found.map(|(phrase, instead)| format!("\"{phrase}\" instead of \"{instead}\""))
    };
    report("lines use a phrase", &findings(check));
}

#[test]
fn sentences_are_told_apart() {
    for one in ["1. One.", "One, e.g. Two.", "One `a. B` two.", "**One.** Two.", "version 1.2. and so on"] {
        assert_eq!(second_sentence(one), None, "{one}");
    }
    for two in ["One. Two.", "- One. **Two.**", "1. One. Two."] {
        assert!(second_sentence(two).is_some(), "{two}");
    }
}
