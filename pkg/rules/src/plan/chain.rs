//! Comparison of one chain of ours with its observed rules.

use super::RulePlace;
use crate::{
    ir::{Chain, Rule, Table},
    parse::{SavedRule, SavedTable},
};

/// How a chain gets its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChainUpdate {
    /// The chain is created, or emptied if it exists, and filled.
    Fill,
    /// Rules are only missing: these are inserted in this order, each at its position. After a deletion from nf_tables,
    /// a tool does not end before the kernel has freed the deleted objects, which takes many times as long as the
    /// change.
    Insert(Vec<(RulePlace, Rule)>),
}

/// Difference between a chain and its desired rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChainDifference {
    /// The chain.
    pub(super) chain: Chain,
    /// Whether the chain exists.
    pub(super) exists: bool,
    /// Kind of the repair.
    pub(super) update: ChainUpdate,
    /// The difference as text.
    pub(super) why: String,
}

/// Compares a chain with its desired rules; `None` if it has exactly these.
pub(super) fn chain_difference(
    table: Table,
    chain: &Chain,
    desired: &[Rule],
    have: &SavedTable,
) -> Option<ChainDifference> {
    let exists = have.chains.iter().any(|name| *name == chain.0);
    let (update, what) = if exists {
        let found: Vec<&SavedRule> = have.chain_rules(&chain.0).collect();
        let what = first_difference(&found, desired)?;
        (missing_rules(&found, desired).map_or(ChainUpdate::Fill, ChainUpdate::Insert), what)
    } else {
        (ChainUpdate::Fill, "is missing".to_owned())
    };
    let why = format!("{}: chain {chain} {what}", table.as_str());
    Some(ChainDifference { chain: chain.clone(), exists, update, why })
}

/// Returns the rules that are missing among these, with their positions, if there is no other difference.
fn missing_rules(found: &[&SavedRule], desired: &[Rule]) -> Option<Vec<(RulePlace, Rule)>> {
    let mut rest = found.iter().peekable();
    let mut missing = Vec::new();
    for (number, rule) in (1..).zip(desired) {
        if rest.next_if(|found| found.rule.as_ref() == Some(rule)).is_none() {
            let before = |next: &&&SavedRule| RulePlace::Before { number, handle: next.handle };
            missing.push((rest.peek().map_or(RulePlace::End, before), rule.clone()));
        }
    }
    rest.peek().is_none().then_some(missing)
}

/// Returns how the first rule that differs from the desired one does so, as text.
fn first_difference(found: &[&SavedRule], desired: &[Rule]) -> Option<String> {
    for (index, rule) in desired.iter().enumerate() {
        match found.get(index) {
            Some(found) if found.rule.as_ref() == Some(rule) => {}
            Some(found) => return Some(format!("rule {} is {}, expected {rule}", index + 1, found.text)),
            None => return Some(format!("lacks rule {}: {rule}", index + 1)),
        }
    }
    found.get(desired.len()).map(|surplus| format!("has an unexpected rule: {}", surplus.text))
}
