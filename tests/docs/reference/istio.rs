//! Every flag and variable that Istio reads in the programs that ours replace is one of ours, or `docs/compatibility.md` describes
//! its meaning here.

use super::help;
use crate::read;

const SETTINGS: &str = "tests/docs/reference/istio-settings.txt";
const PAGE: &str = "docs/compatibility.md";

/// Program and name.
fn settings() -> Vec<(String, String)> {
    let (text, mut program, mut all) = (read(SETTINGS), String::new(), Vec::new());
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => name.clone_into(&mut program),
            None => all.push((program.clone(), line.to_owned())),
        }
    }
    all
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-').any(|found| found == word)
}

#[test]
fn every_setting_of_istio_is_honoured_or_its_consequence_is_documented() {
    let page = read(PAGE);
    let (all, mut neither) = (settings(), Vec::new());
    assert!(all.len() > 80, "{}", all.len());
    for (program, name) in all {
        let Some(help) = help::text(&program, "") else { return };
        if !has_word(&help, &name) && !page.contains(&format!("`{name}`")) {
            neither.push(format!("{program} {name}"));
        }
    }
    assert!(neither.is_empty(), "neither a setting of ours nor in {PAGE}: {neither:#?}");
}
