//! Desired against observed: the smallest restore that changes a namespace's rules to ours, or removes them.
//!
//! A restore with `--noflush` empties and refills every chain that it declares: any unexpected rule in a chain of ours
//! is repaired this way. A chain that only lacks rules gets these, and a correct one is not declared. Built-in chains
//! are different: a restore appends a jump each time. So jumps are compared with the existing ones, and surplus or
//! misplaced ones are deleted in the same transaction.

mod chain;
mod change;

use std::{borrow::Cow, collections::BTreeSet};

use crate::{
    ir::{Chain, Hook, HookJump, JumpPlace, Rule, RuleSet, Table, TableRules, Target},
    parse::{self, SavedRule, SavedTable, SavedTables},
};

use chain::{ChainDifference, ChainUpdate, chain_difference};

pub use change::{AddedRule, RuleChange, RulePlace, TableEdit};

/// Owner of rules, defined by its chains, including those that Istio's own programs create. A chain of this list never
/// belongs to another component: its rules may be replaced or removed, and a rule that jumps to it, in any chain,
/// belongs to the same owner. ([`ChainSet::IN_POD`] is part of [`ChainSet::SIDECAR`], because Istio gave the chains the
/// same names: no pod has both.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainSet {
    /// Names of the chains, in any table.
    pub chains: &'static [&'static str],
    /// Name prefix of the native tables; `None`: the owner has none.
    pub native: Option<&'static str>,
}

impl ChainSet {
    /// Sidecar redirection, in a pod.
    pub const SIDECAR: ChainSet = ChainSet {
        chains: &[
            "ISTIO_INBOUND",
            "ISTIO_REDIRECT",
            "ISTIO_IN_REDIRECT",
            "ISTIO_OUTPUT",
            "ISTIO_OUTPUT_DNS",
            "ISTIO_DIVERT",
            "ISTIO_TPROXY",
            "ISTIO_PRERT",
            "ISTIO_DROP",
        ],
        native: Some("istio-proxy"),
    };

    /// Node-level capture, on the node and in the namespace of a ztunnel.
    pub const NODE: ChainSet = ChainSet {
        chains: &[
            "ztunnel-PREROUTING",
            "ztunnel-INPUT",
            "ztunnel-FORWARD",
            "ztunnel-OUTPUT",
            "ztunnel-POSTROUTING",
            "ztunnel-RETURNED",
            "ztunnel-SENT-0",
            "ztunnel-SENT-1",
            "ztunnel-KNOWN",
            "ztunnel-FIRST",
            "ztunnel-UPLINK",
        ],
        native: None,
    };

    /// In-pod capture, in a captured pod.
    pub const IN_POD: ChainSet =
        ChainSet { chains: &["ISTIO_PRERT", "ISTIO_OUTPUT"], native: Some("istio-ambient") };

    /// In-pod capture, on the node.
    pub const PROBES: ChainSet =
        ChainSet { chains: &["ISTIO_POSTRT", "ISTIO_PROBES"], native: Some("istio-ambient") };

    /// Returns whether a chain is this owner's.
    pub fn contains(self, chain: &str) -> bool {
        self.chains.contains(&chain)
    }

    /// Returns the change from `observed` to `desired`, which keeps foreign rules. `desired` has only chains of this
    /// owner.
    pub fn apply(self, desired: &RuleSet, observed: &SavedTables) -> RuleChange {
        let nothing = TableRules::default();
        let empty = SavedTable::default();
        let edits = Table::ALL.iter().filter_map(|table| {
            let want = desired.tables.get(table).unwrap_or(&nothing);
            self.edit_table(*table, want, observed.tables.get(table).unwrap_or(&empty))
        });
        RuleChange { edits: edits.collect() }
    }

    /// Returns the change that removes everything of this owner from `observed`: its chains, and every rule, in any
    /// chain, that jumps to one.
    pub fn remove(self, observed: &SavedTables) -> RuleChange {
        self.apply(&RuleSet::default(), observed)
    }
}

impl ChainSet {
    /// Returns the hooks whose built-in chains have jumps to this owner's chains.
    pub fn hooks_in(self, table: &SavedTable) -> BTreeSet<Hook> {
        table.rules_into_owned_chains(self).filter_map(|(_, rule)| Hook::from_name(&rule.chain)).collect()
    }

    /// Returns the rules outside of this owner's chains that jump there and are not understood otherwise.
    pub fn opaque_jumps(self, observed: &SavedTables) -> impl Iterator<Item = &SavedRule> {
        let jumps = observed.tables.values().flat_map(move |table| table.rules_into_owned_chains(self));
        jumps.map(|(_, rule)| rule).filter(|rule| rule.rule.is_none())
    }

    fn edit_table(self, table: Table, want: &TableRules, have: &SavedTable) -> Option<TableEdit> {
        let differ: Vec<ChainDifference> = want
            .chains
            .iter()
            .filter_map(|(chain, rules)| chain_difference(table, chain, rules, have))
            .collect();
        let mut why: Vec<String> = differ.iter().map(|differs| differs.why.clone()).collect();
        let stale: Vec<Chain> = have
            .owned_chains(self)
            .filter(|name| !want.chains.iter().any(|(chain, _)| chain.0 == *name))
            .map(chain_by_name)
            .collect();
        // The kernel keeps a chain that is referenced.
        let (mut kept, stale): (Vec<Chain>, Vec<Chain>) =
            stale.into_iter().partition(|chain| have.has_unnamed_jump(&chain.0));
        kept.retain(|chain| have.chain_rules(&chain.0).next().is_some());
        let unwanted = kept.iter().chain(&stale);
        why.extend(unwanted.map(|chain| format!("{}: chain {chain} should not exist", table.as_str())));
        let (deletes, jumps) = self.edit_jumps(table, want, have, &mut why);
        if why.is_empty() {
            return None;
        }
        let filled = differ.iter().filter(|differs| differs.update == ChainUpdate::Fill);
        let filled = filled.map(|differs| (differs.chain.clone(), differs.exists));
        let declare = filled.chain(kept.into_iter().map(|chain| (chain, true))).collect();
        let adds = differ.iter().flat_map(|differs| added_rules(differs, want)).collect();
        Some(TableEdit { table, declare, deletes, adds, jumps, removals: stale, why })
    }

    /// Returns the rules to delete and the jumps to add, so that each built-in chain gets exactly the desired one.
    fn edit_jumps(
        self,
        table: Table,
        want: &TableRules,
        have: &SavedTable,
        why: &mut Vec<String>,
    ) -> (Vec<SavedRule>, Vec<HookJump>) {
        let (mut deletes, mut adds) = (Vec::new(), Vec::new());
        let mut kept = vec![false; want.jumps.len()];
        for (index, found) in have.rules_into_owned_chains(self) {
            let desired = want.jumps.iter().position(|jump| {
                jump.hook.as_str() == found.chain
                    && found.rule.as_ref() == Some(&jump.rule)
                    && have.stands_well(index, jump)
            });
            match desired.and_then(|position| kept.get_mut(position)) {
                Some(kept) if !*kept => *kept = true,
                _ => {
                    why.push(format!(
                        "{}: {} has an unexpected rule: {}",
                        table.as_str(),
                        found.chain,
                        found.text
                    ));
                    deletes.push(found.clone());
                }
            }
        }
        for (jump, _) in want.jumps.iter().zip(&kept).filter(|(_, kept)| !**kept) {
            why.push(format!(
                "{}: {} does not jump to {}",
                table.as_str(),
                jump.hook.as_str(),
                jump.rule.target
            ));
            adds.push(jump.clone());
        }
        (deletes, adds)
    }
}

/// Returns the rules to add to a chain that differs, each with its position.
fn added_rules(differs: &ChainDifference, want: &TableRules) -> Vec<AddedRule> {
    let chain = &differs.chain;
    let add = |place, rule: &Rule| AddedRule { chain: chain.clone(), place, rule: rule.clone() };
    match &differs.update {
        ChainUpdate::Fill => want.chain_rules(chain).iter().map(|rule| add(RulePlace::End, rule)).collect(),
        ChainUpdate::Insert(rules) => rules.iter().map(|(place, rule)| add(*place, rule)).collect(),
    }
}

/// Returns whether rules of a chain can be deleted by its name. A name that is not UTF-8 is empty here, or, in a tool's
/// save, has replacement characters.
fn is_nameable(chain: &str) -> bool {
    !chain.is_empty() && !chain.contains(char::REPLACEMENT_CHARACTER)
}

fn chain_by_name(name: &str) -> Chain {
    Chain(name.to_owned().into())
}

impl SavedTable {
    fn owned_chains(&self, owner: ChainSet) -> impl Iterator<Item = &str> {
        self.chains.iter().map(String::as_str).filter(move |name| owner.contains(name))
    }

    /// Returns rules outside of the owner's chains that jump to one of them, with their position in their own chain, if
    /// that has a usable name.
    pub(crate) fn rules_into_owned_chains(
        &self,
        owner: ChainSet,
    ) -> impl Iterator<Item = (usize, &SavedRule)> {
        let position =
            |rule: &SavedRule| self.chain_rules(&rule.chain).position(|other| std::ptr::eq(other, rule));
        self.rules
            .iter()
            .filter(move |rule| is_nameable(&rule.chain) && !owner.contains(&rule.chain))
            .filter(move |rule| rule.jump_target().is_some_and(|chain| owner.contains(&chain)))
            .map(move |rule| (position(rule).unwrap_or(usize::MAX), rule))
    }

    /// Returns whether a rule of a chain without a usable name jumps to this chain.
    fn has_unnamed_jump(&self, chain: &str) -> bool {
        let mut unnamed = self.rules.iter().filter(|rule| !is_nameable(&rule.chain));
        unnamed.any(|rule| rule.jump_target().is_some_and(|target| target == chain))
    }

    /// Returns whether a jump is in the right place. A jump that must be first has to be the first rule of its chain,
    /// without a later copy, which could not be deleted, since `-D` deletes the first of equal rules. For other jumps
    /// any place is right.
    fn stands_well(&self, index: usize, jump: &HookJump) -> bool {
        let copies =
            || self.chain_rules(jump.hook.as_str()).filter(|rule| rule.rule.as_ref() == Some(&jump.rule));
        jump.place != JumpPlace::First || (index == 0 && copies().count() == 1)
    }
}

impl SavedRule {
    /// Returns the chain to which the rule jumps, even if its conditions are not understood.
    fn jump_target(&self) -> Option<Cow<'_, str>> {
        match &self.rule {
            Some(Rule { target: Target::Jump(chain) | Target::Goto(chain), .. }) => {
                Some(Cow::Borrowed(&chain.0))
            }
            Some(_) => None,
            None => parse::target_name(&self.text).map(Cow::Owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_that_a_chain_without_a_name_leads_to_is_emptied_and_kept() {
        let removed = |rules: &str| {
            let saved = format!("*nat\n:OUTPUT ACCEPT [0:0]\n:ISTIO_OUTPUT - [0:0]\n{rules}COMMIT\n");
            ChainSet::IN_POD.remove(&SavedTables::parse(&saved).unwrap()).restore_text()
        };
        let unnamed = ":\u{fffd} - [0:0]\n-A \u{fffd} -j ISTIO_OUTPUT\n";
        let jump = "-A OUTPUT -j ISTIO_OUTPUT\n-A ISTIO_OUTPUT -j ACCEPT\n";
        assert_eq!(removed(""), "*nat\n-F ISTIO_OUTPUT\n-X ISTIO_OUTPUT\nCOMMIT\n");
        assert_eq!(removed(unnamed), "");
        let emptied = "*nat\n:ISTIO_OUTPUT - [0:0]\n-D OUTPUT -j ISTIO_OUTPUT\nCOMMIT\n";
        assert_eq!(removed(&format!("{unnamed}{jump}")), emptied);
    }
}
