//! Checks the documentation: links, style, and that a test executes each command in it, or that none can. Only reads files: needs
//! no root, no network and no program of ours.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "all of this is tests, also what clippy does not recognise as such"
)]

mod commands;
mod comments;
mod examples;
mod figures;
mod habits;
mod links;
mod markdown;
mod prose;
mod reference;
mod site;
mod sources;
mod time_limits;

use std::path::{Path, PathBuf};

/// The root of the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Pages for users and contributors, relative to the root. The links in README.md prove that none is missing.
fn pages() -> Vec<String> {
    let top = [
        "README.md",
        "CONTRIBUTING.md",
        "ARCHITECTURE.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "SUPPORT.md",
        "GOVERNANCE.md",
        "MAINTAINERS.md",
        "CODE_OF_CONDUCT.md",
    ];
    let docs = repository().join("docs").read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let docs = docs.filter_map(|name| Some(format!("docs/{}", name.to_str()?)));
    let mut docs: Vec<_> = docs.filter(|name| name.ends_with(".md")).collect();
    docs.sort();
    let top = top.into_iter().filter(|page| repository().join(page).exists()).map(str::to_owned);
    top.chain(docs).collect()
}

/// The text of a file of the repository.
fn read(path: &str) -> String {
    let text = std::fs::read_to_string(repository().join(path));
    text.unwrap_or_else(|error| panic!("cannot read {path}: {error}"))
}

/// Fails with all findings together.
fn report(what: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{} {what}:\n{}", findings.len(), findings.join("\n"));
}
