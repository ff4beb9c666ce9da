//! Native tables: the same rules as tables of nf_tables' family `inet`, as Istio creates them since 1.27 (sidecar) and
//! 1.28 (ambient). Both address families share a table, and a chain has the rules of both in one list.
//!
//! A rule that both families need exists once, for packets of both. A rule of only one family has its family as a
//! condition.

use model::Family;

use crate::ir::{Chain, Hook, Match, Rule, RuleSet, Table, TableRules, Target};

/// All desired tables of an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativeRules {
    /// Tables in the order of their creation.
    pub tables: Vec<NativeTable>,
}

/// A table of family `inet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeTable {
    /// Name, such as `istio-proxy-nat`.
    pub name: String,
    /// Base chains and others; rules jump only to others.
    pub chains: Vec<NativeChain>,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeChain {
    /// Name, such as `istio-output`; for a base chain, that of its hook.
    pub name: String,
    /// The built-in chain of iptables that this base chain replaces; `None`: reached only by jumps.
    pub hook: Option<(Table, Hook)>,
    /// Rules in order.
    pub rules: Vec<NativeRule>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeRule {
    /// Family to whose packets the rule applies; `None`: both.
    pub family: Option<Family>,
    /// Conditions and verdict. Chain names are those of native tables.
    pub rule: Rule,
    /// Whether the rule has a counter.
    pub counts: bool,
}

/// Istio's order of tables; all are created by one transaction.
const ORDER: [Table; 4] = [Table::Nat, Table::Mangle, Table::Raw, Table::Filter];

/// Returns the name of an owner's table: the owner's prefix, and the name of the iptables table.
pub fn table_name(prefix: &str, table: Table) -> String {
    format!("{prefix}-{}", table.as_str())
}

/// Returns the native name of an iptables chain: `istio-output` for `ISTIO_OUTPUT`.
pub fn chain_name(chain: &str) -> String {
    let name = chain.to_ascii_lowercase().replace('_', "-");
    name.replace("-prert", "-prerouting").replace("-postrt", "-postrouting")
}

impl NativeRules {
    /// Builds the tables of an owner with this name prefix from the rules of each family; `None`: the family has none.
    pub fn new(prefix: &str, v4: Option<&RuleSet>, v6: Option<&RuleSet>) -> NativeRules {
        let tables = ORDER.into_iter().filter_map(|table| {
            let chains = native_chains(table, [v4, v6].map(|rules| rules?.tables.get(&table)));
            (!chains.is_empty()).then(|| NativeTable { name: table_name(prefix, table), chains })
        });
        NativeRules { tables: tables.collect() }
    }

    /// Returns these rules without anything that sends packets into them: base chains are empty.
    #[must_use]
    pub fn without_jumps(mut self) -> NativeRules {
        let chains = self.tables.iter_mut().flat_map(|table| &mut table.chains);
        chains.filter(|chain| chain.hook.is_some()).for_each(|chain| chain.rules.clear());
        self
    }
}

/// A table of both families, IPv4 first.
type Families<'a> = [Option<&'a TableRules>; 2];

/// Returns one list of rules, merged from both families.
fn merge_rules(families: Families<'_>, list: &dyn Fn(&TableRules) -> Vec<Rule>) -> Vec<NativeRule> {
    let [v4, v6] = families.map(|rules| rules.map(list));
    merge_families(v4, v6)
}

fn native_chains(table: Table, families: Families<'_>) -> Vec<NativeChain> {
    let mut chains = Vec::new();
    let single_family = match families {
        [Some(_), None] => Some(Family::V4),
        [None, Some(_)] => Some(Family::V6),
        _ => None,
    };
    for hook in Hook::ALL {
        let jump = |rules: &TableRules| {
            rules.jumps.iter().filter(|jump| jump.hook == hook).map(|jump| jump.rule.clone()).collect()
        };
        // Rules without an address would also match packets of the other family.
        let scoped = |rule: NativeRule| NativeRule { family: rule.family.or(single_family), ..rule };
        let rules = merge_rules(families, &jump).into_iter().map(scoped);
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
    for (chain, _) in families.into_iter().flatten().flat_map(|rules| &rules.chains) {
        if !names.contains(&chain) {
            names.push(chain);
        }
    }
    chains.extend(names.into_iter().map(|chain| NativeChain {
        name: chain_name(&chain.0),
        hook: None,
        rules: merge_rules(families, &|rules| rules.chain_rules(chain).to_vec()),
    }));
    if table == Table::Raw {
        chains.iter_mut().flat_map(|chain| &mut chain.rules).for_each(|rule| ports_first(&mut rule.rule));
    }
    chains
}

/// Applies Istio's order in `raw`.
fn ports_first(rule: &mut Rule) {
    let is_port = |condition: &Match| {
        matches!(condition, Match::SourcePort(_) | Match::DestPort(_) | Match::DestPortRange(_))
    };
    let (ports, others): (Vec<_>, Vec<_>) = rule.matches.drain(..).partition(is_port);
    rule.matches = [ports, others].concat();
}

/// Removes the counter from unconditional jumps, as Istio does; all other rules have one.
fn uncounted_if_plain(rule: NativeRule) -> NativeRule {
    let is_plain =
        matches!(&rule.rule.target, Target::Jump(chain) if rule.rule == Rule::jump_to(chain.clone()));
    NativeRule { counts: rule.family.is_some() || !is_plain, ..rule }
}

/// Merges the rules of both families into one list that keeps the order of each family.
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
        let same = rest.iter().position(|other| *other == rule).filter(|_| !is_family_specific(&rule));
        if let Some((before, [_, after @ ..])) = same.map(|position| rest.split_at(position)) {
            before.iter().for_each(|rule| push_rule(&mut merged, Some(Family::V6), rule.clone()));
            push_rule(&mut merged, None, rule);
            rest = after;
            continue;
        }
        let names_address = is_family_specific(&rule);
        push_rule(&mut merged, Some(Family::V4), rule);
        // The rule at the same position of the other list usually has the same purpose.
        if let [next, after @ ..] = rest
            && names_address
            && is_family_specific(next)
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
        push_rule(&mut alone, is_family_specific(&rule).then_some(family), rule);
    }
    alone
}

/// Returns whether the rule has an address.
fn is_family_specific(rule: &Rule) -> bool {
    rule.source.is_some()
        || rule.dest.is_some()
        || matches!(rule.target, Target::Snat(_) | Target::Dnat { .. })
}

/// Appends a rule. Without a transparent socket, the `tproxy` expression lets a packet pass, while the target of
/// iptables drops it: here, a second rule drops it.
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
