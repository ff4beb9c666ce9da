//! The single objects of a desired state.

mod links;
mod sysctls;

use std::net::IpAddr;

use model::{Family, IpNet, Mark, TableId};
use rules::node::NodeMarks;

use super::{
    config::{NodeConfig, RouteTables, ZtunnelFallback},
    state::{DesiredState, PathRoute, PathRule, RouteTo, ZtunnelInstance, ZtunnelSlot},
};

pub use links::{Direction, LinkPair, link_pairs};
pub(super) use links::{link_addresses, node_link};
pub(super) use sysctls::{inside_sysctls, node_sysctls};
pub use sysctls::{watched_inside_sysctls, watched_sysctls};

/// Metric of the routes that carry traffic.
const METRIC: u32 = 1024;
/// Metric of fallback routes, which take effect when a link is removed.
const FALLBACK_METRIC: u32 = 4096;
/// Priorities and table in ztunnel's namespace, as in Istio.
const DELIVER: [u32; 2] = [20000, 20003];
const DELIVER_TABLE: TableId = TableId(100);

fn route_via(config: &NodeConfig, direction: Direction, slot: ZtunnelSlot, family: Family) -> RouteTo {
    let ends = config.link_ends(direction, slot, family);
    RouteTo::Via(ends.ztunnel.addr(), node_link(direction, slot))
}

/// Returns all routes of our tables on the node, in the order in which they must be added.
pub(super) fn node_routes(config: &NodeConfig, desired: &DesiredState) -> Vec<PathRoute> {
    let mut routes = Vec::new();
    for family in desired.families() {
        routes.extend(fallback_route(config.tables.outbound, family, None, desired.fallback));
        for slot in ZtunnelSlot::BOTH {
            let answers = config.tables.slot_return + slot.number();
            routes.extend(fallback_route(answers, family, None, desired.fallback));
            if let Some(ztunnel) = desired.ztunnel_in(slot) {
                routes.extend(slot_routes(config, slot, ztunnel, family));
            }
        }
        if let Some((slot, _)) = desired.active_for(family) {
            let to = route_via(config, Direction::Outbound, slot, family);
            let table = TableId(config.tables.outbound);
            routes.push(PathRoute { family, table, dst: None, metric: METRIC, to });
        }
    }
    for ip in desired.members.keys() {
        let active = desired.active_for(Family::from_ip(*ip)).map(|(slot, _)| slot);
        routes.extend(member_routes(config, *ip, active, desired.fallback));
    }
    routes
}

/// Returns the routes of one enrolled address.
pub fn member_routes(
    config: &NodeConfig,
    ip: IpAddr,
    active: Option<ZtunnelSlot>,
    policy: ZtunnelFallback,
) -> Vec<PathRoute> {
    let (family, dst, table) = (Family::from_ip(ip), Some(IpNet::from(ip)), TableId(config.tables.inbound));
    let mut routes: Vec<PathRoute> =
        fallback_route(config.tables.inbound, family, dst, policy).into_iter().collect();
    if let Some(slot) = active {
        let to = route_via(config, Direction::Inbound, slot, family);
        routes.push(PathRoute { family, table, dst, metric: METRIC, to });
    }
    routes
}

/// Returns the route for traffic without ztunnel.
fn fallback_route(
    table: u32,
    family: Family,
    dst: Option<IpNet>,
    policy: ZtunnelFallback,
) -> Option<PathRoute> {
    let to = match policy {
        ZtunnelFallback::Hold => RouteTo::Blackhole,
        ZtunnelFallback::Reject => RouteTo::Unreachable,
        ZtunnelFallback::Open => return None,
    };
    Some(PathRoute { family, table: TableId(table), dst, metric: FALLBACK_METRIC, to })
}

/// Returns a slot's routes. Its tables of connections to and from pods have no fallback: packets without a route there
/// continue as new connections would, so that the connections of an ended ztunnel are reset by the next one instead of
/// hanging. Replies to a ztunnel differ: their destination is a client's address, and they would leave the node. So
/// both slots' tables of replies have a fallback, whether or not a ztunnel exists.
fn slot_routes(
    config: &NodeConfig,
    slot: ZtunnelSlot,
    ztunnel: &ZtunnelInstance,
    family: Family,
) -> Vec<PathRoute> {
    let Some(ip) = ztunnel.ip(family) else { return Vec::new() };
    let tables = config.tables;
    let vias = [
        (tables.slot_inbound, route_via(config, Direction::Inbound, slot, family)),
        (tables.slot_outbound, route_via(config, Direction::Outbound, slot, family)),
        (tables.slot_return, RouteTo::Via(ip, ztunnel.veth.clone())),
    ];
    vias.into_iter()
        .map(|(base, to)| {
            let table = TableId(base + slot.number());
            PathRoute { family, table, dst: None, metric: METRIC, to }
        })
        .collect()
}

/// Returns the policy rules of a family on the node, in order, which do not depend on the slots in use. Each rule
/// matches a mark: foreign packets, those of this host itself, and the kernel's source validation (`rp_filter`) have
/// none, and are routed as without Millrace.
pub fn policy_rules(config: &NodeConfig, family: Family) -> Vec<PathRule> {
    let marks = &config.rules.marks;
    let RouteTables { inbound, outbound, slot_inbound, slot_outbound, slot_return } = config.tables;
    let both =
        |mark, base| ZtunnelSlot::BOTH.map(|slot| (add_slot_mark(marks, mark, slot), base + slot.number()));
    let nothing = Mark { value: 0, mask: 0 };
    let mut selectors: Vec<(Mark, u32)> = vec![(marks.skip, TableId::MAIN.0)];
    selectors.extend(both(marks.outbound, slot_outbound));
    selectors.extend(both(marks.proxy_return, slot_return));
    // Before the slots' inbound tables: packets without a route in the slot's own outbound table are handled in the
    // common one, and not looked up in an inbound table.
    selectors.push((marks.outbound, outbound));
    selectors.extend(both(nothing, slot_inbound));
    // Any of the bits: new connections, and those of a slot whose ztunnel has ended.
    selectors.extend(marks.slots.map(|slot| (Mark { value: slot.value, mask: slot.value }, inbound)));
    let rules = selectors.into_iter().enumerate().map(|(place, (mark, table))| PathRule {
        family,
        priority: config.priorities.first + u32::try_from(place).unwrap_or(u32::MAX),
        mark: Some(mark),
        table: TableId(table),
    });
    rules.collect()
}

/// Returns the marks of packets that policy rules route to a ztunnel, or back to it.
pub fn captured_marks(config: &NodeConfig) -> Vec<u32> {
    let marks = &config.rules.marks;
    let ways = [0, marks.outbound.value, marks.proxy_return.value];
    let slots = marks.slots.iter().chain([&marks.any_slot]);
    slots.flat_map(|slot| ways.map(|way| way | slot.value)).collect()
}

fn add_slot_mark(marks: &NodeMarks, mark: Mark, slot: ZtunnelSlot) -> Mark {
    let of_slot = slot.select_from(&marks.slots);
    Mark { value: mark.value | of_slot.value, mask: mark.mask | of_slot.mask }
}

/// Number of priorities that the rules use.
pub(super) const RULES: u32 = 10;

/// Returns rules and routes in a ztunnel's namespace, which deliver packets locally that TPROXY or the return path
/// marks.
pub(super) fn inside_routing(
    config: &NodeConfig,
    ztunnel: &ZtunnelInstance,
) -> (Vec<PathRule>, Vec<PathRoute>) {
    let (mut rules, mut routes) = (Vec::new(), Vec::new());
    for family in Family::BOTH.into_iter().filter(|family| ztunnel.ip(*family).is_some()) {
        let marks = [config.rules.marks.tproxy, config.rules.marks.original_source];
        rules.extend(DELIVER.into_iter().zip(marks).map(|(priority, mark)| PathRule {
            family,
            priority,
            mark: Some(mark),
            table: DELIVER_TABLE,
        }));
        let to = RouteTo::Local("lo".to_owned());
        routes.push(PathRoute { family, table: DELIVER_TABLE, dst: None, metric: METRIC, to });
    }
    (rules, routes)
}

/// Returns whether an observed policy rule is ours: one that we create, or one at our priorities with our tables.
pub fn is_our_rule(config: &NodeConfig, rule: &PathRule) -> bool {
    let first = config.priorities.first;
    let place = (first..first + RULES).contains(&rule.priority);
    place && (config.all_tables().contains(&rule.table) || policy_rules(config, rule.family).contains(rule))
}

/// Returns the priority of the first of the ten rules to which a policy rule belongs by its mark, as one of an agent with any
/// numbers; `None`: the mark is none of ours.
pub fn find_first_priority(config: &NodeConfig, rule: &PathRule) -> Option<u32> {
    let own = policy_rules(config, rule.family).into_iter().find(|own| own.mark == rule.mark)?;
    rule.priority.checked_sub(own.priority - config.priorities.first)
}

/// Returns whether a policy rule in a ztunnel's namespace is ours. Istio's own agent uses the same priorities there.
pub fn is_our_inside_rule(rule: &PathRule) -> bool {
    DELIVER.contains(&rule.priority) && rule.table == DELIVER_TABLE
}

/// Returns our table in a ztunnel's namespace.
pub fn inside_table() -> TableId {
    DELIVER_TABLE
}
