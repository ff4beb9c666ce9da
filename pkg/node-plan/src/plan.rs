//! Desired minus observed: the operations, in an order no prefix of which lets a packet of an enrolled pod bypass the
//! mesh.
//!
//! Objects that carry traffic are created before traffic is sent to them, fallback routes before the routes that they
//! back, and unused objects are removed last.

mod firewall;
mod removal;

use std::collections::{BTreeMap, BTreeSet};

use model::{Family, IpNet, TableId};
use rules::RuleSet;

use super::{
    config::NodeConfig,
    diff,
    operation::{NetnsPlace, Operation, RouteEdit},
    state::{
        DesiredState, ObservedInside, ObservedState, PathRoute, PathRule, RouteTo, ZtunnelInstance,
        ZtunnelSlot,
    },
    want::{self, LinkPair},
};
use firewall::firewall_step;
use removal::{removal_steps, tidy_steps};

pub(super) use firewall::{inside_rules, node_rules};

/// Returns the operations from the observed to the desired state; `None`: they remove everything of ours.
pub fn plan_operations(
    config: &NodeConfig,
    desired: Option<&DesiredState>,
    observed: &ObservedState,
) -> Vec<Operation> {
    match desired {
        Some(desired) => build_steps(config, desired, observed),
        None => removal_steps(observed),
    }
}

fn build_steps(config: &NodeConfig, desired: &DesiredState, observed: &ObservedState) -> Vec<Operation> {
    let mut steps = Vec::new();
    let missing = desired.families().into_iter().filter(|family| !observed.sets.contains_key(family));
    steps.extend(missing.map(Operation::CreateSet));
    let (nets, vias) = route_changes(config, desired, observed);
    steps.extend(route_step(NetnsPlace::Node, nets, RouteEdit::Replace));
    // Without its rule a packet is routed by a later one, perhaps by a link that is being recreated.
    let rules: Vec<PathRule> =
        desired.families().into_iter().flat_map(|family| want::policy_rules(config, family)).collect();
    let added = |rule| Operation::AddRule(NetnsPlace::Node, rule);
    steps.extend(diff::missing_elements(&rules, &observed.rules).into_iter().map(added));
    for (slot, ztunnel) in desired.occupied_slots() {
        steps.extend(slot_steps(config, slot, ztunnel, observed));
    }
    steps.extend(path_steps(config, desired, observed, vias));
    steps.extend(join_steps(desired, observed));
    steps.extend(tidy_steps(config, desired, observed, &rules));
    steps
}

/// Returns the operations for the links of a slot and everything in its ztunnel's namespace, before any packet is sent
/// there.
fn slot_steps(
    config: &NodeConfig,
    slot: ZtunnelSlot,
    ztunnel: &ZtunnelInstance,
    observed: &ObservedState,
) -> Vec<Operation> {
    let place = NetnsPlace::Ztunnel(slot);
    let nothing = ObservedInside::default();
    let inside = slot.select_from(&observed.inside).as_ref().unwrap_or(&nothing);
    let mut steps = Vec::new();
    let mut fresh = BTreeSet::new();
    for pair in missing_pairs(slot, observed) {
        if observed.links.contains_key(&pair.node) {
            steps.push(Operation::DeleteLink(NetnsPlace::Node, pair.node.clone()));
        }
        fresh.extend([pair.node.clone(), pair.ztunnel.clone()]);
        steps.push(Operation::CreatePair(pair));
    }
    let desired = want::link_addresses(config, slot, ztunnel, false);
    steps.extend(address_steps(place, &desired, &inside.addresses, &fresh));
    let settings = find_changed_sysctls(want::inside_sysctls(slot), &inside.sysctls, &fresh);
    steps.extend(sysctl_step(place, settings));
    let (rules, routes) = want::inside_routing(config, ztunnel);
    steps.extend(
        diff::missing_elements(&rules, &inside.rules).into_iter().map(|rule| Operation::AddRule(place, rule)),
    );
    steps.extend(route_step(place, diff::missing_elements(&routes, &inside.routes), RouteEdit::Replace));
    let desired = |family| inside_rules(config, ztunnel, family);
    // Packets that a ztunnel does not accept leave it again: without these rules all packets do.
    steps.extend(firewall_step(place, desired, &inside.firewall));
    for pair in want::link_pairs(slot) {
        if fresh.contains(&pair.ztunnel) || inside.links.get(&pair.ztunnel) != Some(&true) {
            steps.push(Operation::SetUp(place, pair.ztunnel));
        }
    }
    let desired = want::link_addresses(config, slot, ztunnel, true);
    steps.extend(address_steps(NetnsPlace::Node, &desired, &observed.addresses, &fresh));
    for pair in want::link_pairs(slot) {
        let up = observed.links.get(&pair.node).is_some_and(|link| link.up);
        if fresh.contains(&pair.node) || !up {
            steps.push(Operation::SetUp(NetnsPlace::Node, pair.node));
        }
    }
    let desired = want::node_sysctls(slot, ztunnel, &observed.sysctls);
    let settings = find_changed_sysctls(desired, &observed.sysctls, &fresh);
    steps.extend(sysctl_step(NetnsPlace::Node, settings));
    steps
}

/// Returns the settings to change. A link that is `fresh` has the settings of all new links.
fn find_changed_sysctls(
    desired: BTreeMap<String, String>,
    found: &BTreeMap<String, String>,
    fresh: &BTreeSet<String>,
) -> Vec<(String, String)> {
    let of_fresh = |name: &str| name.split('/').any(|part| fresh.contains(part));
    desired.into_iter().filter(|(name, value)| of_fresh(name) || found.get(name) != Some(value)).collect()
}

fn sysctl_step(place: NetnsPlace, settings: Vec<(String, String)>) -> Option<Operation> {
    (!settings.is_empty()).then_some(Operation::SetSysctls(place, settings))
}

fn address_steps(
    place: NetnsPlace,
    desired: &BTreeSet<(String, IpNet)>,
    observed: &BTreeSet<(String, IpNet)>,
    fresh: &BTreeSet<String>,
) -> Vec<Operation> {
    let there = |address: &(String, IpNet)| observed.contains(address) && !fresh.contains(&address.0);
    let missing = desired.iter().filter(|address| !there(address));
    missing.map(|(link, net)| Operation::AddAddress(place, link.clone(), *net)).collect()
}

/// Returns the routes to add: fallback routes, which must exist before a link is removed; then the routes to links. A pod
/// that joins has no captured traffic yet, so its route to the link is added first, and no traffic to it is held. The
/// same applies to replies to a ztunnel whose links stay.
fn route_changes(
    config: &NodeConfig,
    desired: &DesiredState,
    observed: &ObservedState,
) -> (Vec<PathRoute>, Vec<PathRoute>) {
    // A route over a link that this plan recreates is removed with the old link.
    let changed =
        diff::missing_elements(&want::node_routes(config, desired), &surviving_routes(desired, observed));
    let enrolled = |net: IpNet| {
        observed
            .sets
            .get(&Family::from_ip(net.addr()))
            .is_some_and(|members| members.contains_key(&net.addr()))
    };
    let is_via = |route: &PathRoute| matches!(route.to, RouteTo::Via(..));
    let stay = ZtunnelSlot::BOTH.into_iter().filter(|slot| missing_pairs(*slot, observed).is_empty());
    let answers: Vec<_> = stay.map(|slot| TableId(config.tables.slot_return + slot.number())).collect();
    let has_pending_via = |net: &PathRoute| {
        let of_table = |via: &PathRoute| (via.family, via.table) == (net.family, net.table) && is_via(via);
        answers.contains(&net.table) && changed.iter().any(of_table)
    };
    let is_net =
        |route: &PathRoute| !is_via(route) && !has_pending_via(route) && route.dst.is_none_or(enrolled);
    let (nets, mut vias): (Vec<_>, Vec<_>) = changed.iter().cloned().partition(is_net);
    vias.sort_by_key(|route| !is_via(route));
    (nets, vias)
}

/// Returns the operations for the routes to links, then the rules that mark packets for them, then the routes of new
/// connections: a switch is the last of these operations, and replaces each route atomically.
fn path_steps(
    config: &NodeConfig,
    desired: &DesiredState,
    observed: &ObservedState,
    vias: Vec<PathRoute>,
) -> Vec<Operation> {
    let tables = [config.tables.inbound, config.tables.outbound];
    let (new_connections, of_slots): (Vec<_>, Vec<_>) =
        vias.into_iter().partition(|route| tables.contains(&route.table.0));
    let mut steps: Vec<Operation> =
        route_step(NetnsPlace::Node, of_slots, RouteEdit::Replace).into_iter().collect();
    let families = desired.families();
    let desired_rules = |family| {
        if families.contains(&family) { node_rules(config, desired, family) } else { RuleSet::default() }
    };
    steps.extend(firewall_step(NetnsPlace::Node, desired_rules, &observed.firewall));
    steps.extend(route_step(NetnsPlace::Node, new_connections, RouteEdit::Replace));
    steps
}

/// Returns the pairs of a slot that are missing or wrong.
fn missing_pairs(slot: ZtunnelSlot, observed: &ObservedState) -> Vec<LinkPair> {
    let inside = slot.select_from(&observed.inside).as_ref();
    let is_right = |node: &str| observed.links.get(node).is_some_and(|link| link.right);
    let is_inside = |ztunnel: &str| inside.is_some_and(|inside| inside.links.contains_key(ztunnel));
    let pairs = want::link_pairs(slot).into_iter();
    pairs.filter(|pair| !is_right(&pair.node) || !is_inside(&pair.ztunnel)).collect()
}

/// Returns the routes that will still exist after this plan has created its links.
fn surviving_routes(desired: &DesiredState, observed: &ObservedState) -> Vec<PathRoute> {
    let pairs = desired.occupied_slots().flat_map(|(slot, _)| missing_pairs(slot, observed));
    let gone: BTreeSet<String> = pairs.map(|pair| pair.node).collect();
    let stays = |route: &&PathRoute| !matches!(&route.to, RouteTo::Via(_, link) if gone.contains(link));
    observed.routes.iter().filter(stays).cloned().collect()
}

/// Adds pods to the sets when everything is ready for them.
fn join_steps(desired: &DesiredState, observed: &ObservedState) -> Vec<Operation> {
    let missing = desired.members.iter().filter(|(ip, uid)| {
        let found = observed.sets.get(&Family::from_ip(**ip)).and_then(|members| members.get(*ip));
        found.is_none_or(|comment| comment.as_ref().is_some_and(|comment| comment != *uid))
    });
    let new: Vec<_> = missing.map(|(ip, uid)| (*ip, uid.clone())).collect();
    if new.is_empty() { Vec::new() } else { vec![Operation::AddMembers(new)] }
}

fn route_step(
    place: NetnsPlace,
    routes: Vec<PathRoute>,
    edit: impl Fn(PathRoute) -> RouteEdit,
) -> Option<Operation> {
    let edits: Vec<_> = routes.into_iter().map(edit).collect();
    (!edits.is_empty()).then_some(Operation::Routes(place, edits))
}
