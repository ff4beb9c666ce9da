//! Desired against observed: the smallest restore that makes a namespace's rules ours, or that removes them.
//!
//! A restore with `--noflush` empties and refills every chain that it declares: so is one of ours repaired that holds
//! anything wrong. One that only lacks rules gets these, and one that is as it should be is not named. Built-in chains are
//! different: a jump is appended anew each time. So jumps are compared with what is there, and surplus or misplaced ones
//! are deleted in the same transaction.

mod chain;

use std::{borrow::Cow, mem};

use crate::{
    ir::{Chain, HookJump, JumpPlace, Rule, RuleSet, Table, TableRules, Target},
    parse::{self, SavedRule, SavedTable, SavedTables},
};

use chain::{ChainDifference, ChainUpdate, difference};

/// Whose rules a plan is about: the chains by which they are known, those that Istio's own programs make among them. A
/// chain of this list is never anybody else's: what is found in it may be replaced or removed, and a rule that leads
/// into it, wherever it stands, belongs to the same owner. ([`ChainSet::IN_POD`] is part of [`ChainSet::SIDECAR`], because
/// Istio gave the chains the same names: no pod has both.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainSet {
    /// The chains' names, whatever the table.
    pub chains: &'static [&'static str],
    /// In the native dialect, how the names of the tables begin; none: there it has no rules.
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

    /// Ambient redirection, on the node and in the namespace of a ztunnel.
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

    /// True for a chain of this owner.
    #[must_use]
    pub fn contains(self, chain: &str) -> bool {
        self.chains.contains(&chain)
    }

    /// The change that turns `observed` into `desired`, leaving rules of others alone. `desired` has chains of this
    /// owner only.
    #[must_use]
    pub fn apply(self, desired: &RuleSet, observed: &SavedTables) -> RuleChange {
        let nothing = TableRules::default();
        let empty = SavedTable::default();
        let edit = |table: &Table| {
            let want = desired.tables.get(table).unwrap_or(&nothing);
            self.edit_table(*table, want, observed.tables.get(table).unwrap_or(&empty))
        };
        RuleChange { edits: Table::ALL.iter().filter_map(edit).collect() }
    }

    /// The change that removes everything of this owner's from `observed`: its chains and every rule, anywhere, that
    /// jumps to one.
    #[must_use]
    pub fn remove(self, observed: &SavedTables) -> RuleChange {
        self.apply(&RuleSet::default(), observed)
    }
}

/// A rule of ours for one of our chains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedRule {
    /// The chain.
    pub chain: Chain,
    /// Where in it.
    pub place: RulePlace,
    /// The rule.
    pub rule: Rule,
}

/// Where in a chain a rule is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulePlace {
    /// Behind what is there.
    End,
    /// In front of a rule that is there.
    Before {
        /// The number that the added rule will have, counted from 1.
        number: usize,
        /// The handle of the rule that is there; see [`SavedRule::handle`].
        handle: Option<u64>,
    },
}

impl AddedRule {
    /// The line that adds the rule. One with very many owners is written in fewer words, which mean the same: the usual
    /// form has five for each, so that Istio's limit of 64 groups would be out of reach.
    fn command(&self) -> String {
        let line = match self.place {
            RulePlace::End => format!("-A {} {}", self.chain, self.rule),
            RulePlace::Before { number, .. } => format!("-I {} {number} {}", self.chain, self.rule),
        };
        if line.split(' ').count() <= MAX_WORDS {
            return line;
        }
        ["uid", "gid"].iter().fold(line, |line, owner| {
            line.replace(&format!("-m owner ! --{owner}-owner "), &format!("-mowner ! --{owner}-owner="))
        })
    }
}

/// What one table needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEdit {
    /// The table.
    pub table: Table,
    /// Those of our chains that are made, or emptied and filled anew; true for one that is there already.
    pub declare: Vec<(Chain, bool)>,
    /// What follows, in this order: rules of others that lead into our chains, and jumps in the wrong place, deleted.
    pub deletes: Vec<SavedRule>,
    /// Our rules added to our chains.
    pub adds: Vec<AddedRule>,
    /// Jumps to our chains.
    pub jumps: Vec<HookJump>,
    /// Stale chains, emptied and removed.
    pub removals: Vec<Chain>,
    /// In words, what was missing or superfluous; for logs and for CHECK.
    pub why: Vec<String>,
}

impl TableEdit {
    /// The table's section of a restore file.
    fn restore_text(&self) -> String {
        let mut text = format!("*{}\n", self.table.name());
        for (chain, _) in &self.declare {
            text.push_str(&format!(":{chain} - [0:0]\n"));
        }
        for command in self.commands() {
            text.push_str(&command);
            text.push('\n');
        }
        text.push_str("COMMIT\n");
        text
    }

    /// Each as the arguments of an `iptables` call behind `-t TABLE`.
    fn commands(&self) -> impl Iterator<Item = String> {
        let deletes = self.deletes.iter().map(|rule| format!("-D {} {}", rule.chain, rule.text));
        let adds = self.adds.iter().map(AddedRule::command);
        let jumps = self.jumps.iter().map(HookJump::command);
        let flushes = self.removals.iter().map(|chain| format!("-F {chain}"));
        let removals = self.removals.iter().map(|chain| format!("-X {chain}"));
        deletes.chain(adds).chain(jumps).chain(flushes).chain(removals)
    }

    /// The part that no packet comes to before the jumps are there, and the rest.
    fn split(&self) -> (TableEdit, TableEdit) {
        let mut lead = self.clone();
        let (declare, adds) = (mem::take(&mut lead.declare), mem::take(&mut lead.adds));
        let fill = TableEdit {
            table: self.table,
            declare,
            deletes: Vec::new(),
            adds,
            jumps: Vec::new(),
            removals: Vec::new(),
            why: Vec::new(),
        };
        (fill, lead)
    }

    fn is_empty(&self) -> bool {
        self.declare.is_empty() && self.commands().next().is_none()
    }

    /// The same as single `iptables` calls, each split into its arguments.
    fn calls(&self) -> impl Iterator<Item = Vec<String>> {
        let declare = self
            .declare
            .iter()
            .map(|(chain, exists)| format!("{} {chain}", if *exists { "-F" } else { "-N" }));
        let table = self.table.name();
        declare
            .chain(self.commands())
            .filter_map(move |command| parse::words(&format!("-t {table} {command}")))
    }
}

/// What a namespace needs: an edit per table that differs. `None`: it is as desired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleChange {
    /// Edits in commit order.
    pub edits: Vec<TableEdit>,
}

impl RuleChange {
    /// Nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// The input for one `iptables-restore --noflush`; empty when there is nothing to do.
    #[must_use]
    pub fn restore_text(&self) -> String {
        self.edits.iter().map(TableEdit::restore_text).collect()
    }

    /// The same change as single `iptables` calls, in order, each split into its arguments; not atomic.
    #[must_use]
    pub fn calls(&self) -> Vec<Vec<String>> {
        self.edits.iter().flat_map(TableEdit::calls).collect()
    }

    /// The same change in two steps: our chains with their rules, so that whatever these need of the kernel is in use, and then
    /// what leads packets into them. `None`: nothing leads packets into them that did not before.
    #[must_use]
    pub fn in_two_steps(&self) -> Option<(RuleChange, RuleChange)> {
        if self.edits.iter().all(|edit| edit.jumps.is_empty()) {
            return None;
        }
        let (fill, lead): (Vec<_>, Vec<_>) = self.edits.iter().map(TableEdit::split).unzip();
        let of = |edits: Vec<TableEdit>| RuleChange {
            edits: edits.into_iter().filter(|edit| !edit.is_empty()).collect(),
        };
        Some((of(fill), of(lead)))
    }

    /// Every difference in words.
    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        self.edits.iter().flat_map(|edit| edit.why.iter().map(String::as_str))
    }
}

/// [`ChainSet::apply`] for sidecar redirection.
#[must_use]
pub fn apply(desired: &RuleSet, observed: &SavedTables) -> RuleChange {
    ChainSet::SIDECAR.apply(desired, observed)
}

/// [`ChainSet::remove`] for sidecar redirection.
#[must_use]
pub fn remove(observed: &SavedTables) -> RuleChange {
    ChainSet::SIDECAR.remove(observed)
}

impl ChainSet {
    fn edit_table(self, table: Table, want: &TableRules, have: &SavedTable) -> Option<TableEdit> {
        let differ: Vec<ChainDifference> =
            want.chains.iter().filter_map(|(chain, rules)| difference(table, chain, rules, have)).collect();
        let mut why: Vec<String> = differ.iter().map(|differs| differs.why.clone()).collect();
        let stale: Vec<Chain> = have
            .chains_of(self)
            .filter(|name| !want.chains.iter().any(|(chain, _)| chain.0 == *name))
            .map(chain_of)
            .collect();
        why.extend(stale.iter().map(|chain| format!("{}: chain {chain} is not wanted", table.name())));
        let (deletes, jumps) = self.edit_jumps(table, want, have, &mut why);
        if why.is_empty() {
            return None;
        }
        let filled = differ.iter().filter(|differs| differs.way == ChainUpdate::Fill);
        let declare = filled.map(|differs| (differs.chain.clone(), differs.exists)).collect();
        let adds = differ.iter().flat_map(|differs| additions(differs, want)).collect();
        Some(TableEdit { table, declare, deletes, adds, jumps, removals: stale, why })
    }

    /// Rules to delete and jumps to add, so that each built-in chain ends with exactly the wanted one.
    fn edit_jumps(
        self,
        table: Table,
        want: &TableRules,
        have: &SavedTable,
        why: &mut Vec<String>,
    ) -> (Vec<SavedRule>, Vec<HookJump>) {
        let (mut deletes, mut adds) = (Vec::new(), Vec::new());
        let mut kept = vec![false; want.jumps.len()];
        for (index, found) in have.rules_into_chains_of(self) {
            let wanted = want.jumps.iter().position(|jump| {
                jump.hook.name() == found.chain
                    && found.rule.as_ref() == Some(&jump.rule)
                    && have.stands_well(index, jump)
            });
            match wanted.and_then(|position| kept.get_mut(position)) {
                Some(kept) if !*kept => *kept = true,
                _ => {
                    why.push(format!(
                        "{}: {} has a rule that is not wanted: {}",
                        table.name(),
                        found.chain,
                        found.text
                    ));
                    deletes.push(found.clone());
                }
            }
        }
        for (jump, _) in want.jumps.iter().zip(&kept).filter(|(_, kept)| !**kept) {
            why.push(format!("{}: {} does not jump to {}", table.name(), jump.hook.name(), jump.rule.target));
            adds.push(jump.clone());
        }
        (deletes, adds)
    }
}

/// Words of one line that a restore can read (iptables: `xshared.h`, `MAX_ARGC`), less some for what it adds.
const MAX_WORDS: usize = 200;

/// What gives a chain its rules.
fn additions(differs: &ChainDifference, want: &TableRules) -> Vec<AddedRule> {
    let chain = &differs.chain;
    let add = |place, rule: &Rule| AddedRule { chain: chain.clone(), place, rule: rule.clone() };
    match &differs.way {
        ChainUpdate::Fill => want.chain(chain).iter().map(|rule| add(RulePlace::End, rule)).collect(),
        ChainUpdate::Insert(rules) => rules.iter().map(|(place, rule)| add(*place, rule)).collect(),
    }
}

fn chain_of(name: &str) -> Chain {
    Chain(name.to_owned().into())
}

impl HookJump {
    /// The restore line (or command arguments) that puts the jump in place.
    pub(crate) fn command(&self) -> String {
        match self.place {
            JumpPlace::First | JumpPlace::Early => format!("-I {} 1 {}", self.hook.name(), self.rule),
            JumpPlace::Last => format!("-A {} {}", self.hook.name(), self.rule),
        }
    }
}

impl SavedTable {
    fn chains_of(&self, owner: ChainSet) -> impl Iterator<Item = &str> {
        self.chains.iter().map(String::as_str).filter(move |name| owner.contains(name))
    }

    /// Rules outside the owner's chains whose verdict is one of them, with their position in their own chain.
    pub(crate) fn rules_into_chains_of(&self, owner: ChainSet) -> impl Iterator<Item = (usize, &SavedRule)> {
        let position =
            |rule: &SavedRule| self.rules_of(&rule.chain).position(|other| std::ptr::eq(other, rule));
        self.rules
            .iter()
            .filter(move |rule| !owner.contains(&rule.chain))
            .filter(move |rule| rule.jump_target().is_some_and(|chain| owner.contains(&chain)))
            .map(move |rule| (position(rule).unwrap_or(usize::MAX), rule))
    }

    /// A jump that must be first has to be the first rule of its chain, and to have no copy behind it: a copy could
    /// not be deleted, since `-D` takes the first of equal rules. Any place suits others.
    fn stands_well(&self, index: usize, jump: &HookJump) -> bool {
        let copies = || self.rules_of(jump.hook.name()).filter(|rule| rule.rule.as_ref() == Some(&jump.rule));
        jump.place != JumpPlace::First || (index == 0 && copies().count() == 1)
    }
}

impl SavedRule {
    /// The chain that the rule jumps to, also when we do not understand its conditions.
    fn jump_target(&self) -> Option<Cow<'_, str>> {
        match &self.rule {
            Some(Rule { target: Target::Jump(chain) | Target::Goto(chain), .. }) => {
                Some(Cow::Borrowed(&chain.0))
            }
            Some(_) => None,
            None => parse::target_word(&self.text).map(Cow::Owned),
        }
    }
}
