//! Desired minus observed: the steps, in an order of which no beginning lets a packet of an enrolled pod out.
//!
//! What carries traffic is made before traffic is sent into it, what catches traffic before what it is under, and
//! what is no longer used is taken away last.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use model::{Family, IfName, IpNet};
use rules::{RuleSet, Saved, node as rule_sets, plan::Owner};

use super::{
    config::{Fallback, NodeConfig},
    diff,
    state::{Desired, Generation, Observed, ObservedInside, PathRoute, PathRule, Slot},
    want::{self, Pair},
};

/// Whose network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The node's.
    Node,
    /// That of the ztunnel in a slot.
    Ztunnel(Slot),
}

/// A change of one route. A table has one route for a destination and metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteEdit {
    /// Put it in, in the place of the one with its destination and metric.
    Put(PathRoute),
    /// Take it out.
    Delete(PathRoute),
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Make the set of a family.
    CreateSet(Family),
    /// Remove the set of a family.
    DestroySet(Family),
    /// Put addresses into their family's set, with their pod's UID; one that is there gets the new UID.
    AddMembers(Vec<(IpAddr, String)>),
    /// Take addresses out.
    RemoveMembers(Vec<IpAddr>),
    /// Make a pair of links into a ztunnel's namespace.
    CreatePair(Pair),
    /// Remove one of our links, and with it its other end.
    DeleteLink(String),
    /// Switch a link on.
    SetUp(Place, String),
    /// Give a link an address.
    AddAddress(Place, String, IpNet),
    /// Change a kernel setting, after writing down what it was.
    SetSysctl(Place, String, String),
    /// Put a kernel setting back to what was written down, if the setting still exists.
    RestoreSysctl(Place, String, String),
    /// Add a policy rule.
    AddRule(Place, PathRule),
    /// Delete a policy rule.
    DeleteRule(Place, PathRule),
    /// Change routes, in order.
    Routes(Place, Vec<RouteEdit>),
    /// Change the firewall: text for one restore of each family, and why.
    Firewall(Place, Vec<(Family, String)>, Vec<String>),
}

impl Operation {
    /// A short, stable name, for metrics.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Operation::CreateSet(_) => "create-set",
            Operation::DestroySet(_) => "destroy-set",
            Operation::AddMembers(_) => "add-members",
            Operation::RemoveMembers(_) => "remove-members",
            Operation::CreatePair(_) => "create-links",
            Operation::DeleteLink(_) => "delete-link",
            Operation::SetUp(..) => "set-up",
            Operation::AddAddress(..) => "add-address",
            Operation::SetSysctl(..) => "set-sysctl",
            Operation::RestoreSysctl(..) => "restore-sysctl",
            Operation::AddRule(..) => "add-rule",
            Operation::DeleteRule(..) => "delete-rule",
            Operation::Routes(..) => "routes",
            Operation::Firewall(..) => "firewall",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Node => f.write_str("node"),
            Place::Ztunnel(slot) => write!(f, "ztunnel in slot {slot}"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::CreateSet(family) => write!(f, "create the set of {family} addresses"),
            Operation::DestroySet(family) => write!(f, "destroy the set of {family} addresses"),
            Operation::AddMembers(members) => write!(f, "add {} addresses to the sets", members.len()),
            Operation::RemoveMembers(ips) => write!(f, "remove {} addresses from the sets", ips.len()),
            Operation::CreatePair(pair) => write!(f, "create links {} and {}", pair.node, pair.ztunnel),
            Operation::DeleteLink(name) => write!(f, "delete link {name}"),
            Operation::SetUp(place, name) => write!(f, "{place}: switch {name} on"),
            Operation::AddAddress(place, name, net) => write!(f, "{place}: add {net} to {name}"),
            Operation::SetSysctl(place, name, value) => write!(f, "{place}: set {name} to {value}"),
            Operation::RestoreSysctl(place, name, value) => write!(f, "{place}: put {name} back to {value}"),
            Operation::AddRule(place, rule) => write!(f, "{place}: add rule {rule}"),
            Operation::DeleteRule(place, rule) => write!(f, "{place}: delete rule {rule}"),
            Operation::Routes(place, edits) => match edits.as_slice() {
                [RouteEdit::Put(route)] => write!(f, "{place}: put route {route}"),
                [RouteEdit::Delete(route)] => write!(f, "{place}: delete route {route}"),
                many => write!(f, "{place}: change {} routes", many.len()),
            },
            Operation::Firewall(place, _, why) => write!(f, "{place}: firewall: {}", why.join(", ")),
        }
    }
}

/// The steps from what is observed to what is desired; to nothing of ours, if nothing is desired.
#[must_use]
pub fn plan(config: &NodeConfig, desired: Option<&Desired>, observed: &Observed) -> Vec<Operation> {
    match desired {
        Some(desired) => build(config, desired, observed),
        None => remove(observed),
    }
}

fn build(config: &NodeConfig, desired: &Desired, observed: &Observed) -> Vec<Operation> {
    let mut steps = Vec::new();
    let missing = desired.families().into_iter().filter(|family| !observed.sets.contains_key(family));
    steps.extend(missing.map(Operation::CreateSet));
    for slot in Slot::BOTH {
        if let Some(ztunnel) = desired.slot(slot) {
            steps.extend(slot_steps(config, slot, ztunnel, observed));
        }
    }
    steps.extend(way_steps(config, desired, observed));
    steps.extend(join_steps(desired, observed));
    steps.extend(tidy_steps(config, desired, observed));
    steps
}

/// Links of a slot and everything in its ztunnel's namespace, before any packet is sent there.
fn slot_steps(config: &NodeConfig, slot: Slot, ztunnel: &Generation, observed: &Observed) -> Vec<Operation> {
    let place = Place::Ztunnel(slot);
    let nothing = ObservedInside::default();
    let inside = slot.of(&observed.inside).as_ref().unwrap_or(&nothing);
    let mut steps = Vec::new();
    let mut fresh = BTreeSet::new();
    for pair in want::pairs(slot) {
        let found = observed.links.get(&pair.node);
        let far = inside.links.get(&pair.ztunnel);
        if found.is_some_and(|link| link.right) && far.is_some() {
            continue;
        }
        if found.is_some() {
            steps.push(Operation::DeleteLink(pair.node.clone()));
        }
        fresh.extend([pair.node.clone(), pair.ztunnel.clone()]);
        steps.push(Operation::CreatePair(pair));
    }
    let wanted = want::addresses(config, slot, ztunnel, false);
    steps.extend(address_steps(place, &wanted, &inside.addresses, &fresh));
    for pair in want::pairs(slot) {
        if fresh.contains(&pair.ztunnel) || inside.links.get(&pair.ztunnel) != Some(&true) {
            steps.push(Operation::SetUp(place, pair.ztunnel));
        }
    }
    for (name, value) in want::inside_sysctls(slot) {
        if inside.sysctls.get(&name) != Some(&value) {
            steps.push(Operation::SetSysctl(place, name, value));
        }
    }
    let (rules, routes) = want::inside(config, ztunnel);
    steps
        .extend(diff::missing(&rules, &inside.rules).into_iter().map(|rule| Operation::AddRule(place, rule)));
    steps.extend(route_step(place, diff::changed(&routes, &inside.routes), RouteEdit::Put));
    steps.extend(firewall_step(place, |family| inside_rules(config, ztunnel, family), &inside.firewall));
    let wanted = want::addresses(config, slot, ztunnel, true);
    steps.extend(address_steps(Place::Node, &wanted, &observed.addresses, &fresh));
    for pair in want::pairs(slot) {
        let up = observed.links.get(&pair.node).is_some_and(|link| link.up);
        if fresh.contains(&pair.node) || !up {
            steps.push(Operation::SetUp(Place::Node, pair.node));
        }
    }
    for (name, value) in want::node_sysctls(ztunnel, &observed.sysctls) {
        if observed.sysctls.get(&name) != Some(&value) {
            steps.push(Operation::SetSysctl(Place::Node, name, value));
        }
    }
    steps
}

fn address_steps(
    place: Place,
    wanted: &BTreeSet<(String, IpNet)>,
    observed: &BTreeSet<(String, IpNet)>,
    fresh: &BTreeSet<String>,
) -> Vec<Operation> {
    let there = |address: &(String, IpNet)| observed.contains(address) && !fresh.contains(&address.0);
    let missing = wanted.iter().filter(|address| !there(address));
    missing.map(|(link, net)| Operation::AddAddress(place, link.clone(), *net)).collect()
}

/// Nets beneath, then the ways, then what sends packets into them, then where new connections go: a switch is the last
/// of these steps, and replaces each route at one moment.
fn way_steps(config: &NodeConfig, desired: &Desired, observed: &Observed) -> Vec<Operation> {
    let wanted = want::routes(config, desired);
    // A route over a link that this plan makes anew is gone with the old one.
    let changed = diff::changed(&wanted, &surviving(config, desired, observed));
    let (new_connections, of_slots): (Vec<_>, Vec<_>) = changed.into_iter().partition(|route| {
        let tables = [config.tables.inbound, config.tables.outbound];
        tables.contains(&route.table.0) && matches!(route.to, super::state::RouteTo::Via(..))
    });
    let mut steps: Vec<Operation> = route_step(Place::Node, of_slots, RouteEdit::Put).into_iter().collect();
    for family in desired.families() {
        let rules = want::rules(config, family);
        let missing = diff::missing(&rules, &observed.rules);
        steps.extend(missing.into_iter().map(|rule| Operation::AddRule(Place::Node, rule)));
    }
    let families = desired.families();
    let wanted = |family| {
        if families.contains(&family) { node_rules(config, desired, family) } else { RuleSet::default() }
    };
    steps.extend(firewall_step(Place::Node, wanted, &observed.firewall));
    steps.extend(route_step(Place::Node, new_connections, RouteEdit::Put));
    steps
}

/// The routes that will still be there when this plan's links have been made.
fn surviving(config: &NodeConfig, desired: &Desired, observed: &Observed) -> Vec<PathRoute> {
    let gone: BTreeSet<String> = Slot::BOTH
        .into_iter()
        .filter_map(|slot| Some((slot, desired.slot(slot)?)))
        .flat_map(|(slot, ztunnel)| slot_steps(config, slot, ztunnel, observed))
        .filter_map(|step| match step {
            Operation::CreatePair(pair) => Some(pair.node),
            _ => None,
        })
        .collect();
    let stays =
        |route: &&PathRoute| !matches!(&route.to, super::state::RouteTo::Via(_, link) if gone.contains(link));
    observed.routes.iter().filter(stays).cloned().collect()
}

/// Pods join when everything is ready for them.
fn join_steps(desired: &Desired, observed: &Observed) -> Vec<Operation> {
    let has = |ip: &IpAddr, uid: &String| {
        let found = observed.sets.get(&Family::of(*ip)).and_then(|members| members.get(ip));
        found.is_some_and(|comment| comment.as_ref().is_none_or(|comment| comment == uid))
    };
    let new: Vec<_> = desired
        .members
        .iter()
        .filter(|(ip, uid)| !has(ip, uid))
        .map(|(ip, uid)| (*ip, uid.clone()))
        .collect();
    if new.is_empty() { Vec::new() } else { vec![Operation::AddMembers(new)] }
}

/// What is ours and not wanted any more.
fn tidy_steps(config: &NodeConfig, desired: &Desired, observed: &Observed) -> Vec<Operation> {
    let mut steps = Vec::new();
    let all = observed.sets.values().flat_map(|members| members.keys());
    let left: Vec<IpAddr> = all.filter(|ip| !desired.members.contains_key(*ip)).copied().collect();
    if !left.is_empty() {
        steps.push(Operation::RemoveMembers(left));
    }
    let stale = diff::stale(&want::routes(config, desired), &observed.routes);
    // What a link that goes takes along is deleted all the same: that it is gone already is fine.
    steps.extend(route_step(Place::Node, stale, RouteEdit::Delete));
    let wanted: Vec<PathRule> =
        desired.families().into_iter().flat_map(|family| want::rules(config, family)).collect();
    steps.extend(
        diff::missing(&observed.rules, &wanted)
            .into_iter()
            .map(|rule| Operation::DeleteRule(Place::Node, rule)),
    );
    for slot in Slot::BOTH {
        if desired.slot(slot).is_some() {
            steps.extend(tidy_inside(config, slot, desired, observed));
            continue;
        }
        let links = want::pairs(slot).into_iter().map(|pair| pair.node);
        steps.extend(links.filter(|link| observed.links.contains_key(link)).map(Operation::DeleteLink));
    }
    let unused = observed.sets.keys().filter(|family| !desired.families().contains(family));
    steps.extend(unused.copied().map(Operation::DestroySet));
    steps
}

fn tidy_inside(config: &NodeConfig, slot: Slot, desired: &Desired, observed: &Observed) -> Vec<Operation> {
    let (Some(ztunnel), Some(inside)) = (desired.slot(slot), slot.of(&observed.inside)) else {
        return Vec::new();
    };
    let place = Place::Ztunnel(slot);
    let (rules, routes) = want::inside(config, ztunnel);
    let mut steps: Vec<Operation> = diff::missing(&inside.rules, &rules)
        .into_iter()
        .map(|rule| Operation::DeleteRule(place, rule))
        .collect();
    steps.extend(route_step(place, diff::stale(&routes, &inside.routes), RouteEdit::Delete));
    steps
}

/// Everything of ours, in the opposite order.
fn remove(observed: &Observed) -> Vec<Operation> {
    let mut steps: Vec<Operation> =
        firewall_step(Place::Node, |_| RuleSet::default(), &observed.firewall).into_iter().collect();
    steps.extend(observed.rules.iter().cloned().map(|rule| Operation::DeleteRule(Place::Node, rule)));
    steps.extend(route_step(Place::Node, observed.routes.clone(), RouteEdit::Delete));
    for slot in Slot::BOTH {
        if let Some(inside) = slot.of(&observed.inside) {
            let place = Place::Ztunnel(slot);
            steps.extend(firewall_step(place, |_| RuleSet::default(), &inside.firewall));
            steps.extend(inside.rules.iter().cloned().map(|rule| Operation::DeleteRule(place, rule)));
            steps.extend(route_step(place, inside.routes.clone(), RouteEdit::Delete));
            steps.extend(restore_steps(place, &inside.journal));
        }
    }
    steps.extend(observed.links.keys().cloned().map(Operation::DeleteLink));
    steps.extend(observed.sets.keys().copied().map(Operation::DestroySet));
    steps.extend(restore_steps(Place::Node, &observed.journal));
    steps
}

fn restore_steps(place: Place, journal: &BTreeMap<String, String>) -> Vec<Operation> {
    let restore =
        |(name, value): (&String, &String)| Operation::RestoreSysctl(place, name.clone(), value.clone());
    journal.iter().map(restore).collect()
}

fn route_step(
    place: Place,
    routes: Vec<PathRoute>,
    edit: impl Fn(PathRoute) -> RouteEdit,
) -> Option<Operation> {
    let edits: Vec<_> = routes.into_iter().map(edit).collect();
    (!edits.is_empty()).then_some(Operation::Routes(place, edits))
}

/// One restore per family with all that differs.
fn firewall_step(
    place: Place,
    wanted: impl Fn(Family) -> RuleSet,
    observed: &BTreeMap<Family, Saved>,
) -> Option<Operation> {
    let (mut texts, mut why) = (Vec::new(), Vec::new());
    for family in Family::BOTH {
        let nothing = Saved::default();
        let found = observed.get(&family).unwrap_or(&nothing);
        let change = Owner::NODE.apply(&wanted(family), found);
        if !change.is_empty() {
            why.extend(change.reasons().map(|reason| format!("{family}: {reason}")));
            texts.push((family, change.restore_text()));
        }
    }
    (!texts.is_empty()).then_some(Operation::Firewall(place, texts, why))
}

fn node_rules(config: &NodeConfig, desired: &Desired, family: Family) -> RuleSet {
    let slot = |slot| {
        let ztunnel = desired.slot(slot)?;
        let veth = IfName::new(&ztunnel.veth).ok()?;
        Some(rule_sets::Slot { veth, ztunnel_ip: ztunnel.ip(family)? })
    };
    let active = desired.active_for(family);
    let dns = active.filter(|(_, ztunnel)| ztunnel.dns).and_then(|(_, ztunnel)| ztunnel.ip(family));
    let capture = active.is_some() || desired.fallback != Fallback::Open;
    let slots = Slot::BOTH.map(slot);
    let host = rule_sets::Host { family, slots, set: config.set(family), dns, capture };
    rule_sets::host(&config.rules, &host)
}

fn inside_rules(config: &NodeConfig, ztunnel: &Generation, family: Family) -> RuleSet {
    let (Some(ip), Ok(uplink)) = (ztunnel.ip(family), IfName::new(&ztunnel.uplink)) else {
        return RuleSet::default();
    };
    let inside = rule_sets::Ztunnel { family, uplink: &uplink, ip, dns: ztunnel.dns };
    rule_sets::ztunnel(&config.rules, &inside)
}
