//! Actual output of both backends after restoring a case (`saves/`, created by `saves/regenerate`): it parses completely, no change
//! is left, and no damage to such a text makes the parser panic.
#![expect(clippy::disallowed_methods, reason = "a test of a pure crate may read its example files")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

#[allow(unreachable_pub, dead_code, reason = "shared with other tests")]
mod cases;

use std::{fs, path::Path, sync::LazyLock};

use model::Family;
use proptest::{collection::vec, prelude::*, sample};
use rules::{ChainSet, Hook, SavedTables, sidecar};

struct Save {
    name: String,
    backend: String,
    family: Family,
    case: String,
    text: String,
}

static SAVES: LazyLock<Vec<Save>> = LazyLock::new(|| {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/saves");
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut saves: Vec<Save> =
        files.filter(|path| path.extension().is_some_and(|e| e == "txt")).map(read).collect();
    saves.sort_by(|a, b| a.name.cmp(&b.name));
    saves
});

/// `BACKEND-FAMILY-CASE.txt`
fn read(path: impl AsRef<Path>) -> Save {
    let name = path.as_ref().file_stem().unwrap().to_str().unwrap().to_owned();
    let mut parts = name.splitn(3, '-').map(str::to_owned);
    let mut part = || parts.next().unwrap();
    let (backend, family, case) = (part(), part(), part());
    let family = if family == "4" { Family::V4 } else { Family::V6 };
    Save { text: fs::read_to_string(&path).unwrap(), name, backend, family, case }
}

fn desired(save: &Save) -> rules::RuleSet {
    let case = cases::all().into_iter().find(|case| case.name == save.case);
    sidecar::rule_set(&case.unwrap().config, save.family)
}

#[test]
fn both_backends_and_families_have_the_same_cases() {
    let of = |backend: &str, family| -> Vec<&str> {
        let of = SAVES.iter().filter(|save| save.backend == backend && save.family == family);
        of.map(|save| save.case.as_str()).collect()
    };
    let first = of("nft", Family::V4);
    assert!(first.len() >= 6, "{first:?}");
    for (backend, family) in [("nft", Family::V6), ("legacy", Family::V4), ("legacy", Family::V6)] {
        assert_eq!(of(backend, family), first, "{backend} {family}");
    }
}

#[test]
fn a_real_save_is_understood_to_the_last_rule() {
    for save in SAVES.iter() {
        let saved = SavedTables::parse(&save.text).unwrap();
        let rules: Vec<_> = saved.tables.values().flat_map(|table| &table.rules).collect();
        assert_eq!(rules.len(), save.text.lines().filter(|line| line.starts_with("-A ")).count());
        for rule in rules {
            assert!(rule.rule.is_some(), "{}: -A {} {}", save.name, rule.chain, rule.text);
        }
    }
}

#[test]
fn after_a_restore_nothing_is_left_to_do() {
    for save in SAVES.iter() {
        let saved = SavedTables::parse(&save.text).unwrap();
        let change = ChainSet::SIDECAR.apply(&desired(save), &saved);
        assert!(change.is_empty(), "{}: {:?}", save.name, change.reasons().collect::<Vec<_>>());
    }
}

#[test]
fn a_removal_from_a_real_save_names_every_chain_and_jump() {
    for save in SAVES.iter() {
        let saved = SavedTables::parse(&save.text).unwrap();
        let text = ChainSet::SIDECAR.remove(&saved).restore_text();
        let has = |edit: String| text.lines().any(|line| line == edit);
        for table in saved.tables.values() {
            for chain in table.chains.iter().filter(|chain| ChainSet::SIDECAR.contains(chain)) {
                assert!(has(format!("-X {chain}")), "{}: {chain}", save.name);
            }
            let hooks =
                table.rules.iter().filter(|rule| Hook::ALL.iter().any(|hook| hook.as_str() == rule.chain));
            for rule in hooks {
                assert!(has(format!("-D {} {}", rule.chain, rule.text)), "{}", save.name);
            }
        }
    }
}

#[test]
fn a_real_save_cut_short_inside_a_table_is_an_error() {
    for save in SAVES.iter() {
        for (end, _) in save.text.match_indices("-A ISTIO_OUTPUT ") {
            assert!(SavedTables::parse(&save.text[..end]).is_err(), "{} cut at {end}", save.name);
        }
    }
}

/// The kernel's legacy tables can have both; a save shows which rules are whose by the name alone.
#[test]
fn two_chains_with_one_name_are_an_error() {
    let save = |chains: &str| format!("*nat\n:OUTPUT ACCEPT [0:0]\n{chains}COMMIT\n");
    let chain = ":ISTIO_OUTPUT - [0:0]\n";
    assert!(SavedTables::parse(&save(chain)).is_ok());
    for second in [chain, ":OUTPUT - [0:0]\n"] {
        assert!(SavedTables::parse_for(&save(&[chain, second].concat()), &[ChainSet::SIDECAR]).is_err());
    }
}

/// One damage to a text.
#[derive(Clone, Debug)]
enum Damage {
    Delete(usize),
    Insert(&'static str),
    SwapLines(sample::Index),
    Truncate,
    Repeat(usize),
}

const WORDS: [&str; 16] = [
    " ! ",
    "\"",
    "\\",
    "\n",
    "-j ",
    "-m ",
    "COMMIT\n",
    "*nat\n",
    ":",
    "-A ",
    "/",
    ",",
    "0x",
    " 99999999999 ",
    "\u{e4}",
    "-g ISTIO_OUTPUT ",
];

fn damage() -> impl Strategy<Value = (Damage, sample::Index)> {
    let damage = prop_oneof![
        (1_usize..20).prop_map(Damage::Delete),
        sample::select(WORDS.to_vec()).prop_map(Damage::Insert),
        any::<sample::Index>().prop_map(Damage::SwapLines),
        Just(Damage::Truncate),
        (1_usize..80).prop_map(Damage::Repeat),
    ];
    (damage, any::<sample::Index>())
}

fn damaged(mut text: Vec<char>, damage: &Damage, at: &sample::Index) -> Vec<char> {
    let at = at.index(text.len() + 1);
    match damage {
        Damage::Delete(count) => drop(text.drain(at..(at + count).min(text.len()))),
        Damage::Insert(word) => drop(text.splice(at..at, word.chars())),
        Damage::Truncate => text.truncate(at),
        Damage::Repeat(count) => {
            let part = text[at..(at + count).min(text.len())].to_vec();
            text.splice(at..at, part);
        }
        Damage::SwapLines(other) => {
            let mut lines: Vec<&[char]> = text.split(|c| *c == '\n').collect();
            let (one, other) = (at % lines.len(), other.index(lines.len()));
            lines.swap(one, other);
            return lines.join(&'\n');
        }
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_save_is_an_error_or_understood_in_part(
        which in any::<sample::Index>(),
        damages in vec(damage(), 1..6),
    ) {
        let save = which.get(&SAVES);
        let chars = damages.iter().fold(save.text.chars().collect(), |text, (damage, at)| damaged(text, damage, at));
        let text: String = chars.into_iter().collect();
        if let Ok(saved) = SavedTables::parse(&text) {
            let change = ChainSet::SIDECAR.apply(&desired(save), &saved);
            prop_assert_eq!(change.is_empty(), change.reasons().next().is_none());
            for rule in saved.tables.values().flat_map(|table| &table.rules) {
                let Some(understood) = &rule.rule else { continue };
                let again = SavedTables::parse(&format!("*nat\n-A X {understood}\nCOMMIT\n")).unwrap();
                let again = again.tables.into_values().flat_map(|table| table.rules).next().unwrap();
                prop_assert_eq!(again.rule.as_ref(), Some(understood), "{}", rule.text);
            }
        }
    }
}
