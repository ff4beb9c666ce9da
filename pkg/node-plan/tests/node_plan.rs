//! Plans of the node path with a model of the kernel: they converge, in an order of which no prefix lets a packet of an enrolled
//! pod bypass the mesh, and remove everything again.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

#[path = "node_plan/events.rs"]
mod events;
#[path = "node_plan/fate.rs"]
mod fate;
#[path = "../../rules/tests/properties/kernel.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod kernel;
#[path = "node_plan/lists.rs"]
mod lists;
#[path = "node_plan/order.rs"]
mod order;
#[path = "node_plan/steps.rs"]
mod steps;
#[path = "node_plan/world.rs"]
mod world;

use std::{collections::BTreeMap, net::IpAddr};

use events::{Aim, Event, STALE_ROUTE, aims, events, fallbacks};
use fate::{Fate, Packet, fate};
use kernel::{Kernel, Words, verdict};
use model::Family;
use node_plan::{DesiredState, ObservedState, Operation, PathRule, ZtunnelFallback, ZtunnelSlot};
use proptest::{prelude::*, sample::select};
use rules::{ChainSet, SavedTables, Table};
use steps::atoms;
use world::{Netns, World, far_links, node_links};

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn words(steps: &[Operation]) -> Vec<String> {
    steps.iter().map(ToString::to_string).collect()
}

fn apply_all(world: &mut World, steps: &[Operation]) {
    for step in steps {
        world.apply(step).unwrap_or_else(|error| panic!("{error}\nof {:#?}", words(steps)));
    }
}

/// Brings the world into the desired state, and returns that.
fn converge(world: &mut World, aim: &Aim) -> DesiredState {
    let (desired, slots) = aim.desired(world);
    let steps = world.plan(Some(&desired), &slots);
    apply_all(world, &steps);
    let left = world.plan(Some(&desired), &slots);
    assert!(left.is_empty(), "{:#?}\nleft after {:#?}", words(&left), words(&steps));
    desired
}

/// All objects of ours: sets, links, rules, routes, chains; on the node, and in the ztunnels that have a slot.
fn ours(world: &mut World) -> ObservedState {
    let mut seen = world.observe(&world.slots.clone());
    seen.sets.values_mut().flat_map(BTreeMap::values_mut).for_each(|uid| *uid = None);
    seen.routes.sort();
    seen.addresses.clear(); // an existing link may have further ones
    seen.journal.clear();
    seen.chains_noted = false;
    seen.firewall.values_mut().for_each(keep_ours);
    for inside in seen.inside.iter_mut().flatten() {
        inside.routes.sort();
        inside.journal.clear();
        inside.chains_noted = false;
        inside.firewall.values_mut().for_each(keep_ours);
    }
    seen
}

fn keep_ours(saved: &mut SavedTables) {
    for table in saved.tables.values_mut() {
        table.chains.retain(|chain| ChainSet::NODE.contains(chain));
        table.rules.retain(|rule| ChainSet::NODE.contains(&rule.chain) || rule.text.contains("-j ztunnel-"));
    }
}

/// All objects of ours on a new node.
fn from_nothing(desired: &DesiredState, slots: [Option<u8>; 2], rp_filter: u8) -> ObservedState {
    let mut world = World::new(rp_filter);
    let steps = world.plan(Some(desired), &slots);
    apply_all(&mut world, &steps);
    ours(&mut world)
}

type Chains = BTreeMap<(Table, String), Vec<Words>>;

/// Foreign chains in the tables of one family.
fn foreign_chains(kernel: &Kernel) -> Chains {
    let mut all = Chains::new();
    for (table, chains) in &kernel.tables {
        for (name, rules) in chains.iter().filter(|(name, _)| !ChainSet::NODE.contains(name)) {
            let theirs = |rule: &&Words| !verdict(rule).is_some_and(|chain| ChainSet::NODE.contains(chain));
            all.insert((*table, name.clone()), rules.iter().filter(theirs).cloned().collect());
        }
    }
    all
}

/// A namespace without objects of ours; only settings that we never change.
fn foreign(ns: &Netns) -> (Netns, Vec<Chains>) {
    let ours = |name: &String| node_links().contains(name) || far_links().contains(name);
    let mut rest = ns.clone();
    rest.links.retain(|name, _| !ours(name));
    rest.addresses.retain(|(link, _)| !ours(link));
    rest.routes.retain(|(_, is_ours)| !is_ours);
    rest.rules.retain(is_foreign);
    rest.sysctls.retain(|name, _| ["all", "default"].iter().any(|part| name.contains(part)));
    rest.journal.clear();
    rest.chains_noted = false;
    let firewall = std::mem::take(&mut rest.firewall);
    (rest, firewall.values().map(|tables| foreign_chains(&tables.kernel)).collect())
}

fn without_ours(kernel: &Kernel) -> bool {
    let all =
        kernel.tables.iter().flat_map(|(table, chains)| chains.keys().map(|name| (*table, name.clone())));
    let rules = kernel.tables.values().flat_map(BTreeMap::values).map(Vec::len).sum::<usize>();
    let foreign = foreign_chains(kernel);
    all.eq(foreign.keys().cloned()) && rules == foreign.values().map(Vec::len).sum::<usize>()
}

fn is_foreign(rule: &PathRule) -> bool {
    rule.mark.is_some_and(|mark| mark.value == 0x8_0000)
}

fn all_foreign(world: &World) -> Vec<(Netns, Vec<Chains>)> {
    [&world.node].into_iter().chain(world.pods.values()).map(foreign).collect()
}

/// Every kind of packet from and to an enrolled address, with the slot of its connection.
fn packets(member: IpAddr) -> Vec<(Option<ZtunnelSlot>, Packet)> {
    let outside: IpAddr = match Family::from_ip(member) {
        Family::V4 => [192, 0, 2, 1].into(),
        Family::V6 => [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
    };
    let from =
        |connmark| Packet { from_pod: true, src: member, dst: outside, established: connmark != 0, connmark };
    let to = |connmark| Packet {
        from_pod: false,
        src: outside,
        dst: member,
        established: connmark != 0,
        connmark,
    };
    let mut all = vec![(None, from(0)), (None, to(0))];
    for slot in ZtunnelSlot::BOTH {
        let bits = 0x1000 * (slot.number() + 1);
        // The last two are replies to connections that the ztunnel opened with another's source address.
        let of_slot = [from(bits | 0x100), to(bits), from(bits | 0x250), to(bits | 0x250)];
        all.extend(of_slot.map(|packet| (Some(slot), packet)));
    }
    all
}

fn fates(world: &World, packets: &[(Option<ZtunnelSlot>, Packet)]) -> Vec<Fate> {
    packets.iter().map(|(_, packet)| fate(world, *packet)).collect()
}

/// Packets of all pods that are enrolled now and remain so.
fn staying(world: &World, desired: &DesiredState) -> Vec<(Option<ZtunnelSlot>, Packet)> {
    let enrolled =
        |ip: &&IpAddr| world.sets.get(&Family::from_ip(**ip)).is_some_and(|set| set.contains_key(*ip));
    desired.members.keys().filter(enrolled).flat_map(|ip| packets(*ip)).collect()
}

/// Whether a new connection with such packets does not bypass the mesh. If it does, established ones are not protected either.
fn is_captured(world: &World, packet: &Packet) -> bool {
    let member = if packet.from_pod { packet.src } else { packet.dst };
    let alike =
        |(slot, new): &(Option<ZtunnelSlot>, Packet)| slot.is_none() && new.from_pod == packet.from_pod;
    packets(member).iter().find(|new| alike(new)).is_some_and(|(_, new)| fate(world, *new) != Fate::Direct)
}

/// Applies a plan in its smallest steps, and checks these packets after each.
fn watch(
    world: &mut World,
    steps: &[Operation],
    packets: &[(Option<ZtunnelSlot>, Packet)],
    verdict: impl Fn(&(Option<ZtunnelSlot>, Packet), Fate, Fate) -> bool,
) {
    let before = fates(world, packets);
    let atoms = atoms(steps);
    for (done, step) in atoms.iter().enumerate() {
        world.apply(step).unwrap();
        for ((packet, before), now) in packets.iter().zip(&before).zip(fates(world, packets)) {
            let past = words(&atoms[..=done]);
            assert!(verdict(packet, *before, now), "{packet:?}: {before:?} became {now:?} with {past:#?}");
        }
    }
}

/// Asserts this for a plan from the state after these events to the aim.
fn no_prefix_lets_a_packet_out(rp_filter: u8, events: &[Event], aim: &Aim) {
    let mut world = World::new(rp_filter).after(events);
    let (desired, slots) = aim.desired(&mut world);
    let steps = world.plan(Some(&desired), &slots);
    let mut packets = staying(&world, &desired);
    packets.retain(|(slot, packet)| slot.is_none() || is_captured(&world, packet));
    let led = ZtunnelSlot::BOTH.map(|slot| world.leads_to(slot));
    let stays = |slot: ZtunnelSlot, number: u8| {
        *slot.select_from(&slots) == Some(number) && *slot.select_from(&led) == [Some(number); 2]
    };
    watch(&mut world, &steps, &packets, |(slot, _), before, now| match (slot, before) {
        (Some(slot), Fate::Captured(number)) if stays(*slot, number) => now == before,
        (_, Fate::Direct) => true,
        _ => now != Fate::Direct,
    });
}

/// A pod's own packets are not looked up in the table of routes to it, whatever foreign route is there.
#[test]
fn a_route_that_somebody_left_in_a_table_of_ours_lets_no_packet_out() {
    for route in 0..30 {
        let left = [Event::Plan(Aim::held([1, 0], 7), usize::MAX), Event::Damage(STALE_ROUTE, route)];
        let aim = Aim::at_rest(ZtunnelFallback::Hold).members_of(&Aim::held([1, 0], 7));
        no_prefix_lets_a_packet_out(0, &left, &aim);
    }
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn one_plan_leads_from_anything_to_anything(
        rp_filter in 0..3u8, events in events(), aim in aims(fallbacks()),
    ) {
        let mut world = World::new(rp_filter).after(&events);
        let theirs = all_foreign(&world);
        let desired = converge(&mut world, &aim);
        prop_assert_eq!(theirs, all_foreign(&world));
        prop_assert_eq!(ours(&mut world), from_nothing(&desired, world.slots, rp_filter));
        lists::assert_as_listed(&mut world, &desired);
    }

    #[test]
    fn no_beginning_of_a_plan_lets_a_packet_out(
        rp_filter in 0..3u8, events in events(), aim in aims(select(&[ZtunnelFallback::Hold, ZtunnelFallback::Reject])),
    ) {
        no_prefix_lets_a_packet_out(rp_filter, &events, &aim);
    }

    #[test]
    fn when_ztunnels_die_nothing_gets_out(
        rp_filter in 0..3u8, aim in aims(select(&[ZtunnelFallback::Hold, ZtunnelFallback::Reject])),
        killed in prop::collection::vec(1..5u8, 1..4),
    ) {
        let mut world = World::new(rp_filter);
        let desired = converge(&mut world, &aim);
        let packets = staying(&world, &desired);
        killed.iter().for_each(|number| world.kill(*number));
        for now in fates(&world, &packets) {
            prop_assert_ne!(now, Fate::Direct);
        }
        let aim = Aim::at_rest(aim.fallback).members_of(&aim);
        converge(&mut world, &aim);
        for now in fates(&world, &packets) {
            prop_assert_ne!(now, Fate::Direct);
        }
    }

    #[test]
    fn an_uninstallation_leaves_what_was_there(rp_filter in 0..3u8, events in events()) {
        let mut world = World::new(rp_filter).after(&events);
        let slots = world.found_slots();
        let steps = world.plan(None, &slots);
        apply_all(&mut world, &steps);
        let mut clean = World::new(rp_filter);
        let dead = |number: &u8| !world.pods.contains_key(number);
        world::ZTUNNELS.iter().filter(|number| dead(number)).for_each(|number| clean.kill(*number));
        prop_assert!(world.sets.is_empty() && world.node.journal.is_empty());
        let in_slots = slots.into_iter().flatten();
        let both = in_slots.map(|number| (&world.pods[&number], &clean.pods[&number]));
        for (now, then) in both.chain([(&world.node, &clean.node)]) {
            prop_assert_eq!((&now.links, &now.addresses, &now.routes), (&then.links, &then.addresses, &then.routes));
            prop_assert_eq!(&now.sysctls, &then.sysctls);
            prop_assert!(!now.chains_noted);
            prop_assert!(now.rules.iter().all(is_foreign));
            prop_assert!(now.firewall.values().all(|tables| without_ours(&tables.kernel)));
        }
        let slots = world.found_slots();
        prop_assert!(world.plan(None, &slots).is_empty());
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn a_rollout_is_not_noticed(
        old in 1..3u8, members in 0..3usize, more in 0..3usize, open: bool,
    ) {
        let fallback = if open { ZtunnelFallback::Open } else { ZtunnelFallback::Hold };
        let new = 3 - old;
        let before = Aim::at_rest(fallback).members(&[0, 4, 1 + members]).active(old);
        let mut world = World::new(1);
        let occupied = converge(&mut world, &before).slots;
        let after = Aim::at_rest(fallback).members(&[0, 4, 1 + more]).living(&[old]).active(new);
        let (desired, slots) = after.desired(&mut world);
        let steps = world.plan(Some(&desired), &slots);
        let packets = staying(&world, &desired);
        watch(&mut world, &steps, &packets, |(slot, _), before, now| match slot {
            Some(slot) => now == before || slot.select_from(&occupied).is_none(),
            None => [old, new].map(Fate::Captured).contains(&now),
        });
        for ((slot, packet), now) in packets.iter().zip(fates(&world, &packets)) {
            let owner = slot.and_then(|slot| *slot.select_from(&slots)).unwrap_or(new);
            prop_assert_eq!(now, Fate::Captured(owner), "{:?}", packet);
        }
    }
}
