//! Native tables: the same rules as tables of nf_tables' family `inet`, as Istio makes them since 1.27 (sidecar) and 1.28
//! (ambient). Both address families share a table, and a chain has the rules of both in one list.
//!
//! A rule that both families have is there once, for packets of either. One that only a single family has says so.

use model::Family;

use crate::ir::{Chain, Hook, Match, Rule, RuleSet, Table, TableRules, Target};

/// All tables of an owner, as they shall be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeRules {
    /// In the order in which they are made.
    pub tables: Vec<NativeTable>,
}

/// A table of family `inet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeTable {
    /// Such as `istio-proxy-nat`.
    pub name: String,
    /// Base chains and others; a rule jumps to others only.
    pub chains: Vec<NativeChain>,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeChain {
    /// Such as `istio-output`; of a base chain, that of its hook.
    pub name: String,
    /// Where packets enter, as they would the built-in chain of that table; none: only by a jump.
    pub hook: Option<(Table, Hook)>,
    /// In their order.
    pub rules: Vec<NativeRule>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeRule {
    /// Family whose packets the rule applies to. `None` means either family.
    pub family: Option<Family>,
    /// Conditions and verdict. Names of chains are those of native tables.
    pub rule: Rule,
    /// Whether it counts packets.
    pub counts: bool,
}

/// Istio's order; all are made by one transaction.
const ORDER: [Table; 4] = [Table::Nat, Table::Mangle, Table::Raw, Table::Filter];

/// The name of an owner's table: the owner's prefix, and that of the table in iptables.
pub fn table_name(prefix: &str, table: Table) -> String {
    format!("{prefix}-{}", table.as_str())
}

/// The name of a chain that iptables knows as `ISTIO_OUTPUT`: `istio-output`.
pub fn chain_name(chain: &str) -> String {
    let name = chain.to_ascii_lowercase().replace('_', "-");
    name.replace("-prert", "-prerouting").replace("-postrt", "-postrouting")
}

impl NativeRules {
    /// The rules of an owner whose tables begin with `prefix`, from those of each family; `None`: the family has none.
    pub fn new<'a>(prefix: &str, v4: Option<&'a RuleSet>, v6: Option<&'a RuleSet>) -> NativeRules {
        let tables = ORDER.into_iter().filter_map(|table| {
            let of = |rules: Option<&'a RuleSet>| rules.and_then(|rules| rules.tables.get(&table));
            let chains = native_chains(table, &Families { v4: of(v4), v6: of(v6) });
            (!chains.is_empty()).then(|| NativeTable { name: table_name(prefix, table), chains })
        });
        NativeRules { tables: tables.collect() }
    }

    /// Returns these rules as they are before any packet is led into them: base chains are empty.
    #[must_use]
    pub fn without_jumps(mut self) -> NativeRules {
        let chains = self.tables.iter_mut().flat_map(|table| &mut table.chains);
        chains.filter(|chain| chain.hook.is_some()).for_each(|chain| chain.rules.clear());
        self
    }
}

/// A table of both families.
struct Families<'a> {
    v4: Option<&'a TableRules>,
    v6: Option<&'a TableRules>,
}

impl<'a> Families<'a> {
    /// The rules of one list, merged.
    fn merge_rules(&self, list: &dyn Fn(&TableRules) -> Vec<Rule>) -> Vec<NativeRule> {
        let of = |table: Option<&TableRules>| table.map(list);
        merge_families(of(self.v4), of(self.v6))
    }

    /// The family, if only one has rules here.
    fn single_family(&self) -> Option<Family> {
        match (&self.v4, &self.v6) {
            (Some(_), None) => Some(Family::V4),
            (None, Some(_)) => Some(Family::V6),
            _ => None,
        }
    }
}

fn native_chains(table: Table, families: &Families<'_>) -> Vec<NativeChain> {
    let mut chains = Vec::new();
    for hook in Hook::ALL {
        let jump = |rules: &TableRules| {
            rules.jumps.iter().filter(|jump| jump.hook == hook).map(|jump| jump.rule.clone()).collect()
        };
        // Rules that name no address would take packets of the other family, too.
        let scoped =
            |rule: NativeRule| NativeRule { family: rule.family.or(families.single_family()), ..rule };
        let rules = families.merge_rules(&jump).into_iter().map(scoped);
        let rules: Vec<NativeRule> = rules.map(uncounted_if_plain).collect();
        if !rules.is_empty() {
            chains.push(NativeChain {
                name: hook.as_str().to_ascii_lowercase(),
                hook: Some((table, hook)),
                rules,
            });
        }
    }
    let mut names: Vec<&Chain> = Vec::new();
    for (chain, _) in families.v4.into_iter().chain(families.v6).flat_map(|rules| &rules.chains) {
        if !names.contains(&chain) {
            names.push(chain);
        }
    }
    chains.extend(names.into_iter().map(|chain| NativeChain {
        name: chain_name(&chain.0),
        hook: None,
        rules: families.merge_rules(&|rules| rules.rules_of(chain).to_vec()),
    }));
    if table == Table::Raw {
        chains.iter_mut().flat_map(|chain| &mut chain.rules).for_each(|rule| ports_first(&mut rule.rule));
    }
    chains
}

/// The order of Istio in `raw`.
fn ports_first(rule: &mut Rule) {
    let is_port = |condition: &Match| {
        matches!(condition, Match::SourcePort(_) | Match::DestPort(_) | Match::DestPortRange(_))
    };
    let (ports, others): (Vec<_>, Vec<_>) = rule.matches.drain(..).partition(is_port);
    rule.matches = [ports, others].concat();
}

/// Istio counts at every rule but the jumps that take every packet.
fn uncounted_if_plain(rule: NativeRule) -> NativeRule {
    let is_plain =
        matches!(&rule.rule.target, Target::Jump(chain) if rule.rule == Rule::jump_to(chain.clone()));
    NativeRule { counts: rule.family.is_some() || !is_plain, ..rule }
}

/// One list of the rules of both families that gives each family its own in their order.
fn merge_families(v4: Option<Vec<Rule>>, v6: Option<Vec<Rule>>) -> Vec<NativeRule> {
    let mut merged = Vec::new();
    let (v4, v6) = match (v4, v6) {
        (Some(v4), Some(v6)) => (v4, v6),
        (Some(rules), None) => return single_family_rules(Family::V4, rules),
        (None, Some(rules)) => return single_family_rules(Family::V6, rules),
        (None, None) => return merged,
    };
    let mut rest = v6.as_slice();
    for rule in v4 {
        let same = rest.iter().position(|other| *other == rule).filter(|_| !is_of_one_family(&rule));
        if let Some((before, [_, after @ ..])) = same.map(|position| rest.split_at(position)) {
            before.iter().for_each(|rule| push_rule(&mut merged, Some(Family::V6), rule.clone()));
            push_rule(&mut merged, None, rule);
            rest = after;
            continue;
        }
        let names_address = is_of_one_family(&rule);
        push_rule(&mut merged, Some(Family::V4), rule);
        // What stands at the same place of the other list is about the same, as a rule.
        if let [next, after @ ..] = rest
            && names_address
            && is_of_one_family(next)
        {
            push_rule(&mut merged, Some(Family::V6), next.clone());
            rest = after;
        }
    }
    rest.iter().for_each(|rule| push_rule(&mut merged, Some(Family::V6), rule.clone()));
    merged
}

fn single_family_rules(family: Family, rules: Vec<Rule>) -> Vec<NativeRule> {
    let mut alone = Vec::new();
    for rule in rules {
        push_rule(&mut alone, is_of_one_family(&rule).then_some(family), rule);
    }
    alone
}

/// Whether the rule names an address.
fn is_of_one_family(rule: &Rule) -> bool {
    rule.source.is_some()
        || rule.dest.is_some()
        || matches!(rule.target, Target::Snat(_) | Target::Dnat { .. })
}

/// The expression that hands a packet to a transparent socket lets it pass if there is none, where the target of iptables
/// drops it: here, a rule behind it does.
fn push_rule(list: &mut Vec<NativeRule>, family: Option<Family>, mut rule: Rule) {
    if let Target::Jump(chain) | Target::Goto(chain) = &mut rule.target {
        *chain = Chain(chain_name(&chain.0).into());
    }
    let dropped = matches!(rule.target, Target::Tproxy { .. }).then(|| rule.with_target(Target::Drop));
    list.extend([Some(rule), dropped].into_iter().flatten().map(|rule| NativeRule {
        family,
        rule,
        counts: true,
    }));
}

#[cfg(test)]
mod tests;
