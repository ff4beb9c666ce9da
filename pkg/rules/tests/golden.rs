//! Every case's printed text compared with `golden/<case>.txt`. After an intended change: `MILLRACE_UPDATE_GOLDEN=1 cargo test -p
//! rules --test golden`, then read the diff.
#![expect(clippy::disallowed_methods, reason = "a test of a pure crate may read its golden files")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod cases;

use std::{fs, path::Path};

use model::Family;
use rules::{ChainSet, SavedTables, sidecar};

#[test]
fn every_case_prints_its_golden_text() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for case in cases::all() {
        let mut text = String::new();
        for family in Family::BOTH {
            let rules = sidecar::rule_set(&case.config, family);
            let change = ChainSet::SIDECAR.apply(&rules, &SavedTables::default());
            text.push_str(&format!("# {family}\n{}", change.restore_text()));
        }
        let path = dir.join(case.name).with_extension("txt");
        if std::env::var_os("MILLRACE_UPDATE_GOLDEN").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let golden = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, golden, "case {}", case.name);
    }
}

#[test]
fn golden_files_and_cases_are_the_same_set() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    files.sort();
    let mut names: Vec<_> = cases::all().iter().map(|case| case.name.to_owned()).collect();
    names.sort();
    assert_eq!(files, names);
}
