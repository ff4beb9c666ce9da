//! Changes that a namespace's rules need, by family.

use std::sync::Arc;

use iptables_legacy::Error as ToolError;
use model::Family;
use netlink::{Errno, ListBounds, NetlinkRequest};
use nftables::native::NativeListing;
use rules::{ChainSet, RuleChange, RuleSet, native::NativeRules};

use crate::{
    Backend, Error, Firewall, NativeTables, ObservedTables, WaitingRestore, backend::OWNERS,
    owned::describe_owned_tables,
};

/// The change of each family, or of native tables, which both families share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FamilyChanges {
    families: Vec<(Family, RuleChange)>,
    native: Option<NativeChange>,
    /// Rules for native tables, in case the kernel has no others; only in a namespace without tables.
    instead: Option<BlankRules>,
}

/// Desired rules of an owner in a namespace without any tables.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlankRules {
    prefix: &'static str,
    rules: [(Family, RuleSet); 2],
    /// Whether the jumps to their chains are left out for now.
    without_jumps: bool,
}

/// Change of an owner's native tables, from observed to desired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NativeChange {
    prefix: &'static str,
    found: Arc<NativeListing>,
    desired: NativeRules,
    differences: Vec<String>,
}

impl ObservedTables {
    /// Returns the changes from the observed to the desired rules of an owner. A family that shall have none gets an
    /// empty rule set.
    pub fn plan_changes(&self, owner: ChainSet, desired: impl Fn(Family) -> RuleSet) -> FamilyChanges {
        let rules = Family::BOTH.map(|family| (family, desired(family)));
        if let Some(native) = &self.native {
            let native = owner.native.map(|prefix| NativeChange::new(native, prefix, &rules));
            return FamilyChanges { native, ..FamilyChanges::default() };
        }
        let change =
            |(family, rules): &(Family, RuleSet)| (*family, owner.apply(rules, self.family_tables(*family)));
        let families = rules.iter().map(change).collect();
        let blank = owner.native.filter(|_| self.families.is_empty());
        let instead = blank.map(|prefix| BlankRules { prefix, rules, without_jumps: false });
        FamilyChanges { families, native: None, instead }
    }

    /// Returns the changes that remove an owner's rules.
    pub fn plan_removal(&self, owner: ChainSet) -> FamilyChanges {
        self.plan_changes(owner, |_| RuleSet::default())
    }
}

impl From<Vec<(Family, RuleChange)>> for FamilyChanges {
    fn from(changes: Vec<(Family, RuleChange)>) -> FamilyChanges {
        FamilyChanges { families: changes, ..FamilyChanges::default() }
    }
}

impl NativeChange {
    fn new(found: &Arc<NativeListing>, prefix: &'static str, rules: &[(Family, RuleSet); 2]) -> NativeChange {
        let desired = native_rules(prefix, rules);
        // Unsupported rules are also reported to the caller that applies the change.
        let differences =
            found.differences(prefix, &desired).unwrap_or_else(|unsupported| vec![unsupported.to_string()]);
        NativeChange { prefix, found: Arc::clone(found), desired, differences }
    }

    /// Like [`FamilyChanges::in_two_steps`].
    fn in_two_steps(&self) -> Option<(NativeChange, NativeChange)> {
        let filled = self.desired.clone().without_jumps();
        let between = Arc::new(NativeListing::from_rules(&filled).ok()?);
        let adds_jumps = !self.found.has_jump_into(self.prefix) && filled != self.desired;
        let fill = NativeChange { desired: filled, ..self.clone() };
        adds_jumps.then(|| (fill, NativeChange { found: between, ..self.clone() }))
    }
}

impl FamilyChanges {
    /// Returns every difference as text, with its family; `None`: both.
    pub fn reasons(&self) -> impl Iterator<Item = (Option<Family>, String)> {
        let of_families = self.families.iter().flat_map(|(family, change)| {
            change.reasons().map(move |reason| (Some(*family), format!("{family} {reason}")))
        });
        let native = self.native.iter().flat_map(|change| &change.differences);
        of_families.chain(native.map(|what| (None, what.clone())))
    }

    /// Returns the texts of [`FamilyChanges::reasons`], without the family beside each.
    pub fn reason_texts(&self) -> Vec<String> {
        self.reasons().map(|(_, what)| what).collect()
    }

    /// Applies [`RuleChange::in_two_steps`] to both families; `None` if neither can be split.
    pub fn in_two_steps(&self) -> Option<(FamilyChanges, FamilyChanges)> {
        if let Some(native) = &self.native {
            let of = |native| FamilyChanges { native: Some(native), ..FamilyChanges::default() };
            return native.in_two_steps().map(|(fill, jumps)| (of(fill), of(jumps)));
        }
        let adds_jumps = self.families.iter().any(|(_, change)| change.in_two_steps().is_some());
        let steps = self.families.iter().map(|(family, change)| {
            let steps = change.in_two_steps();
            let (fill, jumps) = steps.unwrap_or_else(|| (RuleChange::default(), change.clone()));
            ((*family, fill), (*family, jumps))
        });
        let (fill, jumps): (Vec<_>, Vec<_>) = steps.unzip();
        let instead =
            |without_jumps| self.instead.as_ref().map(|rules| BlankRules { without_jumps, ..rules.clone() });
        let with = |families, instead| FamilyChanges { families, native: None, instead };
        adds_jumps.then(|| (with(fill, instead(true)), with(jumps, instead(false))))
    }

    /// Returns the tables that are changed, by family.
    pub fn changed_tables(&self) -> Vec<(Family, &'static str)> {
        self.families
            .iter()
            .flat_map(|(family, change)| change.edits.iter().map(move |edit| (*family, edit.table.as_str())))
            .collect()
    }

    /// Returns these changes with stale chains emptied, not removed; `None`: they remove none.
    fn without_removals(&self) -> Option<FamilyChanges> {
        let families = self.families.iter().map(|(family, change)| (*family, change.without_removals()));
        let emptied = FamilyChanges { families: families.collect(), ..self.clone() };
        (emptied != *self).then_some(emptied)
    }

    /// Returns the input of `iptables-restore --noflush` for each family; empty if it needs no change.
    pub fn restore_texts(&self) -> Vec<(Family, String)> {
        self.families.iter().map(|(family, change)| (*family, change.restore_text())).collect()
    }
}

fn native_rules(prefix: &str, rules: &[(Family, RuleSet); 2]) -> NativeRules {
    let [v4, v6] = rules.each_ref().map(|(_, rules)| Some(rules).filter(|rules| !rules.tables.is_empty()));
    NativeRules::new(prefix, v4, v6)
}

impl BlankRules {
    fn commit(&self) -> Result<(), Error> {
        let desired = native_rules(self.prefix, &self.rules);
        let desired = if self.without_jumps { desired.without_jumps() } else { desired };
        // An earlier step may have created some of the tables.
        let found = NativeListing::read(&OWNERS, ListBounds::POD)?;
        commit_messages(nftables::native::transaction_messages(&found, self.prefix, &desired)?)
    }
}

/// Like [`nftables::commit`], but reports which tables another process owns, if that is why the kernel refuses.
fn commit_messages(messages: Vec<NetlinkRequest>) -> Result<(), Error> {
    nftables::commit(messages).map_err(|error| match error.errno() {
        Some(Errno::PERM) => describe_owned_tables().map_or(error.into(), Error::Owned),
        _ => error.into(),
    })
}

/// Returns whether the kernel may have refused for lack of an expression or an extension, or of its revision.
fn is_unknown_to_kernel(error: &nftables::Error) -> bool {
    error.errno().is_some_and(|errno| [Errno::NOENT, Errno::OPNOTSUPP, Errno::INVAL].contains(&errno))
}

impl Firewall {
    /// Applies the changes: in nf_tables by one transaction of the engine, in legacy tables by one restore for each
    /// family that needs one (see [`Firewall::restore`]). Changes that the engine does not support, or that an older
    /// kernel refuses, are left to the tools, if there are any. If these fail, too, because the kernel has no x_tables,
    /// and the namespace has no tables yet, native tables are created. Returns the backend of the rules.
    ///
    /// # Errors
    /// The engine's error, or as [`Firewall::restore`].
    pub fn apply(&self, changes: &FamilyChanges, waiting: Vec<WaitingRestore>) -> Result<Backend, Error> {
        if let Some(native) = &changes.native {
            let messages =
                nftables::native::transaction_messages(&native.found, native.prefix, &native.desired)?;
            return commit_messages(messages).map(|()| Backend::Native);
        }
        if !self.is_direct() {
            let restorable = self.without_opaque_deletes(changes)?;
            return self.or_native(self.restore(&restorable.restore_texts(), waiting), changes);
        }
        let refused = match nftables::transaction_messages(&changes.families) {
            Ok(messages) => match commit_messages(messages) {
                Err(Error::Engine(error)) if is_unknown_to_kernel(&error) => error.into(),
                // An object that is no rule, such as a map, refers to a chain that is to be removed.
                Err(Error::Engine(error)) if error.errno() == Some(Errno::BUSY) => {
                    return match changes.without_removals() {
                        Some(emptied) => self.apply(&emptied, waiting),
                        None => Err(error.into()),
                    };
                }
                done => return done.map(|()| self.backend()),
            },
            Err(unsupported) => unsupported.into(),
        };
        let by_tools = match self.restore(&changes.restore_texts(), waiting) {
            Err(Error::Tool(ToolError::NoTool { .. } | ToolError::NoIptables(_))) => Err(refused),
            done => done,
        };
        self.or_native(by_tools, changes)
    }

    /// Deletes rules that no tool can be asked to delete, and returns the remaining changes.
    fn without_opaque_deletes(&self, changes: &FamilyChanges) -> Result<FamilyChanges, Error> {
        let mut remaining = changes.clone();
        let deletes: Vec<(Family, RuleChange)> = remaining
            .families
            .iter_mut()
            .map(|(family, change)| (*family, change.split_opaque_deletes()))
            .collect();
        if deletes.iter().any(|(_, change)| !change.is_empty()) {
            commit_messages(nftables::transaction_messages(&deletes)?)?;
        }
        Ok(remaining)
    }

    /// Creates native tables after a failure, if they are allowed and the namespace has no tables yet.
    fn or_native(&self, done: Result<(), Error>, changes: &FamilyChanges) -> Result<Backend, Error> {
        let may = self.backend() == Backend::Nft
            && self.options.forced.is_none()
            && self.options.native != NativeTables::Never;
        match (done, changes.instead.as_ref().filter(|_| may)) {
            // The first error is the one to report.
            (Err(error), Some(instead)) => instead.commit().map(|()| Backend::Native).map_err(|_| error),
            (done, _) => done.map(|()| self.backend()),
        }
    }

    /// Removes an owner's rules from the backends that are not in use, where an earlier run that used one has left
    /// them. Returns what was removed, as text. A backend that had no tables when the firewall was opened costs
    /// nothing; without its tools, its tables are left unchanged. They also are if one backend is forced and the tools
    /// of another fail, which may be why it is forced.
    ///
    /// # Errors
    /// As [`Firewall::open`] and [`Firewall::restore`].
    pub fn remove_elsewhere(&self, owner: ChainSet) -> Result<Vec<String>, Error> {
        let mut removed = Vec::new();
        for (other, changes) in self.plan_removals_elsewhere(owner)? {
            match other.apply(&changes, Vec::new()) {
                // No tool is available that could change these tables.
                Err(Error::Tool(ToolError::NoTool { .. })) => continue,
                done => done?,
            };
            removed.extend(other.removal_texts(&changes));
        }
        Ok(removed)
    }

    /// Lists the rules that [`Firewall::remove_elsewhere`] would remove.
    ///
    /// # Errors
    /// As [`Firewall::open`].
    pub fn list_elsewhere(&self, owner: ChainSet) -> Result<Vec<String>, Error> {
        let planned = self.plan_removals_elsewhere(owner)?;
        let possible = planned.iter().filter(|(other, _)| other.can_be_changed());
        Ok(possible.flat_map(|(other, changes)| other.removal_texts(changes)).collect())
    }

    fn plan_removals_elsewhere(&self, owner: ChainSet) -> Result<Vec<(Firewall, FamilyChanges)>, Error> {
        let plan = |other: Firewall| {
            let found = other.read_present();
            let observed = if self.options.forced.is_some() { found.unwrap_or_default() } else { found? };
            Ok((other, observed.plan_removal(owner)))
        };
        self.other_backends().map(plan).collect()
    }

    fn removal_texts(&self, changes: &FamilyChanges) -> Vec<String> {
        let backend = self.backend();
        changes.reason_texts().into_iter().map(|what| format!("{backend}: {what}")).collect()
    }
}
