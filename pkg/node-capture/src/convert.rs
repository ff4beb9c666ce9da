//! Conversion between the plan's values, which name links, and the kernel's, which number them.

use std::collections::{BTreeMap, BTreeSet};

use hostnet::{Link, LinkIndex, PolicyRule, Route, RouteKind, RouteProtocol, RtnetlinkHandle, RuleAction};
use model::Family;
use node_plan::{PathRoute, PathRule, RouteTo};

use crate::Error;

/// Protocol that distinguishes our routes from foreign ones in any table.
pub(crate) const OURS: RouteProtocol = RouteProtocol(109);

/// Names and numbers of the links of one namespace at one point in time.
#[derive(Debug, Default)]
pub(crate) struct LinkNames(BTreeMap<LinkIndex, String>);

impl LinkNames {
    pub(crate) fn from_links(links: &[Link]) -> LinkNames {
        LinkNames(links.iter().map(|link| (link.index, link.name.clone())).collect())
    }

    /// Reads the links of these routes, as far as they exist. A node has a link for each pod; listing all of them takes
    /// longer than any enrolment.
    pub(crate) fn read_links<'a>(
        net: &mut RtnetlinkHandle,
        routes: impl Iterator<Item = &'a PathRoute>,
    ) -> Result<LinkNames, Error> {
        let desired: BTreeSet<&str> = routes.filter_map(route_link).collect();
        let mut found = BTreeMap::new();
        for name in desired {
            found.extend(net.link_by_name(name)?.map(|link| (link.index, link.name)));
        }
        Ok(LinkNames(found))
    }

    fn link_name(&self, index: Option<LinkIndex>) -> String {
        index.and_then(|index| self.0.get(&index).cloned()).unwrap_or_default()
    }

    fn link_index(&self, name: &str) -> Result<LinkIndex, Error> {
        let found = self.0.iter().find(|(_, found)| *found == name);
        found.map(|(index, _)| *index).ok_or_else(|| Error::NoLink(name.to_owned()))
    }
}

fn route_link(route: &PathRoute) -> Option<&str> {
    match &route.to {
        RouteTo::Via(_, link) | RouteTo::Local(link) => Some(link),
        RouteTo::Blackhole | RouteTo::Unreachable | RouteTo::Other(_) => None,
    }
}

pub(crate) fn route_from(route: &Route, names: &LinkNames) -> PathRoute {
    let link = || names.link_name(route.oif);
    let to = match (route.kind, route.gateway) {
        (RouteKind::Unicast, Some(gateway)) => RouteTo::Via(gateway, link()),
        (RouteKind::Local, None) => RouteTo::Local(link()),
        (RouteKind::Blackhole, _) => RouteTo::Blackhole,
        (RouteKind::Unreachable, _) => RouteTo::Unreachable,
        _ => RouteTo::Other(route.to_string()),
    };
    PathRoute { family: route.family, table: route.table, dst: route.dst, metric: route_metric(route), to }
}

pub(crate) fn route_metric(route: &Route) -> u32 {
    let natural = if route.family == Family::V6 { 1024 } else { 0 };
    route.metric.unwrap_or(natural)
}

pub(crate) fn route_to(route: &PathRoute, names: &LinkNames) -> Result<Route, Error> {
    let (kind, gateway) = match &route.to {
        RouteTo::Via(gateway, _) => (RouteKind::Unicast, Some(*gateway)),
        RouteTo::Local(_) => (RouteKind::Local, None),
        RouteTo::Blackhole => (RouteKind::Blackhole, None),
        RouteTo::Unreachable | RouteTo::Other(_) => (RouteKind::Unreachable, None),
    };
    Ok(Route {
        protocol: OURS,
        metric: Some(route.metric),
        gateway,
        oif: route_link(route).map(|link| names.link_index(link)).transpose()?,
        onlink: gateway.is_some(),
        ..Route::new(route.family, kind, route.dst, route.table)
    })
}

/// Converts a policy rule. `None` if it has a form that none of our rules has.
pub(crate) fn rule_from(rule: &PolicyRule) -> Option<PathRule> {
    let RuleAction::Lookup(table) = rule.action else { return None };
    let others = rule.iif.is_some() || rule.dest.is_some() || rule.ip_proto.is_some() || rule.unmodelled;
    (!others).then_some(PathRule { family: rule.family, priority: rule.priority?, mark: rule.fwmark, table })
}

pub(crate) fn rule_to(rule: &PathRule) -> PolicyRule {
    let made = PolicyRule::new(rule.family, Some(rule.priority), RuleAction::Lookup(rule.table));
    PolicyRule { fwmark: rule.mark, ..made }
}
