//! Documentation comments name what they document: none begins with a pronoun.

use crate::{report, repository, sources::all_product_files};

/// Files whose comments are printed as help.
const PRINTED: [&str; 2] = ["cmd/millrace/src/arguments.rs", "cmd/millrace/src/output.rs"];
const PRONOUNS: [&str; 10] =
    ["What", "Who", "Whose", "It", "Its", "The same", "Those", "That", "Them", "None"];

/// The first lines of documentation comments, each with its number.
fn first_lines(source: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_first = true;
    source.lines().enumerate().filter_map(move |(at, line)| {
        let comment = line.trim_start().strip_prefix("/// ");
        let is_continued = !std::mem::replace(&mut is_first, !line.trim_start().starts_with("///"));
        comment.filter(|_| !is_continued).map(|comment| (at + 1, comment))
    })
}

fn begins_with_a_pronoun(comment: &str) -> bool {
    PRONOUNS.iter().any(|pronoun| {
        comment.strip_prefix(pronoun).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
    })
}

#[test]
fn documentation_comments_name_what_they_document() {
    let files = all_product_files();
    assert!(files.len() > 300, "{}", files.len());
    let mut findings = Vec::new();
    for path in files {
        let name = path.strip_prefix(repository()).unwrap().display().to_string();
        let source = std::fs::read_to_string(&path).unwrap();
        let lines = first_lines(&source).filter(|(_, comment)| begins_with_a_pronoun(comment));
        let lines = lines.filter(|_| !PRINTED.contains(&name.as_str()));
        findings.extend(lines.map(|(number, comment)| format!("{name}:{number}: {comment}")));
    }
    findings.sort();
    report("documentation comments begin with a pronoun", &findings);
}

#[test]
fn only_a_pronoun_at_the_beginning_of_a_comment_counts() {
    let source = "/// It is gone.\n/// What follows.\nfn a() {}\n/// Items.\n/// Its end.\n";
    let lines: Vec<(usize, &str)> = first_lines(source).collect();
    assert_eq!(lines, [(1, "It is gone."), (4, "Items.")]);
    assert!(begins_with_a_pronoun(lines[0].1) && !begins_with_a_pronoun(lines[1].1));
    assert!(begins_with_a_pronoun("None: unknown") && !begins_with_a_pronoun("`None` if unknown"));
}
