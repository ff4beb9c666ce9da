//! The node path: desired and observed, object by object.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use capture_modes::{CaptureSettings, open_path};
use model::{Family, IpNet, PodUid};
use planner::node::{
    DesiredState, KernelSlots, MemberAddresses, NetnsPlace, ObservedInside, ObservedState, Operation,
    PathRoute, PathRule, RouteTo, WantedInside, WantedNode, ZtunnelSlot, plan, wanted,
};
use report::{
    Comparison, DifferenceKind, LinkState, NetworkState, PolicyRuleState, RouteState, SetMember,
    StateDifference, StatePart, StateReport, SysctlState, Unobserved,
};
use rules::{ChainSet, RuleSet, SavedTables, SeenLine};

use crate::{
    firewall::{ShownRule, as_seen, firewall, rule},
    steps,
};

/// The slot that the kernel sends new connections to.
pub(super) fn active(settings: &CaptureSettings, observed: &ObservedState) -> Option<ZtunnelSlot> {
    KernelSlots::from(&settings.node, observed).active
}

/// What the kernel shows.
#[derive(Clone, Debug, Default)]
pub(super) struct KernelLook {
    pub(super) observed: Option<ObservedState>,
    /// What could not be observed.
    pub(super) blind: Vec<Unobserved>,
}

/// Observes everything, in the calling thread's namespace, and changes nothing.
pub(super) fn look(settings: &CaptureSettings, desired: Option<&DesiredState>) -> KernelLook {
    let mut look = KernelLook::default();
    let observed =
        open_path(settings).and_then(|mut path| path.observe_network().map(|observed| (path, observed)));
    match observed {
        Err(error) => look.blind.push(Unobserved::new(StatePart::Network, error)),
        Ok((mut path, mut observed)) => {
            if let Err(error) = path.observe_firewall(&mut observed) {
                look.blind.push(Unobserved::new(StatePart::Firewall, error));
            }
            let slots = desired.map_or([None, None], |desired| desired.slots.clone());
            if let Err(error) = path.observe_slots(&mut observed, &slots) {
                look.blind.push(Unobserved::new(StatePart::ZtunnelNamespace, error));
            }
            look.observed = Some(observed);
        }
    }
    look
}

/// Fills in network and plan.
pub(super) fn show(
    settings: &CaptureSettings,
    desired: Option<&DesiredState>,
    look: KernelLook,
    state: &mut StateReport,
    blind: &mut Vec<Unobserved>,
) {
    let complete = look.blind.is_empty();
    blind.extend(look.blind);
    let Some(observed) = look.observed else { return };
    let nothing = DesiredState::default();
    let want = wanted(&settings.node, desired.unwrap_or(&nothing), &observed);
    let set = |family| settings.node.set(family).to_owned();
    state.network = network(&want, desired.unwrap_or(&nothing), &observed, set);
    if let (Some(desired), true) = (desired, complete) {
        let operations = plan(&settings.node, Some(desired), &observed);
        judge_firewall(&operations, &mut state.network);
        state.plan = operations.iter().map(|operation| steps::step(operation, &settings.node)).collect();
    }
}

/// A rule at the wrong place is not another rule: the plan shows that better than a comparison of lists.
fn judge_firewall(steps: &[Operation], network: &mut NetworkState) {
    let reasons = steps.iter().filter_map(|step| match step {
        Operation::Firewall { place: at, why, .. } => Some((at, why)),
        _ => None,
    });
    let found: Vec<StateDifference> = reasons
        .flat_map(|(at, why)| {
            why.iter().map(move |(family, why)| (*family, format!("{}: {family}: {why}", place(at))))
        })
        .map(|(family, what)| StateDifference {
            kind: DifferenceKind::Changed,
            family: Some(number(family)),
            what,
        })
        .collect();
    if network.firewall.difference.is_empty() {
        network.firewall.difference = found;
    }
}

/// As [`NetworkState`] names places.
pub(super) fn place(place: &NetnsPlace) -> String {
    match place {
        NetnsPlace::Node => "node".to_owned(),
        NetnsPlace::Ztunnel(slot) => format!("ztunnel {slot}"),
    }
}

/// A member without a comment counts like one with the right comment: an older kernel keeps none.
pub(super) fn members(
    desired: &MemberAddresses,
    observed: impl Iterator<Item = (IpAddr, Option<PodUid>)>,
    set: impl Fn(Family) -> String,
) -> Comparison<SetMember> {
    let member = |ip: IpAddr, uid: Option<PodUid>| SetMember { set: set(Family::of(ip)), ip, uid };
    let want: Vec<SetMember> = desired.iter().map(|(ip, uid)| member(*ip, Some(uid.clone()))).collect();
    let have: Vec<SetMember> = observed.map(|(ip, uid)| member(ip, uid)).collect();
    let filled = have.iter().map(|seen| match &seen.uid {
        Some(_) => seen.clone(),
        None => member(seen.ip, desired.get(&seen.ip).cloned()),
    });
    let difference = Comparison::of(want.clone(), filled.collect()).difference;
    Comparison::judged(want, have, difference)
}

fn network(
    want: &WantedNode,
    desired: &DesiredState,
    observed: &ObservedState,
    set: impl Fn(Family) -> String,
) -> NetworkState {
    let in_sets = observed.sets.values().flatten().map(|(ip, uid)| (*ip, uid.clone()));
    let mut all = ComparedLists::default();
    all.add("node", &want.into(), &observed.into());
    for slot in ZtunnelSlot::BOTH {
        let place = place(&NetnsPlace::Ztunnel(slot));
        let nothing = NetworkObjects::default();
        let (want, have) = (slot.of(&want.inside), slot.of(&observed.inside));
        let want = want.as_ref().map_or(nothing.clone(), Into::into);
        all.add(&place, &want, &have.as_ref().map_or(nothing, Into::into));
    }
    NetworkState {
        ipsets: members(&desired.members, in_sets, set),
        rules: Comparison::of(all.desired.rules, all.observed.rules),
        routes: Comparison::of(all.desired.routes, all.observed.routes),
        links: Comparison::of(all.desired.links, all.observed.links),
        sysctls: all.sysctls,
        firewall: firewall(all.desired.firewall, all.observed.firewall),
        foreign: observed.foreign.clone(),
    }
}

/// Objects of one place, or of all.
#[derive(Clone, Debug, Default)]
struct NetworkObjects {
    rules: Vec<PathRule>,
    routes: Vec<PathRoute>,
    links: BTreeMap<String, (bool, bool)>,
    addresses: Vec<(String, IpNet)>,
    sysctls: BTreeMap<String, String>,
    journal: BTreeMap<String, String>,
    firewall: Vec<(Family, SeenLine)>,
}

/// Both sides, ready to be shown.
#[derive(Default)]
struct ComparedLists {
    desired: ShownObjects,
    observed: ShownObjects,
    sysctls: Comparison<SysctlState>,
}

#[derive(Default)]
struct ShownObjects {
    rules: Vec<PolicyRuleState>,
    routes: Vec<RouteState>,
    links: Vec<LinkState>,
    firewall: Vec<ShownRule>,
}

impl ComparedLists {
    fn add(&mut self, place: &str, want: &NetworkObjects, have: &NetworkObjects) {
        self.desired.add(place, want);
        self.observed.add(place, have);
        self.add_sysctls(place, want, have);
    }

    /// Of the observed settings, only those are ours that we want to be different, or have changed.
    fn add_sysctls(&mut self, place: &str, want: &NetworkObjects, have: &NetworkObjects) {
        let show = |name: &String, value: &String| SysctlState {
            place: place.to_owned(),
            name: name.clone(),
            value: value.clone(),
            before: None,
        };
        let desired = want.sysctls.iter().map(|(name, value)| show(name, value)).collect();
        let ours = have.sysctls.iter().filter(|(name, _)| want.sysctls.contains_key(*name));
        let observed: Vec<SysctlState> = ours.map(|(name, value)| show(name, value)).collect();
        let mut of = Comparison::of(desired, observed);
        for seen in of.observed.iter_mut().flatten() {
            seen.before = have.journal.get(&seen.name).cloned();
        }
        self.sysctls.desired.append(&mut of.desired);
        self.sysctls.observed.get_or_insert_default().extend(of.observed.unwrap_or_default());
        self.sysctls.difference.append(&mut of.difference);
    }
}

impl ShownObjects {
    fn add(&mut self, place: &str, objects: &NetworkObjects) {
        self.rules.extend(objects.rules.iter().map(|rule| policy_rule(place, rule)));
        self.routes.extend(objects.routes.iter().map(|found| route(place, found)));
        self.links.extend(objects.links.iter().map(|(name, (up, right))| {
            let own = objects.addresses.iter().filter(|(link, _)| link == name);
            let mut addresses: Vec<String> = own.map(|(_, net)| net.to_string()).collect();
            addresses.sort();
            LinkState { place: place.to_owned(), name: name.clone(), up: *up, right: *right, addresses }
        }));
        self.firewall.extend(objects.firewall.iter().map(|(family, line)| rule(place, *family, line)));
    }
}

fn wanted_lines(sets: &BTreeMap<Family, RuleSet>) -> Vec<(Family, SeenLine)> {
    let of = |(family, set): (&Family, &RuleSet)| {
        set.lines().into_iter().map(|line| (*family, as_seen(line))).collect()
    };
    sets.iter().flat_map(|one| -> Vec<_> { of(one) }).collect()
}

fn seen_lines(saved: &BTreeMap<Family, SavedTables>) -> Vec<(Family, SeenLine)> {
    let of = |(family, saved): (&Family, &SavedTables)| {
        ChainSet::NODE.lines(saved).into_iter().map(|line| (*family, line)).collect()
    };
    saved.iter().flat_map(|one| -> Vec<_> { of(one) }).collect()
}

/// Without those that the kernel adds to each link.
fn given(all: &BTreeSet<(String, IpNet)>) -> Vec<(String, IpNet)> {
    let is_given = |ip: IpAddr| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    all.iter().filter(|(_, net)| is_given(net.addr())).cloned().collect()
}

impl From<&WantedNode> for NetworkObjects {
    fn from(want: &WantedNode) -> NetworkObjects {
        NetworkObjects {
            rules: want.rules.clone(),
            routes: want.routes.clone(),
            links: want.pairs.iter().map(|pair| (pair.node.clone(), (true, true))).collect(),
            addresses: want.addresses.iter().cloned().collect(),
            sysctls: want.sysctls.clone(),
            journal: BTreeMap::new(),
            firewall: wanted_lines(&want.firewall),
        }
    }
}

impl From<&ObservedState> for NetworkObjects {
    fn from(seen: &ObservedState) -> NetworkObjects {
        NetworkObjects {
            rules: seen.rules.clone(),
            routes: seen.routes.clone(),
            links: seen.links.iter().map(|(name, link)| (name.clone(), (link.up, link.right))).collect(),
            addresses: given(&seen.addresses),
            sysctls: seen.sysctls.clone(),
            journal: seen.journal.clone(),
            firewall: seen_lines(&seen.firewall),
        }
    }
}

impl From<&WantedInside> for NetworkObjects {
    fn from(want: &WantedInside) -> NetworkObjects {
        let links = want.addresses.iter().map(|(link, _)| (link.clone(), (true, true)));
        NetworkObjects {
            rules: want.rules.clone(),
            routes: want.routes.clone(),
            links: links.collect(),
            addresses: want.addresses.iter().cloned().collect(),
            sysctls: want.sysctls.clone(),
            journal: BTreeMap::new(),
            firewall: wanted_lines(&want.firewall),
        }
    }
}

impl From<&ObservedInside> for NetworkObjects {
    fn from(seen: &ObservedInside) -> NetworkObjects {
        NetworkObjects {
            rules: seen.rules.clone(),
            routes: seen.routes.clone(),
            links: seen.links.iter().map(|(name, up)| (name.clone(), (*up, true))).collect(),
            addresses: given(&seen.addresses),
            sysctls: seen.sysctls.clone(),
            journal: seen.journal.clone(),
            firewall: seen_lines(&seen.firewall),
        }
    }
}

pub(super) fn number(family: Family) -> u8 {
    match family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}

pub(super) fn policy_rule(place: &str, rule: &PathRule) -> PolicyRuleState {
    PolicyRuleState {
        place: place.to_owned(),
        family: number(rule.family),
        priority: rule.priority,
        mark: rule.mark.map(|mark| mark.value),
        mask: rule.mark.map(|mark| mark.mask),
        table: rule.table.0,
    }
}

fn route(place: &str, route: &PathRoute) -> RouteState {
    let (kind, gateway, device) = match &route.to {
        RouteTo::Via(gateway, link) => ("unicast", Some(*gateway), Some(link.clone())),
        RouteTo::Local(link) => ("local", None, Some(link.clone())),
        RouteTo::Blackhole => ("blackhole", None, None),
        RouteTo::Unreachable => ("unreachable", None, None),
        RouteTo::Other(words) => (words.as_str(), None, None),
    };
    RouteState {
        place: place.to_owned(),
        family: number(route.family),
        table: route.table.0,
        destination: route.dst.map_or_else(|| "default".to_owned(), |dst| destination(&dst)),
        kind: kind.to_owned(),
        gateway,
        device,
        metric: route.metric,
    }
}

/// A single host is written without its prefix length, as `ip` does.
fn destination(dst: &IpNet) -> String {
    let text = dst.to_string();
    let whole = if dst.addr().is_ipv4() { "/32" } else { "/128" };
    text.strip_suffix(whole).map_or(text.clone(), str::to_owned)
}
