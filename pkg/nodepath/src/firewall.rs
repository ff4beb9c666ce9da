//! The node's firewall, read by tools only when something of ours was changed: they read all that others have there, too,
//! which takes seconds where that is tens of thousands of rules.

use std::collections::{BTreeMap, BTreeSet};

use model::Family;
use netfilter::{Firewall, FirewallOptions, RulesFingerprint, RulesSnapshot, WantedRules};
use rules::{ChainSet, Hook, HookJump, JumpPlace, Rule, RuleSet, SavedRule, SavedTables, Target, node};

use crate::Error;

/// The firewall as last read, and a snapshot that shows whether it is still the same.
#[derive(Clone, Debug)]
pub(crate) struct CachedFirewall {
    pub(crate) firewall: Firewall,
    pub(crate) families: BTreeMap<Family, SavedTables>,
    /// Snapshot of our rules. `None` if the firewall changed while it was read, or if it is not known whether it did.
    glance: Option<RulesSnapshot>,
}

/// Reads it in the calling thread's namespace, or finds that nothing of ours was changed since.
pub(crate) fn read(kept: Option<CachedFirewall>, options: &FirewallOptions) -> Result<CachedFirewall, Error> {
    if let Some(CachedFirewall { firewall, families, glance: Some(before) }) = kept {
        let now = look(&families, Some(&before));
        if before.is_unchanged(&now) {
            return Ok(CachedFirewall { firewall, families, glance: Some(now) });
        }
    }
    let before = RulesFingerprint::of_node().ok();
    let (firewall, found) = Firewall::open(options)?;
    let families = found.families;
    let glance =
        Some(look(&families, None)).filter(|glance| before.is_some_and(|before| glance.is_of(&before)));
    Ok(CachedFirewall { firewall, families, glance })
}

/// Takes a snapshot of our rules in the calling thread's namespace, where the node path has them. `before`: the last one.
#[must_use]
pub fn rules_snapshot(before: Option<&RulesSnapshot>) -> RulesSnapshot {
    look(&BTreeMap::new(), before)
}

fn look(families: &BTreeMap<Family, SavedTables>, before: Option<&RulesSnapshot>) -> RulesSnapshot {
    let rules = |family| jumps(families.get(&family));
    RulesSnapshot::of_node(&WantedRules { owner: ChainSet::NODE, rules: &rules }, before)
}

/// Where our jumps are, or belong: one that comes is a change as well as one that goes.
fn jumps(saved: Option<&SavedTables>) -> RuleSet {
    let mut places: BTreeSet<_> = node::HOOKS.into_iter().collect();
    for (table, saved) in saved.iter().flat_map(|saved| &saved.tables) {
        let hooks = Hook::ALL.into_iter().filter(|hook| saved.rules_of(hook.name()).any(leads_to_ours));
        places.extend(hooks.map(|hook| (*table, hook)));
    }
    let mut rules = RuleSet::default();
    for (table, hook) in places {
        let jump = HookJump { hook, rule: Rule::new(Target::Return), place: JumpPlace::First };
        rules.table(table).jumps.push(jump);
    }
    rules
}

fn leads_to_ours(rule: &SavedRule) -> bool {
    ChainSet::NODE.chains.iter().any(|chain| rule.text.contains(chain))
}
