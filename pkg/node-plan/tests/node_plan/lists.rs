//! The list of desired objects for people, compared with the kernel's objects after a plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use model::{Family, IpNet};
use node_plan::{DesiredPlace, DesiredState, PathRoute, PathRule, desired_node};
use rules::{ChainSet, RuleLine, RuleSet, SavedTables};

use crate::world::World;

/// Listed or observed objects of a network namespace.
struct Objects<'a> {
    rules: &'a [PathRule],
    routes: &'a [PathRoute],
    links: BTreeSet<String>,
    addresses: &'a BTreeSet<(String, IpNet)>,
    sysctls: &'a BTreeMap<String, String>,
    firewall: BTreeMap<Family, Vec<RuleLine>>,
}

/// Asserts that every listed object exists, and every object of ours that exists is listed.
pub(crate) fn assert_as_listed(world: &mut World, desired: &DesiredState) {
    let seen = world.observe(&world.slots.clone());
    let listed = desired_node(&world.config, desired, &seen);
    assert_eq!(listed.families, seen.sets.keys().copied().collect(), "families");
    let all_right = seen.links.values().all(|link| link.up && link.right);
    assert!(all_right, "{:?}", seen.links);
    let have = Objects {
        rules: &seen.rules,
        routes: &seen.routes,
        links: seen.links.keys().cloned().collect(),
        addresses: &seen.addresses,
        sysctls: &seen.sysctls,
        firewall: observed_lines(&seen.firewall),
    };
    assert_same("node", &desired_objects(&listed.node), &have, &seen.journal);
    for (listed, seen) in listed.inside.iter().zip(&seen.inside) {
        let (Some(listed), Some(seen)) = (listed, seen) else {
            assert_eq!(listed.is_some(), seen.is_some(), "a ztunnel's namespace");
            continue;
        };
        let have = Objects {
            rules: &seen.rules,
            routes: &seen.routes,
            links: seen.links.keys().cloned().collect(),
            addresses: &seen.addresses,
            sysctls: &seen.sysctls,
            firewall: observed_lines(&seen.firewall),
        };
        assert_same("ztunnel", &desired_objects(listed), &have, &seen.journal);
    }
}

fn desired_objects(listed: &DesiredPlace) -> Objects<'_> {
    Objects {
        rules: &listed.rules,
        routes: &listed.routes,
        links: listed.addresses.iter().map(|(link, _)| link.clone()).collect(),
        addresses: &listed.addresses,
        sysctls: &listed.sysctls,
        firewall: desired_lines(&listed.firewall),
    }
}

fn assert_same(place: &str, want: &Objects<'_>, have: &Objects<'_>, journal: &BTreeMap<String, String>) {
    assert_eq!(sorted(want.rules), sorted(have.rules), "{place}: rules");
    assert_eq!(sorted(want.routes), sorted(have.routes), "{place}: routes");
    assert_eq!(want.links, have.links, "{place}: links");
    // An existing link may have further ones.
    assert!(want.addresses.is_subset(have.addresses), "{place}: {:?} {:?}", want.addresses, have.addresses);
    let settings: BTreeMap<_, _> = want.sysctls.keys().map(|name| (name, have.sysctls.get(name))).collect();
    let values: BTreeMap<_, _> = want.sysctls.iter().map(|(name, value)| (name, Some(value))).collect();
    assert_eq!(values, settings, "{place}: settings");
    // Settings of the link of a departed ztunnel stay changed until an uninstallation, and are not observed.
    let unlisted =
        journal.keys().find(|name| have.sysctls.contains_key(*name) && !want.sysctls.contains_key(*name));
    assert_eq!(unlisted, None, "{place}: it is changed and not listed");
    assert_eq!(want.firewall, have.firewall, "{place}: firewall");
}

fn sorted<T: Ord + Clone + Debug>(all: &[T]) -> Vec<T> {
    let mut all = all.to_vec();
    all.sort();
    all
}

fn desired_lines(sets: &BTreeMap<Family, RuleSet>) -> BTreeMap<Family, Vec<RuleLine>> {
    let of = |(family, set): (&Family, &RuleSet)| (*family, in_chains(set.rule_lines()));
    sets.iter().map(of).filter(|(_, lines)| !lines.is_empty()).collect()
}

fn observed_lines(saved: &BTreeMap<Family, SavedTables>) -> BTreeMap<Family, Vec<RuleLine>> {
    let lines =
        |saved: &SavedTables| ChainSet::NODE.owned_lines(saved).into_iter().map(|seen| seen.line).collect();
    let of = |(family, saved): (&Family, &SavedTables)| (*family, in_chains(lines(saved)));
    saved.iter().map(of).filter(|(_, lines)| !lines.is_empty()).collect()
}

/// Sorted by chain; the order within one counts.
fn in_chains(mut lines: Vec<RuleLine>) -> Vec<RuleLine> {
    lines.sort_by(|a, b| (a.table, &a.chain).cmp(&(b.table, &b.chain)));
    lines
}
