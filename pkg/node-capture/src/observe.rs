//! Observation of the node.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::{Path, PathBuf},
};

use firewall::{Firewall, FirewallOptions, NativeTables};
use hostnet::{IpNet, Link, PolicyRule, Route, RtnetlinkHandle, RuleAction, TableId};
use journal::{Journal, JournalSection};
use model::{Family, PodUid};
use node_plan::{
    NodeConfig, ObservedLink, ObservedState, PathRule, ZtunnelInstance, ZtunnelSlot, find_first_priority,
    is_our_rule, link_pairs, watched_sysctls,
};
use rules::ChainSet;

use crate::{
    Error, LocatedPod, ZtunnelWatcher, convert,
    convert::LinkNames,
    inside, locate, members,
    overrule::{is_overruling_route, overruling_rules},
};

/// The node's network namespace, for a thread in it, and those of its ztunnels.
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
    /// `None`: changes are not reported.
    watcher: Option<ZtunnelWatcher>,
}

impl NodePath {
    /// Opens the node path for the calling thread's namespace, in which the thread must stay. `netns_directory` is
    /// where the container runtime binds network namespaces; `journal` is a file of ours.
    ///
    /// # Errors
    /// The kernel has no sets, or refuses.
    pub fn open(
        config: NodeConfig,
        options: FirewallOptions,
        netns_directory: &Path,
        journal: &Path,
    ) -> Result<NodePath, Error> {
        // The node's rules use matches of x_tables and sets.
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

    /// Has the namespaces of ztunnels watched, from their location to their end. The changes must be read continuously:
    /// [`ZtunnelWatcher::take_changes`].
    pub fn watch_ztunnels(&mut self, watcher: ZtunnelWatcher) {
        self.watcher = Some(watcher);
    }

    /// Locates a ztunnel pod, anew each time, because its namespace may have been replaced.
    ///
    /// # Errors
    /// The pod does not exist, or is not connected to the node in a supported way.
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

    /// Closes the namespaces of ztunnels until they are located again, so that those of ended pods are removed, with
    /// their links. If all ztunnels with a slot were located, entries of others are dropped from the journal, and their
    /// watches end.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn close_ztunnel_netns(&mut self) -> Result<(), Error> {
        let located = std::mem::take(&mut self.located);
        let is_complete = self.slots.iter().flatten().all(|slot| located.contains_key(&slot.uid));
        if located.is_empty() || !is_complete {
            return Ok(()); // a ztunnel that was not located this time may still exist
        }
        let ids: Vec<_> = located.values().map(|located| located.netns.id()).collect();
        if let Some(watcher) = &self.watcher {
            watcher.keep_only(&ids);
        }
        Ok(self.journal.keep_only(&ids)?)
    }

    /// Observes sets, rules and routes, which change with pods, without starting a tool.
    ///
    /// # Errors
    /// The objects that could not be listed.
    pub fn observe_network(&mut self) -> Result<ObservedState, Error> {
        let noted = self.journal.read_snapshot();
        let mut observed = ObservedState {
            journal: noted.section_entries(JournalSection::Settings(None)),
            chains_noted: !noted.section_entries(JournalSection::Chains(None)).is_empty(),
            ..ObservedState::default()
        };
        let mut rules = Vec::new();
        for family in Family::BOTH {
            if let Some(found) = members::list_members(&mut self.sets, &self.config, family)? {
                observed.sets.insert(family, found);
            }
            rules.extend(self.net.list_rules(family)?);
        }
        let links = self.net.list_links()?;
        let routes = self.net.list_routes(None)?;
        let names = LinkNames::from_links(&links);
        // Also the tables of an agent with other numbers.
        let is_marked = |rule: &PathRule| find_first_priority(&self.config, rule).is_some();
        let marked = rules.iter().filter_map(convert::rule_from).filter(is_marked).map(|rule| rule.table);
        let mut tables: BTreeSet<TableId> = marked.chain(self.config.all_tables()).collect();
        let _ = tables.remove(&TableId::MAIN);
        let ours =
            routes.iter().filter(|route| route.protocol == convert::OURS && tables.contains(&route.table));
        observed.routes = ours.map(|route| convert::route_from(route, &names)).collect();
        self.sort_rules(&rules, &mut observed);
        observed.rules = inside::sort_unique(std::mem::take(&mut observed.rules));
        self.find_foreign(&rules, &routes, &links, &mut observed);
        self.observe_links(&links, &mut observed)?;
        Ok(observed)
    }

    /// Sorts policy rules by their owner. The rules of an agent with other numbers, some of which lead to routes of ours, are ours,
    /// too.
    fn sort_rules(&self, found: &[PolicyRule], observed: &mut ObservedState) {
        // Cilium moves the rule of the local table there, which precedes ours anyway.
        let local = (Some(self.config.priorities.first), RuleAction::Lookup(TableId::LOCAL));
        let tables: BTreeSet<TableId> = observed.routes.iter().map(|route| route.table).collect();
        let leading = found.iter().filter_map(convert::rule_from).filter(|rule| tables.contains(&rule.table));
        let agents: BTreeSet<u32> =
            leading.filter_map(|rule| find_first_priority(&self.config, &rule)).collect();
        let is_of_agent = |rule: &PathRule| {
            find_first_priority(&self.config, rule).is_some_and(|first| agents.contains(&first))
        };
        let is_ours = |rule: &PathRule| is_our_rule(&self.config, rule) || is_of_agent(rule);
        for rule in found {
            match convert::rule_from(rule).filter(is_ours) {
                Some(rule) => observed.rules.push(rule),
                // A rule for a certain source or destination does not match marked packets, or does so on purpose.
                None if !rule.unmodelled
                    && rule.dest.is_none()
                    && (rule.priority, rule.action) != local
                    && self.config.has_priority_conflict(rule.priority) =>
                {
                    observed.foreign.push(format!("rule {rule}"));
                }
                None => {}
            }
        }
    }

    /// Records foreign routes: default routes in our tables, and routes within our networks that do not use our links.
    /// While pods are captured, also records routes that take captured traffic before ours.
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
        // A wider network, such as the node's own, only loses a few of its addresses.
        let overlaps = |dst: &IpNet| networks.iter().any(|net| net.contains(dst));
        let is_foreign = |(_, route): &(usize, &Route)| route.protocol != convert::OURS;
        for (place, route) in routes.iter().enumerate().filter(is_foreign) {
            let before = routes.get(..place).unwrap_or_default();
            let in_network = route.dst.as_ref().is_some_and(overlaps) && !uses_ours(route);
            if tables.contains(&route.table)
                && !uses_ours(route)
                && is_overruling_route(&self.config, route, before, &observed.routes, &captured)
            {
                observed.overruling.push(format!("route {}", self.net.describe_route(route)));
            }
            // A default route takes all traffic for which the table exists; a route to a single destination is no
            // conflict.
            if (tables.contains(&route.table) && route.dst.is_none()) || in_network {
                observed.foreign.push(format!("route {}", self.net.describe_route(route)));
            }
        }
    }

    fn observe_links(&mut self, links: &[Link], observed: &mut ObservedState) -> Result<(), Error> {
        // Without a number: links of Istio's own agent up to 1.20, whose routes would precede ours if it was killed.
        let istios = ["istioin", "istioout"].map(str::to_owned);
        let pairs = ZtunnelSlot::BOTH.into_iter().flat_map(link_pairs).map(|pair| pair.node);
        let names: BTreeSet<String> = pairs.chain(istios).collect();
        let addresses = self.net.list_addresses()?;
        for link in links.iter().filter(|link| names.contains(&link.name)) {
            let state = ObservedLink { index: link.index.0, up: link.is_up, right: false };
            observed.links.insert(link.name.clone(), state);
            let own = addresses.iter().filter(|address| address.index == link.index);
            let nets = own.filter_map(|own| IpNet::new(own.ip, own.prefix_len).ok());
            observed.addresses.extend(nets.map(|net| (link.name.clone(), net)));
        }
        Ok(())
    }

    /// Observes the node's firewall.
    ///
    /// # Errors
    /// The kernel could not be queried, or its answer is malformed.
    pub fn observe_firewall(&mut self, observed: &mut ObservedState) -> Result<(), Error> {
        let (firewall, found) = Firewall::open(&self.options)?;
        observed.inactive = firewall.inactive_rules(ChainSet::NODE, &found)?;
        (self.firewall, observed.firewall) = (Some(firewall), found.families);
        Ok(())
    }

    /// Observes the objects of each slot's ztunnel: the peers of links, and the ztunnel's namespace.
    ///
    /// # Errors
    /// The object that could not be observed.
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
            inside_state.chains_noted = !noted.section_entries(JournalSection::Chains(whose)).is_empty();
            *slot.part_mut(&mut observed.inside) = Some(inside_state);
        }
        Ok(())
    }
}

/// Returns whether a link's peer is in the namespace of the ztunnel.
fn is_right(link: &Link, ztunnel: Option<i32>) -> bool {
    link.kind.as_deref() == Some("veth") && link.peer_netns.is_some() && link.peer_netns == ztunnel
}
