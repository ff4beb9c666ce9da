//! Order of steps in single plans.

use node_plan::{DesiredState, NetnsPlace, Operation, ZtunnelFallback};

use crate::{
    events::{Aim, member_ip},
    fate::Fate,
    steps::atoms,
    world::{World, ztunnel},
    {apply_all, converge, fates, packets, watch},
};

fn steps(world: &mut World, aim: &Aim) -> Vec<Operation> {
    let (desired, slots) = aim.desired(world);
    world.plan(Some(&desired), &slots)
}

fn kinds(steps: &[Operation]) -> Vec<&'static str> {
    let mut kinds: Vec<_> = steps.iter().map(Operation::kind).collect();
    kinds.dedup();
    kinds
}

fn hold() -> Aim {
    Aim::at_rest(ZtunnelFallback::Hold)
}

#[test]
fn pods_join_when_everything_is_ready_for_them() {
    let steps = steps(&mut World::new(1), &hold().members(&[0, 4]).active(1));
    let [before @ .., Operation::AddMembers(members)] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(members.iter().map(|(ip, _)| *ip).collect::<Vec<_>>(), [member_ip(0), member_ip(4)]);
    let kinds = kinds(before);
    for kind in [
        "create-set",
        "create-links",
        "set-up",
        "add-address",
        "set-sysctl",
        "add-rule",
        "firewall",
        "routes",
    ] {
        assert!(kinds.contains(&kind), "{kind}");
    }
    assert_eq!(kinds.first(), Some(&"create-set"));
    assert_eq!(kinds.last(), Some(&"routes"));
}

#[test]
fn one_pod_more_is_one_change_of_routes_and_one_of_the_set() {
    let mut world = World::new(1);
    converge(&mut world, &hold().members(&[0]).active(1));
    assert_eq!(kinds(&steps(&mut world, &hold().members(&[0, 1]).active(1))), ["routes", "add-members"]);
    assert_eq!(kinds(&steps(&mut world, &hold().members(&[]).active(1))), ["remove-members", "routes"]);
}

#[test]
fn who_joins_is_never_held_while_a_ztunnel_is_there() {
    let mut world = World::new(1);
    converge(&mut world, &hold().members(&[0]).active(1));
    let steps = steps(&mut world, &hold().members(&[0, 1]).active(1));
    let new: Vec<_> = packets(member_ip(1)).into_iter().filter(|(slot, _)| slot.is_none()).collect();
    watch(&mut world, &atoms(&steps), &new, |_, _, now| now != Fate::Held);
    assert_eq!(fates(&world, &new), [Fate::Captured(1); 2]);
}

/// Of the ztunnels, 1 answers DNS and 2 does not.
#[test]
fn a_switch_between_two_that_stand_ready_is_one_change_of_routes() {
    for (old, new, dns) in [(1, 2, true), (2, 1, true), (2, 2, false)] {
        let mut world = World::new(1);
        for active in [new, old] {
            converge(&mut world, &hold().members(&[0, 1, 4]).living(&[1, 2]).active(active));
        }
        let steps = steps(&mut world, &hold().members(&[0, 1, 4]).living(&[1, 2]).active(new));
        let wanted: &[&str] = match (old == new, dns) {
            (true, _) => &[],
            (false, true) => &["firewall", "routes"],
            (false, false) => &["routes"],
        };
        assert_eq!(steps.iter().map(Operation::kind).collect::<Vec<_>>(), wanted, "{old} to {new}");
    }
}

#[test]
fn a_switch_without_a_change_of_dns_leaves_the_firewall() {
    let mut world = World::new(1);
    let mut zs = [ztunnel(1), ztunnel(2)];
    zs.iter_mut().for_each(|ztunnel| ztunnel.dns = false);
    let members = [(member_ip(0), "u".into()), (member_ip(4), "u".into())].into();
    let slots = zs.map(Some);
    let desired =
        |active| DesiredState { slots: slots.clone(), active: Some(active), ..DesiredState::default() };
    let mut desired = node_plan::ZtunnelSlot::BOTH.map(desired);
    desired.iter_mut().for_each(|desired| desired.members = std::collections::BTreeMap::clone(&members));
    let numbers = [Some(1), Some(2)];
    let first = world.plan(Some(&desired[0]), &numbers);
    apply_all(&mut world, &first);
    let switch = world.plan(Some(&desired[1]), &numbers);
    let [Operation::Routes(NetnsPlace::Node, edits)] = switch.as_slice() else { panic!("{switch:?}") };
    assert_eq!(edits.len(), 4, "two defaults, two addresses");
}

#[test]
fn a_link_made_anew_gets_its_settings_anew() {
    let mut world = World::new(1);
    let both = |slots: [Option<u8>; 2]| DesiredState {
        slots: slots.map(|slot| slot.map(ztunnel)),
        ..DesiredState::default()
    };
    for slots in [[Some(1), None], [None, Some(1)], [Some(1), Some(2)], [Some(2), Some(1)]] {
        let desired = both(slots);
        let steps = world.plan(Some(&desired), &slots);
        apply_all(&mut world, &steps);
        let left = world.plan(Some(&desired), &slots);
        assert!(left.is_empty(), "{slots:?}: {left:?}");
    }
}

#[test]
fn what_catches_traffic_is_there_before_a_link_goes() {
    let mut world = World::new(1);
    let open = |slots: [Option<u8>; 2], fallback| DesiredState {
        slots: slots.map(|slot| slot.map(ztunnel)),
        active: Some(node_plan::ZtunnelSlot::Zero),
        members: [(member_ip(0), "u".into())].into(),
        fallback,
    };
    let slots = [Some(1), None];
    let first = world.plan(Some(&open(slots, ZtunnelFallback::Open)), &slots);
    apply_all(&mut world, &first);
    let slots = [Some(2), None];
    let steps = world.plan(Some(&open(slots, ZtunnelFallback::Hold)), &slots);
    let place = |kind| steps.iter().position(|step| step.kind() == kind).unwrap();
    assert!(place("routes") < place("delete-link"), "{steps:?}");
}

/// Rules that redirect packets into a ztunnel are applied after everything on their path.
#[test]
fn new_connections_go_to_a_ztunnel_when_its_rules_are_made() {
    let mut world = World::new(1);
    let first = steps(&mut world, &hold().members(&[0, 4]).active(2));
    apply_all(&mut world, &first);
    // Of the ztunnels, 1 answers DNS and 4 does not.
    for next in [4, 1] {
        let mut world = world.clone();
        let second = steps(&mut world, &hold().members(&[0, 4]).living(&[2]).active(next));
        let place = |kind| second.iter().rposition(|step| step.kind() == kind);
        assert!(place("firewall") < place("routes"), "to {next}: {second:?}");
    }
}
