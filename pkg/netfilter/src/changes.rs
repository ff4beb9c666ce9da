//! What a namespace's rules need, family by family.

use model::Family;
use netlink::Errno;
use nftables::native::NativeListing;
use rules::{ChainSet, RuleChange, RuleSet, native::NativeRules};

use crate::{
    Backend, Error, Firewall, ObservedTables, OwnRules, WaitingRestore, WantedRules, firewall::readable,
    presence::BackendPresence,
};

/// The change of each family, or of native tables, which both share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FamilyChanges {
    families: Vec<(Family, RuleChange)>,
    native: Option<NativeChange>,
}

/// What an owner's native tables are to become.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NativeChange {
    found: NativeListing,
    wanted: NativeRules,
    differences: Vec<String>,
}

impl ObservedTables {
    /// What leads from what was seen to what is wanted of an owner's rules. A family that is to have none gets an empty
    /// rule set.
    #[must_use]
    pub fn changes(&self, owner: ChainSet, wanted: impl Fn(Family) -> RuleSet) -> FamilyChanges {
        if let Some(native) = &self.native {
            let native = owner.native.map(|prefix| NativeChange::new(native, prefix, wanted));
            return FamilyChanges { native, ..FamilyChanges::default() };
        }
        let change = |family| (family, owner.apply(&wanted(family), self.of(family)));
        FamilyChanges::from(Family::BOTH.into_iter().map(change).collect::<Vec<_>>())
    }

    /// What takes an owner's rules away.
    #[must_use]
    pub fn removal(&self, owner: ChainSet) -> FamilyChanges {
        self.changes(owner, |_| RuleSet::default())
    }
}

impl From<Vec<(Family, RuleChange)>> for FamilyChanges {
    fn from(changes: Vec<(Family, RuleChange)>) -> FamilyChanges {
        FamilyChanges { families: changes, native: None }
    }
}

impl NativeChange {
    fn new(listing: &NativeListing, prefix: &str, wanted: impl Fn(Family) -> RuleSet) -> NativeChange {
        let rules = |family| Some(wanted(family)).filter(|rules| !rules.tables.is_empty());
        let wanted = NativeRules::new(prefix, rules(Family::V4).as_ref(), rules(Family::V6).as_ref());
        let found = listing.of(prefix);
        let differences = match NativeListing::expected(&wanted) {
            Ok(expected) => found.differences(&expected),
            Err(unsupported) => vec![unsupported.to_string()], // and who makes the change is told
        };
        NativeChange { found, wanted, differences }
    }

    /// As [`FamilyChanges::in_two_steps`].
    fn in_two_steps(&self) -> Option<(NativeChange, NativeChange)> {
        let filled = self.wanted.without_jumps();
        let between = NativeListing::expected(&filled).ok()?;
        let leads_anew = !self.found.is_led_into() && filled != self.wanted;
        let fill = NativeChange { wanted: filled, ..self.clone() };
        leads_anew.then(|| (fill, NativeChange { found: between, ..self.clone() }))
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

    /// The same without the families.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        self.reasons().map(|(_, what)| what).collect()
    }

    /// [`RuleChange::in_two_steps`] of both families; `None` if it is of none.
    #[must_use]
    pub fn in_two_steps(&self) -> Option<(FamilyChanges, FamilyChanges)> {
        let steps = |(family, change): &(Family, RuleChange)| {
            let (fill, lead) =
                change.in_two_steps().unwrap_or_else(|| (RuleChange::default(), change.clone()));
            ((*family, fill), (*family, lead))
        };
        if let Some(native) = &self.native {
            let of = |native| FamilyChanges { native: Some(native), ..FamilyChanges::default() };
            return native.in_two_steps().map(|(fill, lead)| (of(fill), of(lead)));
        }
        let leads_anew = self.families.iter().any(|(_, change)| change.in_two_steps().is_some());
        let (fill, lead): (Vec<_>, Vec<_>) = self.families.iter().map(steps).unzip();
        leads_anew.then(|| (fill.into(), lead.into()))
    }

    /// The tables that are changed, by family.
    #[must_use]
    pub fn tables(&self) -> Vec<(Family, &'static str)> {
        let of = |change: &RuleChange| change.edits.iter().map(|edit| edit.table.name()).collect::<Vec<_>>();
        self.families
            .iter()
            .flat_map(|(family, change)| of(change).into_iter().map(|table| (*family, table)))
            .collect()
    }

    /// The families that need a change.
    pub fn families(&self) -> impl Iterator<Item = Family> {
        self.families.iter().filter(|(_, change)| !change.is_empty()).map(|(family, _)| *family)
    }

    /// The texts for `iptables-restore --noflush`; empty for a family that needs no change.
    #[must_use]
    pub fn texts(&self) -> Vec<(Family, String)> {
        self.families.iter().map(|(family, change)| (*family, change.restore_text())).collect()
    }
}

/// Whether the kernel may have refused because it lacks an expression or an extension, or the revision of one.
fn is_unknown_to_kernel(error: &nftables::Error) -> bool {
    error.errno().is_some_and(|errno| [Errno::NOENT, Errno::OPNOTSUPP, Errno::INVAL].contains(&errno))
}

impl Firewall {
    /// Makes the changes: in nf_tables by one transaction of the engine, in legacy tables by one restore for each family that
    /// needs one (see [`Firewall::restore`]). What the engine cannot make, or a kernel that is too old for its rules refuses,
    /// is left to the tools, where there are any.
    ///
    /// # Errors
    /// The engine's, or as [`Firewall::restore`].
    pub fn apply(&self, changes: &FamilyChanges, waiting: Vec<WaitingRestore>) -> Result<(), Error> {
        if let Some(native) = &changes.native {
            let messages = nftables::native::transaction(&native.found, &native.wanted)?;
            return Ok(nftables::commit(messages)?);
        }
        if !self.is_direct() {
            return self.restore(&changes.texts(), waiting);
        }
        let by_family: Vec<_> = changes.families.iter().map(|(family, change)| (*family, change)).collect();
        let refused = match nftables::transaction(&by_family) {
            Ok(messages) => match nftables::commit(messages) {
                Err(error) if is_unknown_to_kernel(&error) => error.into(),
                done => return Ok(done?),
            },
            Err(unsupported) => unsupported.into(),
        };
        match self.restore(&changes.texts(), waiting) {
            Err(Error::NoTool { .. } | Error::NoIptables(_)) => Err(refused),
            done => done,
        }
    }

    /// Takes an owner's rules out of the tables of the backends that are not in use, where a run that used one has left
    /// them; tells what. Where such a backend has no tables it costs no child process; where it has no tools, what is in
    /// its tables stays. So it does where one backend is forced and the tools of another fail: that may be why.
    ///
    /// # Errors
    /// As [`Firewall::open`] and [`Firewall::restore`].
    pub fn remove_elsewhere(&self, owner: ChainSet) -> Result<Vec<String>, Error> {
        self.remove_elsewhere_of(&WantedRules { owner, rules: &|_| RuleSet::default() })
    }

    /// The same where there may be more rules than are read; the jumps among the rules tell which built-in chains to look
    /// into then.
    ///
    /// # Errors
    /// As there.
    pub fn remove_elsewhere_of(&self, wanted: &WantedRules<'_>) -> Result<Vec<String>, Error> {
        let presence = BackendPresence::of_this_netns()?;
        let mut taken = Vec::new();
        for other in self.others().filter(|other| presence.native || other.backend() != Backend::Native) {
            let found = other.look(presence.of(other.backend()));
            let found = if self.is_forced() { found.unwrap_or_default() } else { readable(found)? };
            let observed = match found {
                Some(observed) => observed,
                None => OwnRules::of_this_netns(wanted)?.observation(wanted, None),
            };
            let changes = observed.removal(wanted.owner);
            other.apply(&changes, Vec::new())?;
            taken.extend(changes.words().into_iter().map(|what| format!("{}: {what}", other.backend())));
        }
        Ok(taken)
    }

    /// Makes the changes by one command for each rule; not atomic.
    ///
    /// # Errors
    /// As [`Firewall::call`]; what was done before it stays.
    pub fn apply_one_by_one(&self, changes: &FamilyChanges) -> Result<(), Error> {
        if changes.native.is_some() {
            return self.apply(changes, Vec::new()); // no tool makes these
        }
        for (family, change) in &changes.families {
            change.calls().iter().try_for_each(|call| self.call(*family, call))?;
        }
        Ok(())
    }
}
