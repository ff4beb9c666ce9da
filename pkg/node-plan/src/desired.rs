//! All objects of a desired state, for reports. The plan does not use this list: it compares each kind of object in its
//! own order.

use std::collections::{BTreeMap, BTreeSet};

use model::{Family, IpNet};
use rules::RuleSet;

use super::{
    config::NodeConfig,
    plan::{inside_rules, node_rules},
    state::{DesiredState, ObservedState, PathRoute, PathRule, ZtunnelInstance, ZtunnelSlot},
    want,
};

/// Desired objects of the node, and of the namespaces of its ztunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredNode {
    /// Families that have a set.
    pub families: BTreeSet<Family>,
    /// Objects of the node.
    pub node: DesiredPlace,
    /// Objects in the namespace of each slot's ztunnel.
    pub inside: [Option<DesiredPlace>; 2],
}

/// Objects in one network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredPlace {
    /// Policy rules.
    pub rules: Vec<PathRule>,
    /// Routes of our tables.
    pub routes: Vec<PathRoute>,
    /// Addresses of our links, each of which has one.
    pub addresses: BTreeSet<(String, IpNet)>,
    /// Kernel settings.
    pub sysctls: BTreeMap<String, String>,
    /// Firewall rules of each family.
    pub firewall: BTreeMap<Family, RuleSet>,
}

/// Lists the state to which [`super::plan_operations`] leads. The desired kernel settings depend on foreign ones, which
/// are taken from the observed state.
pub fn desired_node(config: &NodeConfig, desired: &DesiredState, observed: &ObservedState) -> DesiredNode {
    let families = desired.families();
    let inside = ZtunnelSlot::BOTH
        .map(|slot| desired.ztunnel_in(slot).map(|ztunnel| desired_inside(config, slot, ztunnel)));
    let node = DesiredPlace {
        rules: families.iter().flat_map(|family| want::policy_rules(config, *family)).collect(),
        routes: want::node_routes(config, desired),
        addresses: desired
            .occupied_slots()
            .flat_map(|(slot, ztunnel)| want::link_addresses(config, slot, ztunnel, true))
            .collect(),
        sysctls: node_sysctls(desired, observed),
        firewall: families.iter().map(|family| (*family, node_rules(config, desired, *family))).collect(),
    };
    DesiredNode { families, node, inside }
}

/// Returns the node's kernel settings. Settings that were changed before, and need no other value, count as ours, too.
fn node_sysctls(desired: &DesiredState, observed: &ObservedState) -> BTreeMap<String, String> {
    let of_slot = |(slot, ztunnel)| want::node_sysctls(slot, ztunnel, &observed.sysctls);
    let mut settings: BTreeMap<String, String> = desired.occupied_slots().flat_map(of_slot).collect();
    for (name, value) in observed.sysctls.iter().filter(|(name, _)| observed.journal.contains_key(*name)) {
        settings.entry(name.clone()).or_insert_with(|| value.clone());
    }
    settings
}

fn desired_inside(config: &NodeConfig, slot: ZtunnelSlot, ztunnel: &ZtunnelInstance) -> DesiredPlace {
    let (rules, routes) = want::inside_routing(config, ztunnel);
    DesiredPlace {
        rules,
        routes,
        addresses: want::link_addresses(config, slot, ztunnel, false),
        sysctls: want::inside_sysctls(slot),
        firewall: Family::BOTH.map(|family| (family, inside_rules(config, ztunnel, family))).into(),
    }
}
