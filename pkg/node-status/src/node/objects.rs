//! Objects of one network namespace or of all, converted from plan and kernel for display.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use model::{Family, IpNet};
use node_plan::{DesiredPlace, ObservedInside, ObservedState, PathRoute, PathRule, RouteTo};
use report::{Comparison, LinkState, PolicyRuleState, RouteState, SysctlState};
use rules::{ChainSet, ObservedLine, RuleSet, SavedTables};

use super::policy_rule;
use crate::firewall::{ShownRule, shown_rule, to_observed_line};

/// Objects of one network namespace, or of all.
#[derive(Clone, Debug, Default)]
pub(super) struct NetworkObjects {
    rules: Vec<PathRule>,
    routes: Vec<PathRoute>,
    links: BTreeMap<String, (bool, bool)>,
    addresses: Vec<(String, IpNet)>,
    sysctls: BTreeMap<String, String>,
    journal: BTreeMap<String, String>,
    firewall: Vec<(Family, ObservedLine)>,
}

impl NetworkObjects {
    /// Removes from the node's desired and observed objects what is only observed together with a ztunnel: the peers of links, and
    /// settings of its interface.
    pub(super) fn omit_observed_with_ztunnel(&mut self, observed: &mut NetworkObjects) {
        observed.links.values_mut().for_each(|(_, is_right)| *is_right = true);
        self.sysctls.retain(|name, _| observed.sysctls.contains_key(name));
    }
}

/// Both sides, converted for display.
#[derive(Default)]
pub(super) struct ComparedLists {
    pub(super) desired: ShownObjects,
    pub(super) observed: ShownObjects,
    pub(super) sysctls: Comparison<SysctlState>,
}

#[derive(Default)]
pub(super) struct ShownObjects {
    pub(super) rules: Vec<PolicyRuleState>,
    pub(super) routes: Vec<RouteState>,
    pub(super) links: Vec<LinkState>,
    pub(super) firewall: Vec<ShownRule>,
}

impl ComparedLists {
    pub(super) fn add_netns(&mut self, place: &str, want: &NetworkObjects, have: &NetworkObjects) {
        self.desired.add_objects(place, want);
        self.observed.add_objects(place, have);
        self.add_sysctls(place, want, have);
    }

    /// Adds the observed settings that are ours: those that should differ, or that we have changed.
    fn add_sysctls(&mut self, place: &str, want: &NetworkObjects, have: &NetworkObjects) {
        let desired = want.sysctls.iter().map(|setting| show_sysctl(place, setting)).collect();
        let ours = have.sysctls.iter().filter(|(name, _)| want.sysctls.contains_key(*name));
        let observed: Vec<SysctlState> = ours.map(|setting| show_sysctl(place, setting)).collect();
        let mut of = Comparison::compare_sets(desired, observed);
        for setting in of.observed.iter_mut().flatten() {
            setting.previous_value = have.journal.get(&setting.name).cloned();
        }
        self.sysctls.desired.append(&mut of.desired);
        self.sysctls.observed.get_or_insert_default().extend(of.observed.unwrap_or_default());
        self.sysctls.differences.append(&mut of.differences);
    }
}

impl ShownObjects {
    fn add_objects(&mut self, place: &str, objects: &NetworkObjects) {
        self.rules.extend(objects.rules.iter().map(|rule| policy_rule(place, rule)));
        self.routes.extend(objects.routes.iter().map(|found| route_state(place, found)));
        self.links.extend(objects.links.iter().map(|(name, (up, right))| {
            let own = objects.addresses.iter().filter(|(link, _)| link == name);
            let mut addresses: Vec<String> = own.map(|(_, net)| net.to_string()).collect();
            addresses.sort();
            LinkState { netns: place.to_owned(), name: name.clone(), up: *up, correct: *right, addresses }
        }));
        self.firewall.extend(objects.firewall.iter().map(|(family, line)| shown_rule(place, *family, line)));
    }
}

pub(crate) fn show_sysctl(place: &str, (name, value): (&String, &String)) -> SysctlState {
    let (netns, name, value) = (place.to_owned(), name.clone(), value.clone());
    SysctlState { netns, name, value, previous_value: None }
}

fn desired_lines(sets: &BTreeMap<Family, RuleSet>) -> Vec<(Family, ObservedLine)> {
    let desired = sets.iter().map(|(family, set)| (*family, set.rule_lines()));
    desired
        .flat_map(|(family, lines)| lines.into_iter().map(move |line| (family, to_observed_line(line))))
        .collect()
}

fn observed_lines(saved: &BTreeMap<Family, SavedTables>) -> Vec<(Family, ObservedLine)> {
    let owned = saved.iter().map(|(family, saved)| (*family, ChainSet::NODE.owned_lines(saved)));
    owned.flat_map(|(family, lines)| lines.into_iter().map(move |line| (family, line))).collect()
}

/// Removes the addresses that the kernel adds to each link.
fn without_link_local(all: &BTreeSet<(String, IpNet)>) -> Vec<(String, IpNet)> {
    let is_given = |ip: IpAddr| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    all.iter().filter(|(_, net)| is_given(net.addr())).cloned().collect()
}

impl From<&ObservedState> for NetworkObjects {
    fn from(observed: &ObservedState) -> NetworkObjects {
        NetworkObjects {
            rules: observed.rules.clone(),
            routes: observed.routes.clone(),
            links: observed.links.iter().map(|(name, link)| (name.clone(), (link.up, link.right))).collect(),
            addresses: without_link_local(&observed.addresses),
            sysctls: observed.sysctls.clone(),
            journal: observed.journal.clone(),
            firewall: observed_lines(&observed.firewall),
        }
    }
}

impl From<&DesiredPlace> for NetworkObjects {
    fn from(want: &DesiredPlace) -> NetworkObjects {
        let links = want.addresses.iter().map(|(link, _)| (link.clone(), (true, true)));
        NetworkObjects {
            rules: want.rules.clone(),
            routes: want.routes.clone(),
            links: links.collect(),
            addresses: want.addresses.iter().cloned().collect(),
            sysctls: want.sysctls.clone(),
            journal: BTreeMap::new(),
            firewall: desired_lines(&want.firewall),
        }
    }
}

impl From<&ObservedInside> for NetworkObjects {
    fn from(observed: &ObservedInside) -> NetworkObjects {
        NetworkObjects {
            rules: observed.rules.clone(),
            routes: observed.routes.clone(),
            links: observed.links.iter().map(|(name, up)| (name.clone(), (*up, true))).collect(),
            addresses: without_link_local(&observed.addresses),
            sysctls: observed.sysctls.clone(),
            journal: observed.journal.clone(),
            firewall: observed_lines(&observed.firewall),
        }
    }
}

fn route_state(place: &str, route: &PathRoute) -> RouteState {
    let (kind, gateway, device) = match &route.to {
        RouteTo::Via(gateway, link) => ("unicast", Some(*gateway), Some(link.clone())),
        RouteTo::Local(link) => ("local", None, Some(link.clone())),
        RouteTo::Blackhole => ("blackhole", None, None),
        RouteTo::Unreachable => ("unreachable", None, None),
        RouteTo::Other(text) => (text.as_str(), None, None),
    };
    RouteState {
        netns: place.to_owned(),
        family: route.family.number(),
        table: route.table.0,
        destination: route.dst.map_or_else(|| "default".to_owned(), |dst| route_destination(&dst)),
        kind: kind.to_owned(),
        gateway,
        device,
        metric: route.metric,
    }
}

/// Formats a single host without its prefix length, as `ip` does.
fn route_destination(dst: &IpNet) -> String {
    let text = dst.to_string();
    let full_prefix = if dst.addr().is_ipv4() { "/32" } else { "/128" };
    text.strip_suffix(full_prefix).map_or(text.clone(), str::to_owned)
}
