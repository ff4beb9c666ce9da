//! The output of `iptables-save`.

use std::fmt::Write as _;

use model::Family;
use rules::{ChainSet, RuleChange, SavedTables, sidecar};

/// Any text parses or is an error; the result prints as a save that parses to the same; and every plan made from it is the same
/// each time, with a reason for each edit.
///
/// # Panics
/// If one of these does not hold.
pub fn saved_rules(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(saved) = SavedTables::parse(&text) else { return };
    assert_eq!(SavedTables::parse(&as_save(&saved)).as_ref(), Ok(&saved), "a save of what was parsed");
    for rule in saved.tables.values().flat_map(|table| &table.rules) {
        let Some(understood) = &rule.rule else { continue };
        let again = SavedTables::parse(&format!("*nat\n-A X {understood}\nCOMMIT\n")).unwrap_or_default();
        let again = again.tables.values().flat_map(|table| &table.rules).next();
        let again = again.and_then(|rule| rule.rule.as_ref());
        assert_eq!(again, Some(understood), "{:?} was understood, but not its own form", rule.text);
    }
    for family in Family::BOTH {
        let desired = sidecar::rule_set(&sidecar::SidecarConfig::default(), family);
        check(&ChainSet::SIDECAR.apply(&desired, &saved), &ChainSet::SIDECAR.apply(&desired, &saved));
    }
    for owner in [ChainSet::SIDECAR, ChainSet::NODE] {
        check(&owner.remove(&saved), &owner.remove(&saved));
    }
}

fn check(change: &RuleChange, again: &RuleChange) {
    assert_eq!(change, again);
    assert_eq!(change.is_empty(), change.restore_text().is_empty());
    assert!(change.edits.iter().all(|edit| !edit.why.is_empty()), "an edit without a reason: {change:?}");
}

fn as_save(saved: &SavedTables) -> String {
    let mut text = String::new();
    for (table, contents) in &saved.tables {
        let _ = writeln!(text, "*{}", table.as_str());
        for chain in &contents.chains {
            let _ = writeln!(text, ":{chain} - [0:0]");
        }
        for rule in &contents.rules {
            let _ = writeln!(text, "-A {} {}", rule.chain, rule.text);
        }
        text.push_str("COMMIT\n");
    }
    text
}
