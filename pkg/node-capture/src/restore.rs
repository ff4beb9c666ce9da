//! Changes of the firewall.

use std::iter;

use firewall::{Backend, FamilyChanges, Firewall};
use journal::JournalSection;
use node_plan::{NetnsPlace, ZtunnelSlot};
use rules::ChainSet;

use crate::{Error, NodePath};

impl NodePath {
    fn place_firewall(&mut self, place: NetnsPlace) -> Result<&mut Option<Firewall>, Error> {
        match place {
            NetnsPlace::Node => Ok(&mut self.firewall),
            NetnsPlace::Ztunnel(slot) => Ok(&mut self.located_ztunnel(slot)?.firewall),
        }
    }

    /// Records in the journal which built-in chains exist in the tables of these changes, unless recorded before.
    fn note_chains(
        &mut self,
        place: NetnsPlace,
        changes: &FamilyChanges,
        backend: Backend,
    ) -> Result<(), Error> {
        if backend != Backend::Nft {
            return Ok(()); // a legacy table, once used, exists until its namespace is removed
        }
        let section = JournalSection::Chains(self.section_owner(place)?);
        let journal = self.journal.clone();
        let tables = changes.changed_tables();
        self.run_at(place, || journal.note_chains(section, &tables))
    }

    /// Removes unused built-in chains that did not exist before our rules, which restores the earlier state as far as
    /// possible.
    pub(crate) fn remove_chains(&mut self, place: NetnsPlace) -> Result<(), Error> {
        let section = JournalSection::Chains(self.section_owner(place)?);
        let journal = self.journal.clone();
        self.run_at(place, || journal.remove_chains(section))
    }

    /// Removes our rules from the backend that is not in use, where an earlier run that used it has left them: on the
    /// node, and in the namespaces of the observed slots. Returns the removed rules as text. The rules in the other
    /// backend should be in place by then.
    ///
    /// # Errors
    /// As [`Firewall::remove_elsewhere`].
    pub fn remove_elsewhere(&mut self) -> Result<Vec<String>, Error> {
        let slots = ZtunnelSlot::BOTH.into_iter().filter(|slot| slot.select_from(&self.slots).is_some());
        let places: Vec<NetnsPlace> =
            iter::once(NetnsPlace::Node).chain(slots.map(NetnsPlace::Ztunnel)).collect();
        let mut removed = Vec::new();
        for place in places {
            let Some(firewall) = self.place_firewall(place)?.clone() else { continue };
            let removed_here = self.run_at(place, || firewall.remove_elsewhere(ChainSet::NODE))?;
            removed.extend(removed_here.into_iter().map(|what| format!("{place}: {what}")));
        }
        Ok(removed)
    }

    /// Changes the rules of a place, in the backend that the observation selected; without an observation, selects it
    /// now.
    pub(crate) fn apply_rules(&mut self, place: NetnsPlace, changes: &FamilyChanges) -> Result<(), Error> {
        let options = self.options.clone();
        let opened = match self.place_firewall(place)?.take() {
            Some(opened) => opened,
            None => self.run_at(place, || Firewall::open(&options))?.0,
        };
        self.note_chains(place, changes, opened.backend())?;
        self.run_at(place, || opened.apply(changes, Vec::new()).map(drop))
    }
}
