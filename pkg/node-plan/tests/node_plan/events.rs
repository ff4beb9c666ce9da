//! Possible events on a node before a plan is made: interrupted plans, ended ztunnels, damage.

use std::{collections::BTreeSet, net::IpAddr};

use model::{Family, Mark, MemberAddresses, TableId};
use node_plan::{
    DesiredState, KernelSlots, PathRoute, PathRule, RouteTo, SlotAssignment, ZtunnelFallback, ZtunnelSlot,
    assign_slots,
};
use proptest::{collection::vec, prelude::*, sample::select};

use crate::{
    steps::atoms,
    world::{Netns, Ns, World, ZTUNNELS, far_links, node_links, ztunnel},
};

/// Desired outcome; ztunnels that have ended by then are left out.
#[derive(Clone, Debug)]
pub(crate) struct Aim {
    /// Ztunnels that have the slots whatever the kernel shows; `None` means as the agent decides.
    forced: Option<[u8; 2]>,
    living: BTreeSet<u8>,
    active: Option<u8>,
    members: Vec<(usize, u8)>,
    pub(crate) fallback: ZtunnelFallback,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A plan was made, and this number of its smallest steps was applied.
    Plan(Aim, usize),
    Kill(u8),
    Damage(u8, usize),
}

/// Kinds of damage.
const DAMAGES: u8 = 20;
/// A foreign route in one of our tables.
pub(crate) const STALE_ROUTE: u8 = 9;

pub(crate) fn member_ip(index: usize) -> IpAddr {
    let last = u8::try_from(index % 4).unwrap() + 1;
    if index < 4 { [10, 1, 0, last].into() } else { [0xfd01, 0, 0, 0, 0, 0, 0, u16::from(last)].into() }
}

pub(crate) fn fallbacks() -> impl Strategy<Value = ZtunnelFallback> {
    prop_oneof![3 => Just(ZtunnelFallback::Hold), 1 => Just(ZtunnelFallback::Reject), 1 => Just(ZtunnelFallback::Open)]
}

pub(crate) fn aims(fallback: impl Strategy<Value = ZtunnelFallback>) -> impl Strategy<Value = Aim> {
    let forced = prop::option::weighted(0.4, (0..5u8, 0..5u8).prop_map(|(zero, one)| [zero, one]));
    let living = prop::collection::btree_set(select(&ZTUNNELS), 0..3);
    let active = prop::option::weighted(0.8, select(&ZTUNNELS));
    (forced, living, active, vec((0..8usize, 0..3u8), 0..5), fallback).prop_map(
        |(forced, living, active, members, fallback)| Aim { forced, living, active, members, fallback },
    )
}

pub(crate) fn events() -> impl Strategy<Value = Vec<Event>> {
    let cut = prop_oneof![2 => Just(usize::MAX), 3 => 0..60usize];
    let event = prop_oneof![
        4 => (aims(fallbacks()), cut).prop_map(|(aim, cut)| Event::Plan(aim, cut)),
        1 => select(&ZTUNNELS).prop_map(Event::Kill),
        4 => (0..DAMAGES, 0..100usize).prop_map(|(kind, which)| Event::Damage(kind, which)),
    ];
    vec(event, 0..7)
}

impl Aim {
    pub(crate) fn active(mut self, active: u8) -> Aim {
        self.forced = None;
        self.active = Some(active);
        self.living.insert(active);
        self
    }

    pub(crate) fn living(mut self, living: &[u8]) -> Aim {
        self.living = living.iter().copied().collect();
        self
    }

    pub(crate) fn members(mut self, members: &[usize]) -> Aim {
        self.members = members.iter().map(|index| (*index, 0)).collect();
        self
    }

    pub(crate) fn members_of(self, other: &Aim) -> Aim {
        Aim { members: other.members.clone(), ..self }
    }

    pub(crate) fn at_rest(fallback: ZtunnelFallback) -> Aim {
        Aim { forced: None, living: BTreeSet::new(), active: None, members: Vec::new(), fallback }
    }

    /// An aim in which these ztunnels have the slots, and none is active.
    pub(crate) fn held(slots: [u8; 2], member: usize) -> Aim {
        Aim { forced: Some(slots), members: vec![(member, 0)], ..Aim::at_rest(ZtunnelFallback::Hold) }
    }

    /// Assignment of slots in this world.
    fn slots(&self, world: &mut World) -> ([Option<u8>; 2], Option<ZtunnelSlot>) {
        let alive = |number: &u8| world.pods.contains_key(number);
        if let Some([zero, one]) = self.forced {
            let one = Some(one).filter(|one| *one != zero).filter(alive);
            let slots = [Some(zero).filter(alive), one];
            let active = ZtunnelSlot::BOTH.into_iter().find(|slot| slot.select_from(&slots).is_some());
            return (slots, active.filter(|_| self.active.is_some()));
        }
        let living: Vec<_> = self.living.iter().filter(|number| alive(number)).map(|n| ztunnel(*n)).collect();
        let known = KernelSlots::from(&world.config.clone(), &world.observe(&[None, None]));
        let active = self.active.map(|number| ztunnel(number).uid);
        let SlotAssignment { slots, active } = assign_slots(&known, &living, active.as_ref());
        (slots.map(|slot| ZTUNNELS.into_iter().find(|n| Some(ztunnel(*n)) == slot)), active)
    }

    pub(crate) fn desired(&self, world: &mut World) -> (DesiredState, [Option<u8>; 2]) {
        let (slots, active) = self.slots(world);
        let members: MemberAddresses =
            self.members.iter().map(|(index, uid)| (member_ip(*index), format!("u{uid}").into())).collect();
        let desired = DesiredState {
            slots: slots.map(|slot| slot.map(ztunnel)),
            active,
            members,
            fallback: self.fallback,
        };
        (desired, slots)
    }
}

impl World {
    /// Ztunnels whose slots the kernel shows, as an uninstallation finds them.
    pub(crate) fn found_slots(&mut self) -> [Option<u8>; 2] {
        let known = KernelSlots::from(&self.config.clone(), &self.observe(&[None, None]));
        let alive = |number: &u8| self.pods.contains_key(number);
        let of = |ips: Vec<IpAddr>| {
            ZTUNNELS.into_iter().filter(alive).find(|n| ztunnel(*n).ips.iter().any(|ip| ips.contains(ip)))
        };
        let [zero, one] = known.ips.map(of);
        [zero, one.filter(|one| zero != Some(*one))]
    }

    pub(crate) fn after(mut self, events: &[Event]) -> World {
        for event in events {
            match event {
                Event::Plan(aim, cut) => {
                    let (desired, slots) = aim.desired(&mut self);
                    let steps = atoms(&self.plan(Some(&desired), &slots));
                    for step in steps.iter().take(*cut) {
                        self.apply(step).unwrap();
                    }
                }
                Event::Kill(number) => self.kill(*number),
                Event::Damage(kind, which) => self.damage(*kind, *which),
            }
        }
        self
    }

    fn damage(&mut self, kind: u8, which: usize) {
        let number = ZTUNNELS[which % ZTUNNELS.len()];
        let family = Family::BOTH[which % 2];
        let name = nth(node_links(), which);
        let far = nth(far_links(), which);
        let node = &mut self.node;
        match kind {
            0 => forget(&mut node.routes, which, |(_, ours)| *ours),
            1 => forget(&mut node.rules, which, |rule| rule.mark != Some(FOREIGN)),
            2 => node.rules.extend(node.rules.get(which % node.rules.len()).cloned()),
            3 => node.switch_off(&name),
            4 => self.delete_link(Ns::Node, &name),
            5 | 6 => {
                let members = self.sets.values_mut().flat_map(|set| set.values_mut()).collect::<Vec<_>>();
                let uid = (kind == 5).then(|| "u9".into());
                members.into_iter().skip(which % 8).take(1).for_each(|member| member.clone_from(&uid));
            }
            7 | 8 => drop(self.sets.get_mut(&family).map(|set| {
                let ip = member_ip(which % 8);
                let right = Family::from_ip(ip) == family;
                right.then(|| if kind == 7 { set.insert(ip, None) } else { set.remove(&ip) })
            })),
            STALE_ROUTE => node.routes.extend(stale_route(which, family)),
            10 => node.rules.push(stale_rule(which, family)),
            11..=13 => node.break_firewall(family, which),
            14 => drop(self.pods.get_mut(&number).map(|pod| pod.break_firewall(family, which))),
            15 => drop(self.pods.get_mut(&number).map(|pod| pod.switch_off(&far))),
            16 => drop(self.pods.get_mut(&number).map(|pod| forget(&mut pod.routes, which, |_| true))),
            17 => drop(self.pods.get_mut(&number).map(|pod| forget(&mut pod.rules, which, |_| true))),
            18 => node.addresses.clear(),
            _ => drop(self.pods.get_mut(&number).map(|pod| {
                let setting = pod.sysctls.get_mut(&format!("net/ipv4/conf/{far}/rp_filter"));
                setting.map(|value| "1".clone_into(value))
            })),
        }
    }
}

const FOREIGN: Mark = Mark { value: 0x8_0000, mask: 0x8_0000 };

fn nth(names: BTreeSet<String>, which: usize) -> String {
    let count = names.len();
    names.into_iter().nth(which % count).unwrap()
}

fn forget<T>(list: &mut Vec<T>, which: usize, ours: impl Fn(&T) -> bool) {
    let places: Vec<usize> = (0..list.len()).filter(|place| ours(&list[*place])).collect();
    if !places.is_empty() {
        list.remove(places[which % places.len()]);
    }
}

fn stale_route(which: usize, family: Family) -> Option<(PathRoute, bool)> {
    let tables = [100, 101, 110, 121, 130];
    let to = [RouteTo::Blackhole, RouteTo::Via(family.unspecified_address(), "eth0".to_owned())];
    let dst = (!which.is_multiple_of(3))
        .then(|| model::IpNet::from(member_ip(if family == Family::V4 { 3 } else { 7 })));
    let (table, to) = (TableId(tables[which % tables.len()]), to[which % 2].clone());
    Some((PathRoute { family, table, dst, metric: 7, to }, true))
}

fn stale_rule(which: usize, family: Family) -> PathRule {
    let mark = [None, Some(Mark { value: 0x100, mask: 0x100 })][which % 2];
    let priority = 100 + u32::try_from(which % 10).unwrap();
    PathRule { family, priority, mark, table: TableId([100, 110][which % 2]) }
}

const BROKEN: [&str; 7] = [
    "*mangle\n-I PREROUTING 1 -j CALI-forward\nCOMMIT\n",
    "*mangle\n-A PREROUTING -j ztunnel-PREROUTING\nCOMMIT\n",
    "*mangle\n-D PREROUTING -j ztunnel-PREROUTING\nCOMMIT\n",
    "*mangle\n-A ztunnel-PREROUTING -j RETURN\nCOMMIT\n",
    "*mangle\n-F ztunnel-PREROUTING\nCOMMIT\n",
    "*filter\n:ztunnel-INPUT - [0:0]\nCOMMIT\n",
    "*raw\n:ztunnel-OUTPUT - [0:0]\n-A OUTPUT -j ztunnel-OUTPUT\nCOMMIT\n",
];

impl Netns {
    /// Already damaged rules are not changed again.
    fn break_firewall(&mut self, family: Family, which: usize) {
        let _ = self.firewall.get_mut(&family).map(|tables| tables.restore(BROKEN[which % BROKEN.len()]));
    }
}
