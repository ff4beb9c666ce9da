//! What a namespace's rules need, family by family.

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

/// The change of each family, or of native tables, which both share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FamilyChanges {
    families: Vec<(Family, RuleChange)>,
    native: Option<NativeChange>,
    /// For native tables instead, should the kernel have no others; only where nothing is there yet.
    instead: Option<BlankRules>,
}

/// Desired rules of an owner in a namespace without any tables.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlankRules {
    prefix: &'static str,
    rules: [(Family, RuleSet); 2],
    /// Nothing leads into them yet.
    without_jumps: bool,
}

/// Change of an owner's native tables, from those observed to those desired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NativeChange {
    prefix: &'static str,
    found: Arc<NativeListing>,
    desired: NativeRules,
    differences: Vec<String>,
}

impl ObservedTables {
    /// Returns the changes that lead from what was observed to what is desired of an owner's rules. A family that is to have
    /// none gets an empty rule set.
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
        // Who makes the change is told as well.
        let differences =
            found.differences(prefix, &desired).unwrap_or_else(|unsupported| vec![unsupported.to_string()]);
        NativeChange { prefix, found: Arc::clone(found), desired, differences }
    }

    /// As [`FamilyChanges::in_two_steps`].
    fn in_two_steps(&self) -> Option<(NativeChange, NativeChange)> {
        let filled = self.desired.clone().without_jumps();
        let between = Arc::new(NativeListing::from_rules(&filled).ok()?);
        let adds_jumps = !self.found.has_jump_into(self.prefix) && filled != self.desired;
        let fill = NativeChange { desired: filled, ..self.clone() };
        adds_jumps.then(|| (fill, NativeChange { found: between, ..self.clone() }))
    }
}

impl FamilyChanges {
    /// Every difference, for people, with the family that it concerns; none: both.
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

    /// [`RuleChange::in_two_steps`] of both families; `None` if it is of none.
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

    /// The tables that are changed, by family.
    pub fn changed_tables(&self) -> Vec<(Family, &'static str)> {
        let of =
            |change: &RuleChange| change.edits.iter().map(|edit| edit.table.as_str()).collect::<Vec<_>>();
        self.families
            .iter()
            .flat_map(|(family, change)| of(change).into_iter().map(|table| (*family, table)))
            .collect()
    }

    /// Returns these changes with stale chains emptied, not removed; `None`: they remove none.
    fn without_removals(&self) -> Option<FamilyChanges> {
        let families = self.families.iter().map(|(family, change)| (*family, change.without_removals()));
        let emptied = FamilyChanges { families: families.collect(), ..self.clone() };
        (emptied != *self).then_some(emptied)
    }

    /// The texts for `iptables-restore --noflush`; empty for a family that needs no change.
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
        // An earlier step may have begun.
        let found = NativeListing::read(&OWNERS, ListBounds::POD)?;
        commit_messages(nftables::native::transaction_messages(&found, self.prefix, &desired)?)
    }
}

/// As [`nftables::commit`], but says which tables another process owns, if that is why the kernel refuses.
fn commit_messages(messages: Vec<NetlinkRequest>) -> Result<(), Error> {
    nftables::commit(messages).map_err(|error| match error.errno() {
        Some(Errno::PERM) => describe_owned_tables().map_or(error.into(), Error::Owned),
        _ => error.into(),
    })
}

/// Whether the kernel may have refused because it lacks an expression or an extension, or the revision of one.
fn is_unknown_to_kernel(error: &nftables::Error) -> bool {
    error.errno().is_some_and(|errno| [Errno::NOENT, Errno::OPNOTSUPP, Errno::INVAL].contains(&errno))
}

impl Firewall {
    /// Makes the changes: in nf_tables by one transaction of the engine, in legacy tables by one restore for each family that
    /// needs one (see [`Firewall::restore`]). What the engine cannot make, or a kernel that is too old for its rules refuses,
    /// is left to the tools, where there are any. If they cannot make it either, because the kernel has no x_tables, and
    /// nothing is there yet, native tables are made. Returns which kind of tables has the rules.
    ///
    /// # Errors
    /// The engine's, or as [`Firewall::restore`].
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
        let by_family: Vec<_> = changes.families.iter().map(|(family, change)| (*family, change)).collect();
        let refused = match nftables::transaction_messages(&by_family) {
            Ok(messages) => match commit_messages(messages) {
                Err(Error::Engine(error)) if is_unknown_to_kernel(&error) => error.into(),
                // Something that is no rule leads to a chain that is to go, such as a map.
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

    /// Deletes rules that a tool could not be told to delete, and returns the rest of the changes.
    fn without_opaque_deletes(&self, changes: &FamilyChanges) -> Result<FamilyChanges, Error> {
        let mut remaining = changes.clone();
        let deletes: Vec<(Family, RuleChange)> = remaining
            .families
            .iter_mut()
            .map(|(family, change)| (*family, change.split_opaque_deletes()))
            .collect();
        if deletes.iter().any(|(_, change)| !change.is_empty()) {
            let by_family: Vec<_> = deletes.iter().map(|(family, change)| (*family, change)).collect();
            commit_messages(nftables::transaction_messages(&by_family)?)?;
        }
        Ok(remaining)
    }

    /// Makes native tables after a failure, where these may be used and nothing is there yet.
    fn or_native(&self, done: Result<(), Error>, changes: &FamilyChanges) -> Result<Backend, Error> {
        let may = self.backend() == Backend::Nft
            && !self.is_forced()
            && self.native_tables() != NativeTables::Never;
        match (done, changes.instead.as_ref().filter(|_| may)) {
            // The first cause is the one to tell.
            (Err(error), Some(instead)) => instead.commit().map(|()| Backend::Native).map_err(|_| error),
            (done, _) => done.map(|()| self.backend()),
        }
    }

    /// Takes an owner's rules out of the tables of the backends that are not in use, where a run that used one has left
    /// them; tells what. Where such a backend had no tables when the firewall was opened, it costs nothing; where it has no
    /// tools, what is in its tables stays. So it does where one backend is forced and the tools of another fail: that may be why.
    ///
    /// # Errors
    /// As [`Firewall::open`] and [`Firewall::restore`].
    pub fn remove_elsewhere(&self, owner: ChainSet) -> Result<Vec<String>, Error> {
        let mut removed = Vec::new();
        for (other, changes) in self.plan_removals_elsewhere(owner)? {
            match other.apply(&changes, Vec::new()) {
                // Nobody here can change these.
                Err(Error::Tool(ToolError::NoTool { .. })) => continue,
                done => done?,
            };
            removed.extend(other.removal_texts(&changes));
        }
        Ok(removed)
    }

    /// Lists what [`Firewall::remove_elsewhere`] would remove.
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
            let observed = if self.is_forced() { found.unwrap_or_default() } else { found? };
            Ok((other, observed.plan_removal(owner)))
        };
        self.other_backends().map(plan).collect()
    }

    fn removal_texts(&self, changes: &FamilyChanges) -> Vec<String> {
        let backend = self.backend();
        changes.reason_texts().into_iter().map(|what| format!("{backend}: {what}")).collect()
    }
}
