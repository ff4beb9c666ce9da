//! The node's firewall, read by tools only when something of ours was changed: they read all that others have there, too,
//! which takes seconds where that is tens of thousands of rules.

use std::collections::{BTreeMap, BTreeSet};

use model::Family;
use netfilter::{Fingerprint, Firewall, Options, RulesSnapshot, Wanted};
use rules::{ChainSet, Hook, Jump, Place, Rule, RuleSet, Saved, SavedRule, Target, node};

use crate::Error;

/// What was read last, and how it can be told that it is still so.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) firewall: Firewall,
    pub(crate) families: BTreeMap<Family, Saved>,
    /// None: it was changed while it was read.
    glance: Option<RulesSnapshot>,
}

/// Reads it in the calling thread's namespace, or finds that nothing of ours was changed since.
pub(crate) fn read(kept: Option<Kept>, options: &Options) -> Result<Kept, Error> {
    if let Some(Kept { firewall, families, glance: Some(before) }) = kept {
        let now = look(&families, Some(&before));
        if before.is_unchanged(&now) {
            return Ok(Kept { firewall, families, glance: Some(now) });
        }
    }
    let before = Fingerprint::of_node().ok();
    let (firewall, found) = Firewall::open(options)?;
    let families = found.families;
    let glance =
        Some(look(&families, None)).filter(|glance| before.is_some_and(|before| glance.is_of(&before)));
    Ok(Kept { firewall, families, glance })
}

fn look(families: &BTreeMap<Family, Saved>, before: Option<&RulesSnapshot>) -> RulesSnapshot {
    let rules = |family| jumps(families.get(&family));
    RulesSnapshot::of_node(&Wanted { owner: ChainSet::NODE, rules: &rules }, before)
}

/// Where our jumps are, or belong: one that comes is a change as well as one that goes.
fn jumps(saved: Option<&Saved>) -> RuleSet {
    let mut places: BTreeSet<_> = node::HOOKS.into_iter().collect();
    for (table, saved) in saved.iter().flat_map(|saved| &saved.tables) {
        let hooks = Hook::ALL.into_iter().filter(|hook| saved.rules_of(hook.name()).any(leads_to_ours));
        places.extend(hooks.map(|hook| (*table, hook)));
    }
    let mut rules = RuleSet::default();
    for (table, hook) in places {
        let jump = Jump { hook, rule: Rule::new(Target::Return), place: Place::First };
        rules.table(table).jumps.push(jump);
    }
    rules
}

fn leads_to_ours(rule: &SavedRule) -> bool {
    ChainSet::NODE.chains.iter().any(|chain| rule.text.contains(chain))
}
