//! Application of operations.

use hostnet::{NewVeth, RouteChange, RtnetlinkHandle, sysctl};
use ipset::SetName;
use journal::{JournalSection, SectionOwner};
use node_plan::{LinkPair, NetnsPlace, Operation, RouteEdit, ZtunnelSlot};

use crate::{Error, LocatedPod, NodePath, convert, convert::LinkNames, members};

impl NodePath {
    /// Applies one operation. Repeating it changes nothing.
    ///
    /// # Errors
    /// The refusal of the kernel or of the tool, with its own message.
    pub fn apply_step(&mut self, step: &Operation) -> Result<(), Error> {
        match step {
            Operation::CreateSet(family) => {
                self.sets.create_set(&members::set_spec(&self.config, *family)?)?;
            }
            Operation::DestroySet(family) => {
                let _ = self.sets.destroy_set(&SetName::new(self.config.set_name(*family))?)?;
            }
            Operation::AddMembers(new) => members::add_members(&mut self.sets, &self.config, new)?,
            Operation::RemoveMembers(left) => members::remove_members(&mut self.sets, &self.config, left)?,
            Operation::CreatePair(pair) => self.create_pair(pair)?,
            Operation::DeleteLink(place, name) => self.delete_link(*place, name)?,
            Operation::SetUp(place, name) => {
                let (net, index) = self.find_link(*place, name)?;
                let _ = net.set_link_up(index)?;
            }
            Operation::AddAddress(place, name, address) => {
                if let Some(setting) = Operation::required_setting(name, address) {
                    let _ = self.run_at(*place, || sysctl::write(&setting, "0"))?;
                }
                let (net, index) = self.find_link(*place, name)?;
                let _ = net.add_address(index, *address)?;
            }
            Operation::SetSysctls(place, settings) => self.set_sysctls(*place, settings)?,
            Operation::RestoreSysctl(place, name, value) => self.restore_sysctl(*place, name, value)?,
            Operation::AddRule(place, rule) => {
                let _ = self.handle_at(*place)?.ensure_rule(&convert::rule_to(rule))?;
            }
            Operation::DeleteRule(place, rule) => {
                let _ = self.handle_at(*place)?.delete_rule(&convert::rule_to(rule))?;
            }
            Operation::Routes(place, edits) => self.edit_routes(*place, edits)?,
            Operation::Firewall { place, changes, .. } => {
                self.apply_rules(*place, &changes.clone().into())?;
            }
            Operation::RemoveChains(place) => self.remove_chains(*place)?,
        }
        Ok(())
    }

    pub(crate) fn located_ztunnel(&mut self, slot: ZtunnelSlot) -> Result<&mut LocatedPod, Error> {
        let uid = slot.select_from(&self.slots).as_ref().map(|generation| generation.uid.clone());
        let located = uid.and_then(|uid| self.located.get_mut(&uid));
        located.ok_or(Error::NoZtunnel(slot))
    }

    fn handle_at(&mut self, place: NetnsPlace) -> Result<&mut RtnetlinkHandle, Error> {
        match place {
            NetnsPlace::Node => Ok(&mut self.net),
            NetnsPlace::Ztunnel(slot) => Ok(&mut self.located_ztunnel(slot)?.net),
        }
    }

    fn find_link(
        &mut self,
        place: NetnsPlace,
        name: &str,
    ) -> Result<(&mut RtnetlinkHandle, hostnet::LinkIndex), Error> {
        let net = self.handle_at(place)?;
        let link = net.link_by_name(name)?.ok_or_else(|| Error::NoLink(name.to_owned()))?;
        Ok((net, link.index))
    }

    fn delete_link(&mut self, place: NetnsPlace, name: &str) -> Result<(), Error> {
        let net = self.handle_at(place)?;
        if let Some(link) = net.link_by_name(name)? {
            let _ = net.delete_link(link.index)?;
        }
        Ok(())
    }

    /// Creates a veth pair. A peer that is left from another slot would conflict, and is deleted.
    fn create_pair(&mut self, pair: &LinkPair) -> Result<(), Error> {
        self.delete_link(NetnsPlace::Ztunnel(pair.slot), &pair.ztunnel)?;
        let ztunnel = pair.slot.select_from(&self.slots).as_ref();
        let located = ztunnel.and_then(|ztunnel| self.located.get(&ztunnel.uid));
        let netns = std::os::fd::AsFd::as_fd(&located.ok_or(Error::NoZtunnel(pair.slot))?.netns);
        let veth = NewVeth { name: &pair.node, peer_name: &pair.ztunnel, peer_netns: Some(netns) };
        Ok(self.net.create_veth(&veth)?)
    }

    /// Runs `act` in a place's namespace.
    pub(crate) fn run_at<T: Send, E: Send + Into<Error>>(
        &mut self,
        place: NetnsPlace,
        act: impl FnOnce() -> Result<T, E> + Send,
    ) -> Result<T, Error> {
        match place {
            NetnsPlace::Node => act().map_err(E::into),
            NetnsPlace::Ztunnel(slot) => self.located_ztunnel(slot)?.netns.run_in(act)?.map_err(E::into),
        }
    }

    pub(crate) fn section_owner(&mut self, place: NetnsPlace) -> Result<SectionOwner, Error> {
        match place {
            NetnsPlace::Node => Ok(None),
            NetnsPlace::Ztunnel(slot) => Ok(Some(self.located_ztunnel(slot)?.netns.id())),
        }
    }

    /// Changes settings. All old values are recorded in the journal before the first one is changed.
    fn set_sysctls(&mut self, place: NetnsPlace, settings: &[(String, String)]) -> Result<(), Error> {
        let whose = self.section_owner(place)?;
        let read = |(name, _): &(String, String)| Ok(sysctl::read(name)?.map(|old| (name.clone(), old)));
        let read_all = || settings.iter().map(read).collect::<Result<_, hostnet::Error>>();
        let old: Vec<_> = self.run_at(place, read_all)?;
        self.journal.note_values(JournalSection::Settings(whose), old.into_iter().flatten())?;
        self.run_at(place, || {
            settings.iter().try_for_each(|(name, value)| sysctl::write(name, value).map(drop))
        })
    }

    fn restore_sysctl(&mut self, place: NetnsPlace, name: &str, value: &str) -> Result<(), Error> {
        let whose = self.section_owner(place)?;
        if self.run_at(place, || sysctl::read(name))?.is_some() {
            let _ = self.run_at(place, || sysctl::write(name, value))?;
        }
        Ok(self.journal.forget_value(JournalSection::Settings(whose), name)?)
    }

    fn edit_routes(&mut self, place: NetnsPlace, edits: &[RouteEdit]) -> Result<(), Error> {
        let net = self.handle_at(place)?;
        let routes = edits.iter().map(|edit| match edit {
            RouteEdit::Replace(route) | RouteEdit::Delete(route) => route,
        });
        let names = LinkNames::read_links(net, routes)?;
        let mut changes = Vec::with_capacity(edits.len());
        for edit in edits {
            match edit {
                RouteEdit::Replace(route) => {
                    changes.push(RouteChange::Replace(convert::route_to(route, &names)?));
                }
                // A route over a link that no longer exists was removed with it.
                RouteEdit::Delete(route) => {
                    changes.extend(convert::route_to(route, &names).ok().map(RouteChange::Delete));
                }
            }
        }
        let _ = net.apply_routes(&changes)?;
        Ok(())
    }
}
