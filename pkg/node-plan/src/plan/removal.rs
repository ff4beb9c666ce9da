//! Removal of our objects: those that are no longer desired, or, if nothing is desired, all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{firewall::firewall_removal, route_step};
use crate::{
    config::NodeConfig,
    diff,
    operation::{NetnsPlace, Operation, RouteEdit},
    state::{DesiredState, ObservedState, PathRule, ZtunnelInstance, ZtunnelSlot},
    want,
};

/// Returns the operations that remove our objects that are no longer desired.
pub(super) fn tidy_steps(
    config: &NodeConfig,
    desired: &DesiredState,
    observed: &ObservedState,
    rules: &[PathRule],
) -> Vec<Operation> {
    let mut steps = Vec::new();
    let families = desired.families();
    let all = observed.sets.values().flat_map(|members| members.keys());
    let left: Vec<IpAddr> = all.filter(|ip| !desired.members.contains_key(*ip)).copied().collect();
    if !left.is_empty() {
        steps.push(Operation::RemoveMembers(left));
    }
    // Rules before the routes to which they may still lead.
    steps.extend(
        diff::missing_elements(&observed.rules, rules)
            .into_iter()
            .map(|rule| Operation::DeleteRule(NetnsPlace::Node, rule)),
    );
    let stale = diff::stale_routes(&want::node_routes(config, desired), &observed.routes);
    // Routes over a deleted link are deleted explicitly, too: it is fine if they no longer exist.
    steps.extend(route_step(NetnsPlace::Node, stale, RouteEdit::Delete));
    for (slot, ztunnel) in desired.occupied_slots() {
        steps.extend(tidy_inside(config, slot, ztunnel, observed));
    }
    let kept: BTreeSet<String> =
        desired.occupied_slots().flat_map(|(slot, _)| want::link_pairs(slot)).map(|pair| pair.node).collect();
    let links = observed.links.keys().filter(|link| !kept.contains(*link));
    steps.extend(links.cloned().map(|link| Operation::DeleteLink(NetnsPlace::Node, link)));
    let unused = observed.sets.keys().filter(|family| !families.contains(family));
    steps.extend(unused.copied().map(Operation::DestroySet));
    steps
}

fn tidy_inside(
    config: &NodeConfig,
    slot: ZtunnelSlot,
    ztunnel: &ZtunnelInstance,
    observed: &ObservedState,
) -> Vec<Operation> {
    let Some(inside) = slot.select_from(&observed.inside) else { return Vec::new() };
    let place = NetnsPlace::Ztunnel(slot);
    let (rules, routes) = want::inside_routing(config, ztunnel);
    let mut steps: Vec<Operation> = diff::missing_elements(&inside.rules, &rules)
        .into_iter()
        .map(|rule| Operation::DeleteRule(place, rule))
        .collect();
    steps.extend(route_step(place, diff::stale_routes(&routes, &inside.routes), RouteEdit::Delete));
    steps
}

/// Returns the operations that remove everything of ours, in the opposite order.
pub(super) fn removal_steps(observed: &ObservedState) -> Vec<Operation> {
    let mut steps = firewall_removal(NetnsPlace::Node, &observed.firewall, observed.chains_noted);
    steps.extend(observed.rules.iter().cloned().map(|rule| Operation::DeleteRule(NetnsPlace::Node, rule)));
    steps.extend(route_step(NetnsPlace::Node, observed.routes.clone(), RouteEdit::Delete));
    for slot in ZtunnelSlot::BOTH {
        if let Some(inside) = slot.select_from(&observed.inside) {
            let place = NetnsPlace::Ztunnel(slot);
            steps.extend(firewall_removal(place, &inside.firewall, inside.chains_noted));
            steps.extend(inside.rules.iter().cloned().map(|rule| Operation::DeleteRule(place, rule)));
            steps.extend(route_step(place, inside.routes.clone(), RouteEdit::Delete));
            steps.extend(restore_steps(place, &inside.journal));
            // Each end of a tunnel is deleted separately; a veth link is deleted with its peer.
            steps.extend(inside.links.keys().cloned().map(|link| Operation::DeleteLink(place, link)));
        }
    }
    steps.extend(observed.links.keys().cloned().map(|link| Operation::DeleteLink(NetnsPlace::Node, link)));
    steps.extend(observed.sets.keys().copied().map(Operation::DestroySet));
    steps.extend(restore_steps(NetnsPlace::Node, &observed.journal));
    steps
}

fn restore_steps(place: NetnsPlace, journal: &BTreeMap<String, String>) -> Vec<Operation> {
    let restore =
        |(name, value): (&String, &String)| Operation::RestoreSysctl(place, name.clone(), value.clone());
    journal.iter().map(restore).collect()
}
