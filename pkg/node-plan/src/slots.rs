//! Assignment of ztunnels to slots.

use std::net::IpAddr;

use model::{PodUid, TableId};

use super::{
    config::NodeConfig,
    state::{ObservedState, RouteTo, ZtunnelInstance, ZtunnelSlot},
    want::{Direction, node_link},
};

/// State of the slots, as read from the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSlots {
    /// Addresses of the ztunnel for which each slot was created.
    pub ips: [Vec<IpAddr>; 2],
    /// The slot of new connections.
    pub active: Option<ZtunnelSlot>,
}

impl KernelSlots {
    /// Derives the state from the routes: a slot's return table has a route to its ztunnel, the outbound table one over
    /// the active slot.
    pub fn from(config: &NodeConfig, observed: &ObservedState) -> KernelSlots {
        let mut known = KernelSlots::default();
        for route in &observed.routes {
            let RouteTo::Via(gateway, link) = &route.to else { continue };
            for slot in ZtunnelSlot::BOTH {
                if route.table == TableId(config.tables.slot_return + slot.number()) {
                    slot.part_mut(&mut known.ips).push(*gateway);
                }
                if route.table == TableId(config.tables.outbound)
                    && *link == node_link(Direction::Outbound, slot)
                {
                    known.active = Some(slot);
                }
            }
        }
        known
    }
}

/// Assignment of ztunnels to slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotAssignment {
    /// The ztunnels, by slot.
    pub slots: [Option<ZtunnelInstance>; 2],
    /// The slot of new connections.
    pub active: Option<ZtunnelSlot>,
}

/// Keeps the slot of every running ztunnel, and assigns one to the active ztunnel. If two others have the slots, the
/// one without new connections loses its slot, and its connections are closed: with a third ztunnel on one node, the
/// first should have ended long ago.
pub fn assign_slots(
    known: &KernelSlots,
    living: &[ZtunnelInstance],
    active: Option<&PodUid>,
) -> SlotAssignment {
    // By addresses, because the kernel has no UIDs.
    let [zero, one] = ZtunnelSlot::BOTH.map(|slot| {
        let ips = slot.select_from(&known.ips);
        living.iter().find(|ztunnel| ztunnel.ips.iter().any(|ip| ips.contains(ip))).cloned()
    });
    // One ztunnel can be in both slots after an interrupted plan.
    let one = one.filter(|one| zero.as_ref().is_none_or(|zero| zero.uid != one.uid));
    let mut slots = [zero, one];
    let Some(ztunnel) = living.iter().find(|ztunnel| Some(&ztunnel.uid) == active) else {
        return SlotAssignment { slots, active: None };
    };
    let has =
        |slot: &ZtunnelSlot| slot.select_from(&slots).as_ref().is_some_and(|found| found.uid == ztunnel.uid);
    let free = |slot: &ZtunnelSlot| slot.select_from(&slots).is_none();
    let place = ZtunnelSlot::BOTH
        .into_iter()
        .find(has)
        .or_else(|| ZtunnelSlot::BOTH.into_iter().find(free))
        // Connections of the slot in use are newer.
        .unwrap_or_else(|| known.active.map_or(ZtunnelSlot::Zero, ZtunnelSlot::other));
    *place.part_mut(&mut slots) = Some(ztunnel.clone());
    SlotAssignment { slots, active: Some(place) }
}

/// Assigns a free slot to the next ztunnel: everything that it needs is created before it is ready, and a switch only
/// has to redirect new connections.
pub fn prepare_slot(
    mut assigned: SlotAssignment,
    living: &[ZtunnelInstance],
    coming: Option<&PodUid>,
) -> SlotAssignment {
    let has = |ztunnel: &ZtunnelInstance| assigned.slots.iter().flatten().any(|slot| slot.uid == ztunnel.uid);
    let next = living.iter().find(|ztunnel| Some(&ztunnel.uid) == coming && !has(ztunnel));
    if let (Some(next), Some(free)) = (next.cloned(), assigned.slots.iter_mut().find(|slot| slot.is_none())) {
        *free = Some(next);
    }
    assigned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ztunnel(number: u8) -> ZtunnelInstance {
        ZtunnelInstance {
            uid: format!("z{number}").into(),
            veth: format!("veth{number}"),
            uplink: "eth0".to_owned(),
            ips: vec![[10, 0, 0, number].into()],
            dns: false,
        }
    }

    fn known(zero: &[u8], one: &[u8], active: Option<ZtunnelSlot>) -> KernelSlots {
        let ips = |numbers: &[u8]| numbers.iter().map(|number| [10, 0, 0, *number].into()).collect();
        KernelSlots { ips: [ips(zero), ips(one)], active }
    }

    /// A case: slots and active one as known from the kernel, running ztunnels, the one to become active, and the expected
    /// assignment.
    struct Case {
        known: ([&'static [u8]; 2], Option<ZtunnelSlot>),
        living: &'static [u8],
        active: Option<u8>,
        wanted: ([Option<u8>; 2], Option<ZtunnelSlot>),
    }

    #[test]
    fn the_active_one_gets_a_place_and_the_living_keep_theirs() {
        const ZERO: Option<ZtunnelSlot> = Some(ZtunnelSlot::Zero);
        const ONE: Option<ZtunnelSlot> = Some(ZtunnelSlot::One);
        let case = |known, living, active, wanted| Case { known, living, active, wanted };
        let table = [
            case(([&[], &[]], None), &[], None, ([None, None], None)),
            case(([&[], &[]], None), &[1], Some(1), ([Some(1), None], ZERO)),
            case(([&[], &[]], None), &[1], None, ([None, None], None)),
            case(([&[1], &[]], ZERO), &[1, 2], Some(2), ([Some(1), Some(2)], ONE)),
            case(([&[1], &[2]], ONE), &[2], Some(2), ([None, Some(2)], ONE)),
            case(([&[1], &[2]], ONE), &[2, 3], Some(3), ([Some(3), Some(2)], ZERO)),
            case(([&[1], &[2]], ONE), &[1, 2, 3], Some(3), ([Some(3), Some(2)], ZERO)),
            case(([&[1], &[]], ZERO), &[1], None, ([Some(1), None], None)),
            case(([&[1], &[1]], ONE), &[1], Some(1), ([Some(1), None], ZERO)),
        ];
        for (number, Case { known: (ips, at), living, active, wanted }) in table.into_iter().enumerate() {
            let living: Vec<ZtunnelInstance> = living.iter().copied().map(ztunnel).collect();
            let active = active.map(|number| format!("z{number}").into());
            let assigned = assign_slots(&known(ips[0], ips[1], at), &living, active.as_ref());
            let slots = wanted.0.map(|slot| slot.map(ztunnel));
            assert_eq!((assigned.slots, assigned.active), (slots, wanted.1), "case {number}");
        }
    }

    #[test]
    fn one_that_is_coming_gets_a_slot_only_if_nobody_has_it() {
        let living: Vec<ZtunnelInstance> = [1, 2, 3].map(ztunnel).to_vec();
        let with = |zero: Option<u8>, one: Option<u8>, active| SlotAssignment {
            slots: [zero, one].map(|number| number.map(ztunnel)),
            active,
        };
        let (zero, one) = (Some(ZtunnelSlot::Zero), Some(ZtunnelSlot::One));
        let cases = [
            (with(None, None, None), Some("z1"), with(Some(1), None, None)),
            (with(Some(1), None, zero), Some("z2"), with(Some(1), Some(2), zero)),
            (with(None, Some(1), one), Some("z2"), with(Some(2), Some(1), one)),
            (with(Some(1), None, zero), Some("z1"), with(Some(1), None, zero)),
            (with(Some(1), Some(2), one), Some("z3"), with(Some(1), Some(2), one)),
            (with(Some(1), None, zero), Some("z9"), with(Some(1), None, zero)),
            (with(Some(1), None, zero), None, with(Some(1), None, zero)),
        ];
        for (number, (assigned, coming, wanted)) in cases.into_iter().enumerate() {
            assert_eq!(
                prepare_slot(assigned, &living, coming.map(PodUid::from).as_ref()),
                wanted,
                "case {number}"
            );
        }
    }
}
