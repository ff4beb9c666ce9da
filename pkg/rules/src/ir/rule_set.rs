//! A whole desired rule set for one address family: chains with their rules, the jumps that lead into them, and the policy
//! route that goes with them.

use std::collections::BTreeMap;

use model::{Family, Mark, TableId};

use super::{Chain, Hook, Rule, Table};

/// Where in a built-in chain our jump stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JumpPlace {
    /// Before everybody else's rules.
    First,
    /// Before everybody else's rules at the time when it is created. Another component that wants to be first may come before
    /// it later: nobody is to contend for a rule that need not be first.
    Early,
    /// After what is there.
    Last,
}

/// The one rule of ours in a built-in chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookJump {
    /// The built-in chain.
    pub hook: Hook,
    /// The rule; its target is a [`Target::Jump`](super::Target::Jump).
    pub rule: Rule,
    /// Place in the built-in chain.
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

    /// The rules of `chain`, created empty when it is new.
    pub fn chain_mut(&mut self, chain: &Chain) -> &mut Vec<Rule> {
        let index = self.chains.iter().position(|(name, _)| name == chain).unwrap_or_else(|| {
            self.chains.push((chain.clone(), Vec::new()));
            self.chains.len() - 1
        });
        #[expect(clippy::indexing_slicing, reason = "the index was found, or made, one line above")]
        &mut self.chains[index].1
    }

    /// The rules of `chain`; none when there is no such chain.
    pub fn rules_of(&self, chain: &Chain) -> &[Rule] {
        self.chains.iter().find(|(name, _)| name == chain).map_or(&[], |(_, rules)| rules)
    }
}

/// Everything that we want in one family of one network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// Tables in commit order; a table that is not here holds nothing of ours.
    pub tables: BTreeMap<Table, TableRules>,
}

impl RuleSet {
    /// Returns the rule set that a family needs: its `rules` if it is one of those that are redirected. Any other must hold
    /// nothing of ours, so its rule set is empty.
    pub fn if_redirected(
        redirected: &[Family],
        family: Family,
        rules: impl FnOnce(Family) -> RuleSet,
    ) -> RuleSet {
        if redirected.contains(&family) { rules(family) } else { RuleSet::default() }
    }

    /// The rules of `table`, created empty when it is new.
    pub fn table_mut(&mut self, table: Table) -> &mut TableRules {
        self.tables.entry(table).or_default()
    }
}

/// A policy route that goes with a rule set: packets with `mark` are delivered locally, whatever their address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalRoute {
    /// The mark that selects the table.
    pub mark: Mark,
    /// The table that holds `local default dev lo`.
    pub table: TableId,
}
