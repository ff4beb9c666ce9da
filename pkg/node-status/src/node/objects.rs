//! Objects of network namespaces, converted from plan and kernel for display.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use model::{Family, IpNet};
use node_plan::{
    DesiredPlace, NetnsPlace, ObservedInside, ObservedState, PathRoute, PathRule, RouteTo, ZtunnelSlot,
};
use report::{Comparison, LinkState, PolicyRuleState, RouteState, SysctlState};
use rules::{ChainSet, SavedTables};

use super::{place_name, policy_rule};
use crate::firewall::{ShownRule, shown_rule, to_observed_line};

/// Objects of one network namespace, or of all.
#[derive(Default)]
pub(crate) struct ShownObjects {
    pub(super) rules: Vec<PolicyRuleState>,
    pub(super) routes: Vec<RouteState>,
    pub(super) links: Vec<LinkState>,
    pub(crate) sysctls: Vec<SysctlState>,
    pub(super) firewall: Vec<ShownRule>,
}

impl From<&ObservedState> for ShownObjects {
    fn from(found: &ObservedState) -> ShownObjects {
        let mut all = ShownObjects::default();
        let links = found.links.iter().map(|(name, link)| (name, link.up, link.right));
        all.add_links("node", links, &without_link_local(&found.addresses));
        all.add_routing("node", &found.rules, &found.routes);
        all.add_sysctls("node", &found.sysctls, &found.journal);
        all.add_firewall("node", &found.firewall);
        for slot in ZtunnelSlot::BOTH {
            if let Some(inside) = slot.select_from(&found.inside) {
                all.add_inside(&place_name(&NetnsPlace::Ztunnel(slot)), inside);
            }
        }
        all
    }
}

impl ShownObjects {
    fn add_inside(&mut self, place: &str, found: &ObservedInside) {
        let links = found.links.iter().map(|(name, up)| (name, *up, true));
        self.add_links(place, links, &without_link_local(&found.addresses));
        self.add_routing(place, &found.rules, &found.routes);
        self.add_sysctls(place, &found.sysctls, &found.journal);
        self.add_firewall(place, &found.firewall);
    }

    pub(super) fn add_desired(&mut self, place: &str, want: &DesiredPlace) {
        let names: BTreeSet<&String> = want.addresses.iter().map(|(link, _)| link).collect();
        self.add_links(place, names.into_iter().map(|name| (name, true, true)), &want.addresses);
        self.add_routing(place, &want.rules, &want.routes);
        self.add_sysctls(place, &want.sysctls, &BTreeMap::new());
        for (family, set) in &want.firewall {
            let lines = set.rule_lines().into_iter().map(to_observed_line);
            self.firewall.extend(lines.map(|line| shown_rule(place, *family, &line)));
        }
    }

    /// Adds links, given by name, whether each is up, and whether it is of the right kind with the right peer.
    fn add_links<'a>(
        &mut self,
        place: &str,
        links: impl Iterator<Item = (&'a String, bool, bool)>,
        addresses: &BTreeSet<(String, IpNet)>,
    ) {
        self.links.extend(links.map(|(name, up, correct)| {
            let own = addresses.iter().filter(|(link, _)| link == name);
            let mut addresses: Vec<String> = own.map(|(_, net)| net.to_string()).collect();
            addresses.sort();
            LinkState { netns: place.to_owned(), name: name.clone(), up, correct, addresses }
        }));
    }

    fn add_routing(&mut self, place: &str, rules: &[PathRule], routes: &[PathRoute]) {
        self.rules.extend(rules.iter().map(|rule| policy_rule(place, rule)));
        self.routes.extend(routes.iter().map(|found| route_state(place, found)));
    }

    fn add_sysctls(
        &mut self,
        place: &str,
        sysctls: &BTreeMap<String, String>,
        journal: &BTreeMap<String, String>,
    ) {
        self.sysctls.extend(sysctls.iter().map(|(name, value)| {
            let previous_value = journal.get(name).cloned();
            SysctlState { netns: place.to_owned(), name: name.clone(), value: value.clone(), previous_value }
        }));
    }

    fn add_firewall(&mut self, place: &str, found: &BTreeMap<Family, SavedTables>) {
        for (family, saved) in found {
            let lines = ChainSet::NODE.owned_lines(saved);
            self.firewall.extend(lines.iter().map(|line| shown_rule(place, *family, line)));
        }
    }
}

/// Compares kernel settings with the observed ones that are ours: those that should differ, or that we have changed.
pub(crate) fn compare_sysctls(
    desired: Vec<SysctlState>,
    mut observed: Vec<SysctlState>,
) -> Comparison<SysctlState> {
    let ours: BTreeSet<_> = desired.iter().map(|one| (&one.netns, &one.name)).collect();
    observed.retain(|one| ours.contains(&(&one.netns, &one.name)));
    let current = observed.iter().map(|one| SysctlState { previous_value: None, ..one.clone() });
    let differences = Comparison::compare_sets(desired.clone(), current.collect()).differences;
    Comparison { desired, observed: Some(observed), differences }
}

/// Removes the addresses that the kernel adds to each link.
fn without_link_local(all: &BTreeSet<(String, IpNet)>) -> BTreeSet<(String, IpNet)> {
    let is_given = |ip: IpAddr| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    all.iter().filter(|(_, net)| is_given(net.addr())).cloned().collect()
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
