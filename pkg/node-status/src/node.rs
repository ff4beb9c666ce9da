//! Node path: comparison of desired and observed objects.

mod objects;

use std::net::IpAddr;

use capture_modes::{CaptureSettings, open_path};
use model::{Family, MemberAddresses, PodUid};
use node_plan::{
    DesiredNode, DesiredState, KernelSlots, NetnsPlace, ObservedState, Operation, PathRule, ZtunnelSlot,
    desired_node, plan_operations,
};
use report::{
    Comparison, DifferenceKind, NetworkState, PolicyRuleState, SetMember, StateDifference, StatePart,
    StateReport, Unobserved,
};

use crate::{firewall::compare_shown_rules, steps};

pub(super) use objects::{ShownObjects, compare_sysctls};

/// Returns the slot that the kernel sends new connections to.
pub(super) fn active_slot(settings: &CaptureSettings, observed: &ObservedState) -> Option<ZtunnelSlot> {
    KernelSlots::from(&settings.node, observed).active
}

/// An observation of the kernel.
#[derive(Clone, Debug, Default)]
pub(super) struct KernelObservation {
    pub(super) observed: Option<ObservedState>,
    /// Parts that could not be observed.
    pub(super) unobserved: Vec<Unobserved>,
}

/// Observes everything in the calling thread's namespace, without changing anything.
pub(super) fn observe_node(settings: &CaptureSettings, desired: Option<&DesiredState>) -> KernelObservation {
    let mut observation = KernelObservation::default();
    let observed =
        open_path(settings).and_then(|mut path| path.observe_network().map(|observed| (path, observed)));
    match observed {
        Err(error) => observation.unobserved.push(Unobserved::new(StatePart::Network, error)),
        Ok((mut path, mut observed)) => {
            if let Err(error) = path.observe_firewall(&mut observed) {
                observation.unobserved.push(Unobserved::new(StatePart::Firewall, error));
            }
            let slots = desired.map_or([None, None], |desired| desired.slots.clone());
            if let Err(error) = path.observe_slots(&mut observed, &slots) {
                observation.unobserved.push(Unobserved::new(StatePart::ZtunnelNamespace, error));
            }
            observation.observed = Some(observed);
        }
    }
    observation
}

/// Fills in network and plan.
pub(super) fn add_network(
    settings: &CaptureSettings,
    desired: Option<&DesiredState>,
    observation: KernelObservation,
    state: &mut StateReport,
) {
    let KernelObservation { observed, unobserved } = observation;
    state.observation.unobserved.extend(unobserved.iter().cloned());
    let Some(observed) = observed else { return };
    let nothing = DesiredState::default();
    let want = desired_node(&settings.node, desired.unwrap_or(&nothing), &observed);
    let set = |family| settings.node.set_name(family).to_owned();
    state.network = compare_network(&want, desired.unwrap_or(&nothing), &observed, &unobserved, set);
    if let (Some(desired), true) = (desired, unobserved.is_empty()) {
        let operations = plan_operations(&settings.node, Some(desired), &observed);
        compare_rule_places(&operations, &mut state.network);
        state.plan = operations.iter().map(|operation| steps::plan_step(operation, &settings.node)).collect();
    }
}

/// Adds differences for misplaced rules, which are not other rules: the plan shows them better than a comparison of lists.
fn compare_rule_places(steps: &[Operation], network: &mut NetworkState) {
    if !network.firewall.differences.is_empty() {
        return;
    }
    for step in steps {
        let Operation::Firewall { place, why, .. } = step else { continue };
        let found = why.iter().map(|(family, why)| StateDifference {
            kind: DifferenceKind::Changed,
            family: Some(family.number()),
            object: format!("{}: {family}: {why}", place_name(place)),
        });
        network.firewall.differences.extend(found);
    }
}

/// Returns the name of a network namespace in [`NetworkState`].
pub(super) fn place_name(place: &NetnsPlace) -> String {
    match place {
        NetnsPlace::Node => "node".to_owned(),
        NetnsPlace::Ztunnel(slot) => format!("ztunnel {slot}"),
    }
}

/// Compares members of sets. One without a comment counts as having the right one: older kernels store none.
pub(super) fn compare_members(
    desired: &MemberAddresses,
    observed: impl Iterator<Item = (IpAddr, Option<PodUid>)>,
    set: impl Fn(Family) -> String,
) -> Comparison<SetMember> {
    let member = |ip: IpAddr, uid: Option<PodUid>| SetMember { set: set(Family::from_ip(ip)), ip, uid };
    let want: Vec<SetMember> = desired.iter().map(|(ip, uid)| member(*ip, Some(uid.clone()))).collect();
    let have: Vec<SetMember> = observed.map(|(ip, uid)| member(ip, uid)).collect();
    let filled = have.iter().map(|one| match &one.uid {
        Some(_) => one.clone(),
        None => member(one.ip, desired.get(&one.ip).cloned()),
    });
    let differences = Comparison::compare_sets(want.clone(), filled.collect()).differences;
    Comparison { desired: want, observed: Some(have), differences }
}

/// Compares all parts but those that could not be observed.
fn compare_network(
    want: &DesiredNode,
    desired: &DesiredState,
    observed: &ObservedState,
    unobserved: &[Unobserved],
    set: impl Fn(Family) -> String,
) -> NetworkState {
    let in_sets = observed.sets.values().flatten().map(|(ip, uid)| (*ip, uid.clone()));
    let is_observed = |part| !unobserved.iter().any(|unobserved| unobserved.part == part);
    let has_ztunnels = is_observed(StatePart::ZtunnelNamespace);
    let (mut expected, mut found) = (ShownObjects::default(), ShownObjects::from(observed));
    expected.add_desired("node", &want.node);
    for slot in ZtunnelSlot::BOTH {
        let is_known = has_ztunnels || slot.select_from(&observed.inside).is_some();
        if let Some(inside) = slot.select_from(&want.inside).as_ref().filter(|_| is_known) {
            expected.add_desired(&place_name(&NetnsPlace::Ztunnel(slot)), inside);
        }
    }
    if !has_ztunnels {
        // Only observed together with a ztunnel: the peers of links, and settings of its interface.
        found.links.iter_mut().for_each(|link| link.correct = true);
        let is_found = |name: &str| observed.sysctls.contains_key(name);
        expected.sysctls.retain(|one| one.netns != "node" || is_found(&one.name));
    }
    let mut firewall = compare_shown_rules(expected.firewall, found.firewall);
    if !is_observed(StatePart::Firewall) {
        firewall = Comparison::without_observation(firewall.desired);
    }
    NetworkState {
        ipsets: compare_members(&desired.members, in_sets, set),
        rules: Comparison::compare_sets(expected.rules, found.rules),
        routes: Comparison::compare_sets(expected.routes, found.routes),
        links: Comparison::compare_sets(expected.links, found.links),
        sysctls: compare_sysctls(expected.sysctls, found.sysctls),
        firewall,
        foreign: observed.foreign.clone(),
        overruling: observed.bypass_reasons().collect(),
    }
}

pub(super) fn policy_rule(place: &str, rule: &PathRule) -> PolicyRuleState {
    PolicyRuleState {
        netns: place.to_owned(),
        family: rule.family.number(),
        priority: rule.priority,
        mark: rule.mark.map(|mark| mark.value),
        mask: rule.mark.map(|mark| mark.mask),
        table: rule.table.0,
    }
}

#[cfg(test)]
mod tests;
