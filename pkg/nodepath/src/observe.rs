//! What the node holds.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::{Path, PathBuf},
};

use firewall::{Firewall, FirewallOptions, NativeTables};
use hostnet::{IpNet, Link, PolicyRule, Route, RtnetlinkHandle};
use journal::{Journal, JournalSection};
use model::{Family, PodUid};
use node_plan::{
    NodeConfig, ObservedLink, ObservedState, ZtunnelInstance, ZtunnelSlot, is_our_rule, link_pairs,
    watched_sysctls,
};
use rules::ChainSet;

use crate::{
    Error, LocatedPod, ZtunnelWatcher, convert,
    convert::LinkNames,
    inside, locate, members,
    overrule::{is_overruling_route, overruling_rules},
};

/// The node's network namespace, seen from a thread in it, and those of its ztunnels.
#[derive(Debug)]
pub struct NodePath {
    pub(crate) config: NodeConfig,
    pub(crate) options: FirewallOptions,
    pub(crate) net: RtnetlinkHandle,
    pub(crate) sets: ipset::IpsetHandle,
    pub(crate) firewall: Option<Firewall>,
    pub(crate) journal: Journal,
    pub(crate) located: BTreeMap<PodUid, LocatedPod>,
    pub(crate) slots: [Option<ZtunnelInstance>; 2],
    netns_directory: PathBuf,
    /// `None`: nobody is to know of changes.
    watcher: Option<ZtunnelWatcher>,
}

impl NodePath {
    /// Opens it for the calling thread's namespace, in which it must stay. `netns_directory` is where the container
    /// runtime binds network namespaces; `journal` is a file of ours.
    ///
    /// # Errors
    /// The kernel has no sets, or refuses.
    pub fn open(
        config: NodeConfig,
        options: FirewallOptions,
        netns_directory: &Path,
        journal: &Path,
    ) -> Result<NodePath, Error> {
        // The node's rules ask x_tables and sets.
        let options = FirewallOptions { native: NativeTables::Never, ..options };
        Ok(NodePath {
            config,
            options,
            net: RtnetlinkHandle::open()?,
            sets: ipset::IpsetHandle::open()?,
            firewall: None,
            journal: Journal::for_file(journal),
            located: BTreeMap::new(),
            slots: [None, None],
            netns_directory: netns_directory.to_owned(),
            watcher: None,
        })
    }

    /// Has the namespaces of ztunnels watched, from when they are located until they are gone. Somebody has to read the changes
    /// all the time: [`ZtunnelWatcher::take_changes`].
    pub fn watch_ztunnels(&mut self, watcher: ZtunnelWatcher) {
        self.watcher = Some(watcher);
    }

    /// Finds a ztunnel pod, anew each time: its namespace may have been replaced.
    ///
    /// # Errors
    /// It is not there, or hangs on the node in a way that cannot be captured.
    pub fn locate_ztunnel(
        &mut self,
        uid: &PodUid,
        ips: &[IpAddr],
        dns: bool,
    ) -> Result<ZtunnelInstance, Error> {
        let located = locate::locate_pod(&mut self.net, ips, &self.netns_directory)?;
        if let Some(watcher) = &self.watcher {
            watcher.watch_netns(&located.place, &located.netns);
        }
        let generation = ZtunnelInstance {
            uid: uid.clone(),
            veth: located.veth.clone(),
            uplink: located.uplink.clone(),
            ips: ips.to_vec(),
            dns,
        };
        self.located.insert(uid.clone(), located);
        Ok(generation)
    }

    /// Closes the namespaces of ztunnels until they are located again, so that those whose pods are gone end, and with
    /// them their links. If that were all that have a slot, the journal forgets the others, and they are watched no longer.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn close_ztunnel_netns(&mut self) -> Result<(), Error> {
        let located = std::mem::take(&mut self.located);
        let is_complete = self.slots.iter().flatten().all(|slot| located.contains_key(&slot.uid));
        if located.is_empty() || !is_complete {
            return Ok(()); // what was not located this time may be there
        }
        let ids: Vec<_> = located.values().map(|located| located.netns.id()).collect();
        if let Some(watcher) = &self.watcher {
            watcher.keep_only(&ids);
        }
        Ok(self.journal.keep_only(&ids)?)
    }

    /// Sets, rules and routes: all that changes with pods, without starting a tool.
    ///
    /// # Errors
    /// What could not be listed.
    pub fn observe_network(&mut self) -> Result<ObservedState, Error> {
        let noted = self.journal.read_snapshot();
        let mut observed = ObservedState {
            journal: noted.section_entries(JournalSection::Settings(None)),
            chains_noted: noted.has_notes(JournalSection::Chains(None)),
            ..ObservedState::default()
        };
        let mut rules = Vec::new();
        for family in Family::BOTH {
            if let Some(found) = members::list_members(&mut self.sets, &self.config, family)? {
                observed.sets.insert(family, found);
            }
            rules.extend(self.net.list_rules(family)?);
        }
        self.sort_rules(&rules, &mut observed);
        observed.rules = inside::sort_unique(std::mem::take(&mut observed.rules));
        let links = self.net.list_links()?;
        let routes = self.net.list_routes(None)?;
        let (names, tables) = (LinkNames::from_links(&links), self.config.all_tables());
        let ours =
            routes.iter().filter(|route| route.protocol == convert::OURS && tables.contains(&route.table));
        observed.routes = ours.map(|route| convert::route_from(route, &names)).collect();
        self.find_foreign(&rules, &routes, &links, &mut observed);
        self.observe_links(&links, &mut observed)?;
        Ok(observed)
    }

    fn sort_rules(&self, found: &[PolicyRule], observed: &mut ObservedState) {
        for rule in found {
            match convert::rule_from(rule).filter(|rule| is_our_rule(&self.config, rule)) {
                Some(rule) => observed.rules.push(rule),
                // One for a certain source or destination does not meet what is marked, or is meant to.
                None if !rule.unmodelled
                    && rule.dest.is_none()
                    && self.config.has_priority_conflict(rule.priority) =>
                {
                    observed.foreign.push(format!("rule {rule}"));
                }
                None => {}
            }
        }
    }

    /// Records foreign routes: default routes in our tables, and those within our networks that do not use our links. Also what takes
    /// captured traffic ahead of ours, while there is some.
    fn find_foreign(
        &mut self,
        rules: &[PolicyRule],
        routes: &[Route],
        links: &[Link],
        observed: &mut ObservedState,
    ) {
        let captured: Vec<IpAddr> = observed.sets.values().flat_map(BTreeMap::keys).copied().collect();
        if !captured.is_empty() {
            let of = |family| overruling_rules(&self.config, family, rules, routes, &captured);
            observed.overruling = Family::BOTH.into_iter().flat_map(of).collect();
        }
        let (tables, networks) = (self.config.all_tables(), self.config.link_networks());
        let is_ours = |link: &Link| link.name.starts_with("istioin") || link.name.starts_with("istioout");
        let uses_ours =
            |route: &Route| links.iter().find(|link| Some(link.index) == route.oif).is_some_and(is_ours);
        // A wider network, such as the one that the node is in, only loses a few of its addresses.
        let overlaps = |dst: &IpNet| networks.iter().any(|net| net.contains(dst));
        for route in routes.iter().filter(|route| route.protocol != convert::OURS) {
            let in_network = route.dst.as_ref().is_some_and(overlaps) && !uses_ours(route);
            if tables.contains(&route.table)
                && !uses_ours(route)
                && is_overruling_route(&self.config, route, &observed.routes, &captured)
            {
                observed.overruling.push(format!("route {}", self.net.describe_route(route)));
            }
            // A default route takes all that the table is for; one to a single destination does not keep us from using the table.
            if (tables.contains(&route.table) && route.dst.is_none()) || in_network {
                observed.foreign.push(format!("route {}", self.net.describe_route(route)));
            }
        }
    }

    fn observe_links(&mut self, links: &[Link], observed: &mut ObservedState) -> Result<(), Error> {
        let names: BTreeSet<String> =
            ZtunnelSlot::BOTH.into_iter().flat_map(link_pairs).map(|pair| pair.node).collect();
        let addresses = self.net.list_addresses()?;
        for link in links.iter().filter(|link| names.contains(&link.name)) {
            let state = ObservedLink { up: link.is_up, right: false };
            observed.links.insert(link.name.clone(), state);
            let own = addresses.iter().filter(|address| address.index == link.index);
            let nets = own.filter_map(|own| IpNet::new(own.ip, own.prefix_len).ok());
            observed.addresses.extend(nets.map(|net| (link.name.clone(), net)));
        }
        Ok(())
    }

    /// Adds the node's firewall.
    ///
    /// # Errors
    /// The kernel could not be asked, or its answer makes no sense.
    pub fn observe_firewall(&mut self, observed: &mut ObservedState) -> Result<(), Error> {
        let (firewall, found) = Firewall::open(&self.options)?;
        observed.inactive = firewall.inactive_rules(ChainSet::NODE, &found)?;
        (self.firewall, observed.firewall) = (Some(firewall), found.families);
        Ok(())
    }

    /// Adds both, the node's firewall and what depends on the slots.
    ///
    /// # Errors
    /// As [`NodePath::observe_firewall`] and [`NodePath::observe_slots`].
    pub fn observe_rest(
        &mut self,
        observed: &mut ObservedState,
        slots: &[Option<ZtunnelInstance>; 2],
    ) -> Result<(), Error> {
        self.observe_firewall(observed)?;
        self.observe_slots(observed, slots)
    }

    /// Adds what depends on who has which slot: where links lead, and what is in there.
    ///
    /// # Errors
    /// What could not be looked at.
    pub fn observe_slots(
        &mut self,
        observed: &mut ObservedState,
        slots: &[Option<ZtunnelInstance>; 2],
    ) -> Result<(), Error> {
        self.slots = slots.clone();
        let noted = self.journal.read_snapshot();
        for slot in ZtunnelSlot::BOTH {
            let Some(generation) = slot.select_from(slots) else { continue };
            observed.sysctls.extend(inside::read_sysctls(&watched_sysctls(slot, &generation.veth))?);
            if !self.located.contains_key(&generation.uid) {
                self.locate_ztunnel(&generation.uid, &generation.ips, generation.dns)?;
            }
            let Some(located) = self.located.get_mut(&generation.uid) else {
                return Err(Error::NoZtunnel(slot));
            };
            let number = self.net.netns_number(std::os::fd::AsFd::as_fd(&located.netns))?;
            for pair in link_pairs(slot) {
                let Some(link_state) = observed.links.get_mut(&pair.node) else { continue };
                let link = self.net.link_by_name(&pair.node)?;
                link_state.right = link.is_some_and(|link| is_right(&link, number));
            }
            let mut inside_state = inside::observe_inside(slot, located, &self.options)?;
            let whose = Some(located.netns.id());
            inside_state.journal = noted.section_entries(JournalSection::Settings(whose));
            inside_state.chains_noted = noted.has_notes(JournalSection::Chains(whose));
            *slot.of_mut(&mut observed.inside) = Some(inside_state);
        }
        Ok(())
    }
}

/// A link shows where it leads.
fn is_right(link: &Link, ztunnel: Option<i32>) -> bool {
    link.kind.as_deref() == Some("veth") && link.peer_netns.is_some() && link.peer_netns == ztunnel
}
