//! Changes of the firewall.

use std::iter;

use firewall::{Backend, FamilyChanges, Firewall};
use journal::JournalSection;
use node_plan::{NetnsPlace, ZtunnelSlot};
use rules::ChainSet;

use crate::{Error, NodePath};

impl NodePath {
    fn firewall_of(&mut self, place: NetnsPlace) -> Result<&mut Option<Firewall>, Error> {
        match place {
            NetnsPlace::Node => Ok(&mut self.firewall),
            NetnsPlace::Ztunnel(slot) => Ok(&mut self.located_ztunnel(slot)?.firewall),
        }
    }

    /// Notes which built-in chains there are in the tables of these changes, where it is not noted yet.
    fn note_chains(
        &mut self,
        place: NetnsPlace,
        changes: &FamilyChanges,
        backend: Backend,
    ) -> Result<(), Error> {
        if backend != Backend::Nft {
            return Ok(()); // a legacy table that was used once stays until its namespace ends
        }
        let section = JournalSection::Chains(self.section_owner(place)?);
        let journal = self.journal.clone();
        let tables = changes.changed_tables();
        self.run_at(place, || journal.note_chains(section, &tables))
    }

    /// Removes the built-in chains that were not there before our rules and that are unused. This restores the earlier
    /// state as far as we can.
    pub(crate) fn remove_chains(&mut self, place: NetnsPlace) -> Result<(), Error> {
        let section = JournalSection::Chains(self.section_owner(place)?);
        let journal = self.journal.clone();
        self.run_at(place, || journal.remove_chains(section))
    }

    /// Takes our rules out of the tables of the backend that is not in use, where a run that used it has left them: on
    /// the node, and in the namespaces of the observed slots; tells what. Those of the other should be in place by then.
    ///
    /// # Errors
    /// As [`Firewall::remove_elsewhere`].
    pub fn remove_elsewhere(&mut self) -> Result<Vec<String>, Error> {
        let slots = ZtunnelSlot::BOTH.into_iter().filter(|slot| slot.select_from(&self.slots).is_some());
        let places: Vec<NetnsPlace> =
            iter::once(NetnsPlace::Node).chain(slots.map(NetnsPlace::Ztunnel)).collect();
        let mut removed = Vec::new();
        for place in places {
            let Some(firewall) = self.firewall_of(place)?.clone() else { continue };
            let removed_here = self.run_at(place, || firewall.remove_elsewhere(ChainSet::NODE))?;
            removed.extend(removed_here.into_iter().map(|what| format!("{place}: {what}")));
        }
        Ok(removed)
    }

    /// Changes the rules of a place, by the backend that the observation chose; without one it looks itself.
    pub(crate) fn apply_rules(&mut self, place: NetnsPlace, changes: &FamilyChanges) -> Result<(), Error> {
        let options = self.options.clone();
        let opened = match self.firewall_of(place)?.take() {
            Some(opened) => opened,
            None => self.run_at(place, || Firewall::open(&options))?.0,
        };
        self.note_chains(place, changes, opened.backend())?;
        self.run_at(place, || opened.apply(changes, Vec::new()).map(drop))
    }
}
