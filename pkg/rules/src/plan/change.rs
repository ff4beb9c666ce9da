//! A change of a namespace's rules, and its text form: one restore, or single `iptables` calls.

use std::mem;

use crate::{
    ir::{Chain, HookJump, JumpPlace, Rule, Table},
    parse::{self, SavedRule},
};

/// Maximum number of arguments of a line that a restore can read (iptables: `xshared.h`, `MAX_ARGC`), less a margin for
/// arguments that it adds.
const MAX_ARGUMENTS: usize = 200;

/// A rule of ours for one of our chains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedRule {
    /// The chain.
    pub chain: Chain,
    /// Position in the chain.
    pub place: RulePlace,
    /// The rule.
    pub rule: Rule,
}

/// Position of an added rule in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulePlace {
    /// After all existing rules.
    End,
    /// Before an existing rule.
    Before {
        /// Number that the added rule will have, counted from 1.
        number: usize,
        /// Handle of the existing rule; see [`SavedRule::handle`].
        handle: Option<u64>,
    },
}

impl AddedRule {
    /// Returns the line that adds the rule. A rule with very many owners gets an equivalent shorter form: the usual one
    /// has five words for each, so that Istio's limit of 64 groups could not be reached.
    fn restore_line(&self) -> String {
        let line = match self.place {
            RulePlace::End => format!("-A {} {}", self.chain, self.rule),
            RulePlace::Before { number, .. } => format!("-I {} {number} {}", self.chain, self.rule),
        };
        if line.split(' ').count() <= MAX_ARGUMENTS {
            return line;
        }
        ["uid", "gid"].iter().fold(line, |line, owner| {
            line.replace(&format!("-m owner ! --{owner}-owner "), &format!("-mowner ! --{owner}-owner="))
        })
    }
}

/// Changes of one table, in the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableEdit {
    /// The table.
    pub table: Table,
    /// Our chains that are created, or emptied and, if desired, refilled. True for an existing chain.
    pub declare: Vec<(Chain, bool)>,
    /// Rules that are deleted: foreign rules that jump to our chains, and misplaced jumps.
    pub deletes: Vec<SavedRule>,
    /// Our rules added to our chains.
    pub adds: Vec<AddedRule>,
    /// Jumps to our chains.
    pub jumps: Vec<HookJump>,
    /// Stale chains, emptied and removed.
    pub removals: Vec<Chain>,
    /// Differences as text, for logs and for CHECK.
    pub why: Vec<String>,
}

impl TableEdit {
    /// Returns the table's section of a restore file.
    fn restore_text(&self) -> String {
        let mut text = format!("*{}\n", self.table.as_str());
        for (chain, _) in &self.declare {
            text.push_str(&format!(":{chain} - [0:0]\n"));
        }
        for command in self.restore_lines() {
            text.push_str(&command);
            text.push('\n');
        }
        text.push_str("COMMIT\n");
        text
    }

    /// Returns the commands, each as the arguments of an `iptables` call after `-t TABLE`.
    fn restore_lines(&self) -> impl Iterator<Item = String> {
        let deletes = self.deletes.iter().map(|rule| format!("-D {} {}", rule.chain, rule.text));
        let adds = self.adds.iter().map(AddedRule::restore_line);
        let jumps = self.jumps.iter().map(HookJump::restore_line);
        let flushes = self.removals.iter().map(|chain| format!("-F {chain}"));
        let removals = self.removals.iter().map(|chain| format!("-X {chain}"));
        deletes.chain(adds).chain(jumps).chain(flushes).chain(removals)
    }

    /// Splits the edit into the part that no packet reaches before the jumps exist, and the rest.
    fn split_before_jumps(&self) -> (TableEdit, TableEdit) {
        let mut with_jumps = self.clone();
        let (declare, adds) = (mem::take(&mut with_jumps.declare), mem::take(&mut with_jumps.adds));
        (TableEdit { declare, adds, ..TableEdit::without_change(self.table) }, with_jumps)
    }

    /// Returns an edit without changes.
    fn without_change(table: Table) -> TableEdit {
        TableEdit { table, ..TableEdit::default() }
    }

    fn is_empty(&self) -> bool {
        self.declare.is_empty() && self.restore_lines().next().is_none()
    }

    /// Returns the edit as single `iptables` calls, each split into its arguments.
    fn iptables_calls(&self) -> impl Iterator<Item = Vec<String>> {
        let declare = self
            .declare
            .iter()
            .map(|(chain, exists)| format!("{} {chain}", if *exists { "-F" } else { "-N" }));
        let table = self.table.as_str();
        declare
            .chain(self.restore_lines())
            .filter_map(move |command| parse::split_arguments(&format!("-t {table} {command}")))
    }
}

/// Changes of a namespace: an edit per table that differs. Without edits, it is as desired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleChange {
    /// Edits in commit order.
    pub edits: Vec<TableEdit>,
}

impl RuleChange {
    /// Returns whether there is nothing to change.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// Returns the input for one `iptables-restore --noflush`; empty if there is nothing to change.
    pub fn restore_text(&self) -> String {
        self.edits.iter().map(TableEdit::restore_text).collect()
    }

    /// Returns this change as single `iptables` calls, in order, each split into its arguments. They are not atomic.
    pub fn iptables_calls(&self) -> Vec<Vec<String>> {
        self.edits.iter().flat_map(TableEdit::iptables_calls).collect()
    }

    /// Removes deletions of rules that no tool can express, because they are not understood; these have handles.
    /// Returns them as a separate change, to be applied first.
    #[must_use]
    pub fn split_opaque_deletes(&mut self) -> RuleChange {
        let mut edits = Vec::new();
        for edit in &mut self.edits {
            let is_opaque = |rule: &SavedRule| rule.rule.is_none() && rule.handle.is_some();
            let (deletes, rest) = mem::take(&mut edit.deletes).into_iter().partition(is_opaque);
            edit.deletes = rest;
            edits.push(TableEdit { deletes, ..TableEdit::without_change(edit.table) });
        }
        edits.retain(|edit| !edit.deletes.is_empty());
        RuleChange { edits }
    }

    /// Returns this change with stale chains emptied, not removed.
    pub fn without_removals(&self) -> RuleChange {
        let mut change = self.clone();
        for edit in &mut change.edits {
            edit.declare.extend(mem::take(&mut edit.removals).into_iter().map(|chain| (chain, true)));
        }
        change
    }

    /// Splits this change into two steps: our chains with their rules, so that the kernel features that they need are
    /// in use, and then the jumps into them. `None` if no jumps are added.
    pub fn in_two_steps(&self) -> Option<(RuleChange, RuleChange)> {
        if self.edits.iter().all(|edit| edit.jumps.is_empty()) {
            return None;
        }
        let (fill, with_jumps): (Vec<_>, Vec<_>) =
            self.edits.iter().map(TableEdit::split_before_jumps).unzip();
        let of = |edits: Vec<TableEdit>| RuleChange {
            edits: edits.into_iter().filter(|edit| !edit.is_empty()).collect(),
        };
        Some((of(fill), of(with_jumps)))
    }

    /// Returns every difference as text.
    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        self.edits.iter().flat_map(|edit| edit.why.iter().map(String::as_str))
    }
}

impl HookJump {
    /// Returns the restore line (or command arguments) that adds the jump.
    fn restore_line(&self) -> String {
        match self.place {
            JumpPlace::First | JumpPlace::Early => format!("-I {} 1 {}", self.hook.as_str(), self.rule),
            JumpPlace::Last => format!("-A {} {}", self.hook.as_str(), self.rule),
        }
    }
}
