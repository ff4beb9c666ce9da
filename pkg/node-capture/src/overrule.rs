//! Foreign policy rules and routes on the node that take captured traffic before ours. They leave ours unchanged, so no
//! comparison of our own objects detects them.

use std::net::IpAddr;

use hostnet::{IpNet, OtherConditions, PolicyRule, Route, RouteKind, RuleAction};
use model::Family;
use node_plan::{NodeConfig, PathRoute, captured_marks, is_our_rule, policy_rules};

use crate::convert;

/// Maximum number of reports.
const MOST: usize = 8;

/// Returns the rules of a family that take packets of captured pods before ours, as text. `rules`: in the order of
/// evaluation; `routes`: all of the node; `captured`: the addresses of captured pods.
pub(crate) fn overruling_rules(
    config: &NodeConfig,
    family: Family,
    rules: &[PolicyRule],
    routes: &[Route],
    captured: &[IpAddr],
) -> Vec<String> {
    let (ours, tables) = (policy_rules(config, family), config.all_tables());
    // Each kind of packet with the rule of ours for it, until that rule is evaluated.
    let rule_for = |mark: u32| {
        let of_rule = |own: Option<model::Mark>| own.is_none_or(|own| mark & own.mask == own.value);
        ours.iter().find(|rule| of_rule(rule.mark)).map(|rule| (mark, rule))
    };
    let mut packets: Vec<_> = captured_marks(config).into_iter().filter_map(rule_for).collect();
    let mut found = Vec::new();
    for rule in rules.iter().filter(|rule| rule.family == family) {
        if let Some(own) = convert::rule_from(rule).filter(|rule| is_our_rule(config, rule)) {
            packets.retain(|(_, ours)| **ours != own);
            continue;
        }
        let is_overruled = |(mark, ours): &(u32, &node_plan::PathRule)| {
            rule.priority.unwrap_or_default() <= ours.priority
                && rule.leads_past(ours.priority, &tables)
                && rule.takes_forwarded(*mark, captured)
        };
        if packets.iter().any(is_overruled) && finds_route(rule, routes) {
            found.push(format!("rule {rule}"));
        }
    }
    found.truncate(MOST);
    found
}

/// Returns whether a rule finds a route. In an empty table there is none, and the next rule is evaluated.
fn finds_route(rule: &PolicyRule, routes: &[Route]) -> bool {
    let RuleAction::Lookup(table) = rule.action else { return true };
    let OtherConditions { suppressed, .. } = rule.other;
    let length = |route: &Route| route.dst.map_or(0, |dst| u32::from(dst.prefix_len()));
    routes.iter().any(|route| {
        (route.family, route.table) == (rule.family, table)
            && suppressed.is_none_or(|most| length(route) > most)
    })
}

/// Returns whether a foreign route in one of our tables takes packets of captured pods that would use one of `ours`:
/// all of them, or those to some destination. `before`: the routes that the kernel lists before it.
pub(crate) fn is_overruling_route(
    config: &NodeConfig,
    route: &Route,
    before: &[Route],
    ours: &[PathRoute],
    captured: &[IpAddr],
) -> bool {
    let contains = |whole: Option<IpNet>| match (whole, route.dst) {
        (None, _) => true,
        (Some(whole), Some(part)) => whole.contains(&part),
        (Some(_), None) => false,
    };
    let metric = convert::route_metric(route);
    // Of routes with the same metric the first one takes effect, such as one that `ip route prepend` adds.
    let is_first = || !before.iter().any(|own| own.protocol == convert::OURS && is_alternative(own, route));
    let wins = |own: &PathRoute| match own.dst == route.dst {
        true => metric < lowest_metric(own, ours) || (metric == lowest_metric(own, ours) && is_first()),
        false => contains(own.dst),
    };
    // In inbound tables only captured addresses are looked up.
    let is_inbound = config.inbound_tables().contains(&route.table);
    let concerns = !is_inbound || captured.iter().any(|ip| route.dst.is_none_or(|dst| dst.contains(ip)));
    let same_table = |own: &&PathRoute| (own.family, own.table) == (route.family, route.table);
    // Of the others, `throw` leads to the next rule, and `local` to this host.
    let discards = matches!(route.kind, RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::PROHIBIT);
    !discards && concerns && ours.iter().filter(same_table).any(wins)
}

/// Returns whether two routes have the same destination and metric.
fn is_alternative(one: &Route, other: &Route) -> bool {
    (one.family, one.table, one.dst, one.metric) == (other.family, other.table, other.dst, other.metric)
}

/// Returns the lowest metric among our routes to the same destination, which takes effect.
fn lowest_metric(own: &PathRoute, ours: &[PathRoute]) -> u32 {
    let is_alike =
        |other: &&PathRoute| (other.family, other.table, other.dst) == (own.family, own.table, own.dst);
    ours.iter().filter(is_alike).map(|other| other.metric).min().unwrap_or(own.metric)
}

#[cfg(test)]
mod tests {
    use hostnet::TableId;
    use model::Mark;
    use node_plan::RouteTo;

    use super::*;

    fn lookup(priority: u32, table: u32) -> PolicyRule {
        PolicyRule::new(Family::V4, Some(priority), RuleAction::Lookup(TableId(table)))
    }

    fn route(table: u32, dst: Option<&str>, metric: u32) -> Route {
        let dst = dst.map(|dst| dst.parse().unwrap());
        let route = Route::new(Family::V4, RouteKind::Unicast, dst, TableId(table));
        Route { metric: Some(metric), ..route }
    }

    #[test]
    fn only_rules_that_take_captured_traffic_ahead_of_ours_count() {
        let config = NodeConfig::default();
        let routes = [route(254, None, 0), route(254, Some("10.10.0.0/24"), 0), route(7, None, 0)];
        let captured = ["10.0.0.5".parse().unwrap()];
        let (inverted, narrow) = (true, true);
        let other = |other, rule| PolicyRule { unmodelled: true, other, ..rule };
        let none = OtherConditions::NONE;
        let suppressed = |most| other(OtherConditions { suppressed: Some(most), ..none }, lookup(98, 254));
        let from =
            |net: &str| other(OtherConditions { source: Some(net.parse().unwrap()), ..none }, lookup(98, 7));
        let not = |rule| other(OtherConditions { inverted, ..none }, rule);
        let marked = |value, mask, rule| PolicyRule { fwmark: Some(Mark { value, mask }), ..rule };
        let cases = [
            (lookup(98, 254), true),
            (lookup(98, 7), true),
            (suppressed(0), true),
            (not(marked(0xca6c, u32::MAX, lookup(98, 7))), true),
            (not(marked(0x20_0000, 0x20_0000, lookup(99, 7))), true),
            (marked(0x1000, 0x1000, lookup(98, 7)), true),
            (marked(0, 0x8_0000, lookup(98, 7)), true),
            (from("10.0.0.0/24"), true),
            (PolicyRule { dest: Some("203.0.113.0/24".parse().unwrap()), ..lookup(98, 7) }, true),
            (PolicyRule::new(Family::V4, Some(98), RuleAction::Goto(32766)), true),
            (lookup(105, 254), true),
            // Rules that find no route, do not match, hold traffic, or come later.
            (lookup(98, 8), false),
            (suppressed(24), false),
            (lookup(0, 255), false),
            (lookup(98, 101), false),
            (from("10.0.1.0/24"), false),
            (marked(0xd00, 0xf00, lookup(98, 7)), false),
            (marked(0x200, 0x200, lookup(98, 7)), false),
            (marked(0x8_0000, 0x8_0000, lookup(98, 7)), false),
            (not(marked(0x1000, 0x1000, lookup(109, 7))), false),
            (PolicyRule { iif: Some("eth0".to_owned()), ..lookup(98, 7) }, false),
            (other(OtherConditions { narrow, ..none }, lookup(98, 7)), false),
            (PolicyRule::new(Family::V4, Some(98), RuleAction::Blackhole), false),
            (lookup(110, 7), false),
            (lookup(32766, 254), false),
        ];
        let ours: Vec<PolicyRule> = policy_rules(&config, Family::V4).iter().map(convert::rule_to).collect();
        for (rule, expected) in cases {
            let mut rules = [ours.clone(), vec![rule.clone()]].concat();
            rules.sort_by_key(|rule| rule.priority);
            let found = overruling_rules(&config, Family::V4, &rules, &routes, &captured);
            let expected = if expected { vec![format!("rule {rule}")] } else { Vec::new() };
            assert_eq!(found, expected, "{rule}");
            // Our rules need not exist yet.
            let found = overruling_rules(&config, Family::V4, &[rule], &routes, &captured);
            assert!(expected.is_empty() || found == expected);
        }
    }

    #[test]
    fn only_routes_that_take_captured_traffic_ahead_of_ours_count() {
        let config = NodeConfig::default();
        let own = |table, dst: Option<&str>, metric| PathRoute {
            family: Family::V4,
            table: TableId(table),
            dst: dst.map(|dst| dst.parse().unwrap()),
            metric,
            to: RouteTo::Blackhole,
        };
        let ours = [
            own(101, None, 1024),
            own(101, None, 4096),
            own(100, Some("10.0.0.5/32"), 1024),
            own(110, None, 1024),
        ];
        let captured = ["10.0.0.5".parse().unwrap()];
        let routes = [Route { protocol: convert::OURS, ..route(110, None, 1024) }];
        let of_kind = |kind, route| Route { kind, ..route };
        for (route, expected) in [
            (route(101, None, 1), true),
            (route(101, None, 1024), true),
            (route(101, Some("198.51.100.0/24"), 2000), true),
            (route(100, Some("10.0.0.5/32"), 1), true),
            (route(110, Some("10.0.0.0/24"), 0), true),
            (route(110, None, 0), true),
            (of_kind(RouteKind::Other(9), route(101, None, 1)), true),
            (of_kind(RouteKind::Local, route(101, Some("198.51.100.0/24"), 0)), true),
            // Our route takes precedence, the destination does not exist, or the traffic is held.
            (route(101, None, 2000), false),
            (route(110, None, 1024), false),
            (route(100, None, 0), false),
            (route(100, Some("10.0.0.0/24"), 0), false),
            (route(100, Some("10.0.0.6/32"), 0), false),
            (route(110, Some("10.0.1.0/24"), 0), false),
            (route(120, Some("10.0.1.0/24"), 0), false),
            (of_kind(RouteKind::Blackhole, route(101, None, 1)), false),
            (of_kind(RouteKind::PROHIBIT, route(101, None, 1)), false),
        ] {
            let overrules = is_overruling_route(&config, &route, &routes, &ours, &captured);
            assert_eq!(overrules, expected, "{route}");
        }
    }
}
