//! Observation of a ztunnel's namespace.

use std::collections::BTreeMap;

use firewall::{Firewall, FirewallOptions};
use hostnet::{RtnetlinkHandle, sysctl};
use node_plan::{
    ObservedInside, PathRule, ZtunnelSlot, inside_table, is_our_inside_rule, link_pairs,
    watched_inside_sysctls,
};
use rules::ChainSet;

use crate::{Error, LocatedPod, convert, convert::LinkNames};

/// Observes the namespace.
pub(crate) fn observe_inside(
    slot: ZtunnelSlot,
    located: &mut LocatedPod,
    options: &FirewallOptions,
) -> Result<ObservedInside, Error> {
    let mut observed = observe_network(slot, &mut located.net)?;
    let (opened, found, inactive, sysctls) = located.netns.run_in(|| {
        let (opened, found) = Firewall::open(options)?;
        let inactive = opened.inactive_rules(ChainSet::NODE, &found)?;
        Ok::<_, Error>((opened, found, inactive, read_sysctls(&watched_inside_sysctls())?))
    })??;
    located.firewall = Some(opened);
    observed.inactive = inactive;
    observed.firewall = found.families;
    observed.sysctls = sysctls;
    Ok(observed)
}

fn observe_network(slot: ZtunnelSlot, net: &mut RtnetlinkHandle) -> Result<ObservedInside, Error> {
    let ours: Vec<String> = link_pairs(slot).into_iter().map(|pair| pair.ztunnel).collect();
    let links = net.list_links()?;
    let names = LinkNames::from_links(&links);
    let own: Vec<_> = links.iter().filter(|link| ours.contains(&link.name)).collect();
    let addresses = net.list_addresses()?;
    let of_ours = addresses.iter().filter_map(|address| {
        let link = own.iter().find(|link| link.index == address.index)?;
        Some((link.name.clone(), hostnet::IpNet::new(address.ip, address.prefix_len).ok()?))
    });
    let mut rules = Vec::new();
    for family in model::Family::BOTH {
        let found = net.list_rules(family)?;
        rules.extend(found.iter().filter_map(convert::rule_from).filter(is_our_inside_rule));
    }
    let mut ours = net.list_routes(Some(inside_table()))?;
    ours.retain(|route| route.protocol == convert::OURS);
    Ok(ObservedInside {
        links: own.iter().map(|link| (link.name.clone(), link.is_up)).collect(),
        addresses: of_ours.collect(),
        rules: sort_unique(rules),
        routes: ours.iter().map(|route| convert::route_from(route, &names)).collect(),
        ..ObservedInside::default()
    })
}

/// Sorts rules and removes duplicates. A duplicate counts once, because deleting the rule deletes both.
pub(crate) fn sort_unique(mut rules: Vec<PathRule>) -> Vec<PathRule> {
    rules.sort();
    rules.dedup();
    rules
}

/// Reads settings of the calling thread's namespace; those that do not exist are omitted.
pub(crate) fn read_sysctls(names: &[String]) -> Result<BTreeMap<String, String>, Error> {
    let mut values = BTreeMap::new();
    for name in names {
        if let Some(value) = sysctl::read(name)? {
            values.insert(name.clone(), value);
        }
    }
    Ok(values)
}
