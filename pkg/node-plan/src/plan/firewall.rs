//! Firewall rules of the node and of ztunnels' namespaces: the desired ones, and the operation that leads to them.

use std::collections::BTreeMap;

use model::{Family, IfName};
use rules::{RuleSet, SavedTables, node as rule_sets, plan::ChainSet};

use crate::{
    config::{NodeConfig, ZtunnelFallback},
    operation::{NetnsPlace, Operation},
    state::{DesiredState, ZtunnelInstance, ZtunnelSlot},
};

/// Returns one operation with the changes of each family that differs.
pub(super) fn firewall_step(
    place: NetnsPlace,
    desired: impl Fn(Family) -> RuleSet,
    observed: &BTreeMap<Family, SavedTables>,
) -> Option<Operation> {
    let (mut changes, mut why) = (Vec::new(), Vec::new());
    for family in Family::BOTH {
        let nothing = SavedTables::default();
        let found = observed.get(&family).unwrap_or(&nothing);
        let change = ChainSet::NODE.apply(&desired(family), found);
        if !change.is_empty() {
            why.extend(change.reasons().map(|reason| (family, reason.to_owned())));
            changes.push((family, change));
        }
    }
    (!changes.is_empty()).then_some(Operation::Firewall { place, changes, why })
}

/// Returns the operations that remove our rules, and the chains that iptables created for them. Chains that the removal
/// itself records are removed with them.
pub(super) fn firewall_removal(
    place: NetnsPlace,
    observed: &BTreeMap<Family, SavedTables>,
    noted: bool,
) -> Vec<Operation> {
    let rules = firewall_step(place, |_| RuleSet::default(), observed);
    let chains = (noted || rules.is_some()).then_some(Operation::RemoveChains(place));
    rules.into_iter().chain(chains).collect()
}

pub(crate) fn node_rules(config: &NodeConfig, desired: &DesiredState, family: Family) -> RuleSet {
    let active = desired.active_for(family);
    let dns = active.filter(|(_, ztunnel)| ztunnel.dns).and_then(|(_, ztunnel)| ztunnel.ip(family));
    let capture = active.is_some() || desired.fallback != ZtunnelFallback::Open;
    let slots = ZtunnelSlot::BOTH.map(|slot| {
        let ztunnel = desired.ztunnel_in(slot)?;
        let veth = IfName::new(&ztunnel.veth).ok()?;
        Some(rule_sets::ZtunnelEndpoint { veth, ztunnel_ip: ztunnel.ip(family)? })
    });
    let host = rule_sets::NodeParameters { family, slots, set: config.set_name(family), dns, capture };
    rule_sets::host_rules(&config.rules, &host)
}

pub(crate) fn inside_rules(config: &NodeConfig, ztunnel: &ZtunnelInstance, family: Family) -> RuleSet {
    let (Some(ip), Ok(uplink)) = (ztunnel.ip(family), IfName::new(&ztunnel.uplink)) else {
        return RuleSet::default();
    };
    let inside = rule_sets::ZtunnelParameters { family, uplink: &uplink, ip, dns: ztunnel.dns };
    rule_sets::ztunnel_rules(&config.rules, &inside)
}
