//! A complete desired rule set of one address family: chains with their rules, the jumps into them, and the policy
//! route that accompanies them.

use std::collections::BTreeMap;

use model::{Family, Mark, TableId};

use super::{Chain, Hook, Rule, Table};

/// Position of our jump in a built-in chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JumpPlace {
    /// Before all foreign rules.
    First,
    /// Before the foreign rules that exist when the jump is created. Another component may add its rule before it
    /// later: a rule that need not be first must not cause a conflict.
    Early,
    /// After all existing rules.
    Last,
}

/// The single rule of ours in a built-in chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookJump {
    /// The built-in chain.
    pub hook: Hook,
    /// The rule; its target is a [`Target::Jump`](super::Target::Jump).
    pub rule: Rule,
    /// Position in the built-in chain.
    pub place: JumpPlace,
}

/// Desired rules of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableRules {
    /// At most one jump per built-in chain.
    pub jumps: Vec<HookJump>,
    /// Our chains with their rules, in the order in which they are printed.
    pub chains: Vec<(Chain, Vec<Rule>)>,
}

impl TableRules {
    /// Appends a rule to `chain`, which is created at its first rule.
    pub fn push(&mut self, chain: &Chain, rule: Rule) {
        self.chain_mut(chain).push(rule);
    }

    /// Returns the rules of `chain`, which is created if missing.
    pub fn chain_mut(&mut self, chain: &Chain) -> &mut Vec<Rule> {
        let index = self.chains.iter().position(|(name, _)| name == chain).unwrap_or_else(|| {
            self.chains.push((chain.clone(), Vec::new()));
            self.chains.len() - 1
        });
        #[expect(clippy::indexing_slicing, reason = "the index was found, or made, one line above")]
        &mut self.chains[index].1
    }

    /// Returns the rules of `chain`; empty if the chain does not exist.
    pub fn chain_rules(&self, chain: &Chain) -> &[Rule] {
        self.chains.iter().find(|(name, _)| name == chain).map_or(&[], |(_, rules)| rules)
    }
}

/// All desired rules of one family of one network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// Tables in commit order; a missing table contains nothing of ours.
    pub tables: BTreeMap<Table, TableRules>,
}

impl RuleSet {
    /// Returns the rule set of a family: its `rules` if the family is redirected, else an empty one, because other
    /// families must contain nothing of ours.
    pub fn if_redirected(
        redirected: &[Family],
        family: Family,
        rules: impl FnOnce(Family) -> RuleSet,
    ) -> RuleSet {
        if redirected.contains(&family) { rules(family) } else { RuleSet::default() }
    }

    /// Adds the only jump of a built-in chain.
    pub(crate) fn add_jump(&mut self, table: Table, hook: Hook, rule: Rule, place: JumpPlace) {
        self.table_mut(table).jumps.push(HookJump { hook, rule, place });
    }

    /// Returns the rules of `table`, which is created if missing.
    pub fn table_mut(&mut self, table: Table) -> &mut TableRules {
        self.tables.entry(table).or_default()
    }
}

/// A policy route that accompanies a rule set: packets with `mark` are delivered locally, whatever their address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRoute {
    /// The mark that selects the table.
    pub mark: Mark,
    /// The table that holds `local default dev lo`.
    pub table: TableId,
}
