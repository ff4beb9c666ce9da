//! Local delivery of packets with a mark, whatever their address: a policy rule, and a route in its table.

use crate::{
    ChangeOutcome, Error, Family, LinkIndex, Mark, PolicyRule, Route, RouteKind, RouteProtocol,
    RtnetlinkHandle, RuleAction, TableId,
};

/// Local delivery of packets with a mark, by a policy rule and a routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalDelivery {
    /// The mark of the packets.
    pub mark: Mark,
    /// The table of the route `local default dev lo`.
    pub table: TableId,
    /// Priority of the rule; `None`: chosen by the kernel.
    pub priority: Option<u32>,
}

/// Local delivery compared with the desired one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedDelivery {
    /// Missing rule and route, as text.
    pub missing: Vec<String>,
    /// A route of the table that leads packets to some destinations elsewhere, as text.
    pub narrower: Option<String>,
}

impl LocalDelivery {
    /// Returns the policy rule.
    pub fn policy_rule(&self, family: Family) -> PolicyRule {
        let rule = PolicyRule::new(family, self.priority, RuleAction::Lookup(self.table));
        PolicyRule { fwmark: Some(self.mark), ..rule }
    }

    /// Returns the route; `lo` is the loopback link.
    pub fn default_route(&self, family: Family, lo: LinkIndex) -> Route {
        Route { oif: Some(lo), ..Route::new(family, RouteKind::Local, None, self.table) }
    }

    fn no_rule(&self, family: Family) -> String {
        format!("{family} has no policy rule from mark {} to table {}", self.mark, self.table)
    }
}

impl RtnetlinkHandle {
    /// Adds what is missing, and appends it to `made` as text, the policy rule first. Another default route of the same
    /// metric is replaced by ours: packets with the mark have no other table.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], and those of [`RtnetlinkHandle::ensure_rule`].
    pub fn ensure_local_delivery(
        &mut self,
        family: Family,
        lo: LinkIndex,
        desired: &LocalDelivery,
        made: &mut Vec<String>,
    ) -> Result<(), Error> {
        // The rule is added first and deleted last, because its presence shows that there is something to delete. A
        // rule whose table is empty has no effect.
        if self.ensure_rule(&desired.policy_rule(family))? == ChangeOutcome::Yes {
            made.push(desired.no_rule(family));
        }
        let route = desired.default_route(family, lo);
        let is_added = self.add_route(&route)?.is_yes();
        let lack = if is_added {
            Some(no_route(family, desired.table, None))
        } else {
            self.read_table(family, desired)?.0
        };
        if lack.is_some() && !is_added {
            let _ = self.replace_route(&route)?;
        }
        made.extend(lack);
        Ok(())
    }

    /// Compares the rule and the route with the kernel's. `has_rule`: whether the policy rule is in place.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn observe_local_delivery(
        &mut self,
        family: Family,
        has_rule: bool,
        desired: &LocalDelivery,
    ) -> Result<ObservedDelivery, Error> {
        let (lack, narrower) = self.read_table(family, desired)?;
        let mut missing: Vec<String> = lack.into_iter().collect();
        if !has_rule {
            missing.push(desired.no_rule(family));
        }
        Ok(ObservedDelivery { missing, narrower })
    }

    /// Reports that the table has no local default route, and what it has instead; and its first route to some
    /// destinations elsewhere.
    fn read_table(
        &mut self,
        family: Family,
        desired: &LocalDelivery,
    ) -> Result<(Option<String>, Option<String>), Error> {
        let routes = self.find_routes(family, Some(desired.table), is_relevant)?;
        let first = |has_dst: bool| routes.iter().find(|route| route.dst.is_some() == has_dst);
        let [other, narrower] = [false, true].map(|has_dst| Some(self.describe_route(first(has_dst)?)));
        let is_there = routes.iter().any(is_local_default);
        Ok(((!is_there).then(|| no_route(family, desired.table, other.as_deref())), narrower))
    }

    /// Deletes both, whatever component created them, and returns what was deleted as text.
    ///
    /// # Errors
    ///
    /// Those of [`RtnetlinkHandle::delete_rule`] and [`RtnetlinkHandle::delete_route`].
    pub fn delete_local_delivery(
        &mut self,
        family: Family,
        lo: LinkIndex,
        stale: &LocalDelivery,
    ) -> Result<Vec<String>, Error> {
        let rule = stale.policy_rule(family);
        let route = Route { protocol: RouteProtocol::ANY, ..stale.default_route(family, lo) };
        let mut removed = Vec::new();
        if self.delete_route(&route)? == ChangeOutcome::Yes {
            removed.push(format!("route {route}"));
        }
        if self.delete_rule(&rule)? == ChangeOutcome::Yes {
            removed.push(format!("policy rule {rule}"));
        }
        Ok(removed)
    }
}

fn is_local_default(route: &Route) -> bool {
    route.dst.is_none() && route.kind == RouteKind::Local
}

/// Returns whether a route is the first default route, the first local one, or the first to some destinations elsewhere.
fn is_relevant(kept: &[Route], route: &Route) -> bool {
    let is_first = !kept.iter().any(|kept| kept.dst.is_some() == route.dst.is_some());
    let leads_away = route.dst.is_none() || route.kind != RouteKind::Local;
    (is_first && leads_away) || (is_local_default(route) && !kept.iter().any(is_local_default))
}

fn no_route(family: Family, table: TableId, other: Option<&str>) -> String {
    let other = other.map_or_else(String::new, |other| format!(", but \"{other}\""));
    format!("{family} table {table} has no local default route{other}")
}
