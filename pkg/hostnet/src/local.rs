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
    /// Adds what is missing, and returns it as text. Another default route of the same metric is replaced by ours:
    /// packets with the mark have no other table.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], and those of [`RtnetlinkHandle::ensure_rule`].
    pub fn ensure_local_delivery(
        &mut self,
        family: Family,
        lo: LinkIndex,
        desired: &LocalDelivery,
    ) -> Result<Vec<String>, Error> {
        let mut made = Vec::new();
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
            self.missing_route(family, desired)?
        };
        if lack.is_some() && !is_added {
            let _ = self.replace_route(&route)?;
        }
        made.extend(lack);
        Ok(made)
    }

    /// Returns what is missing, as text. `has_rule`: whether the policy rule is in place.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn missing_local_delivery(
        &mut self,
        family: Family,
        has_rule: bool,
        desired: &LocalDelivery,
    ) -> Result<Vec<String>, Error> {
        let mut missing: Vec<String> = self.missing_route(family, desired)?.into_iter().collect();
        if !has_rule {
            missing.push(desired.no_rule(family));
        }
        Ok(missing)
    }

    /// Reports that the table has no local default route, and what it has instead; `None`: it has one.
    fn missing_route(&mut self, family: Family, desired: &LocalDelivery) -> Result<Option<String>, Error> {
        let is_local = |route: &Route| route.kind == RouteKind::Local;
        let first_and_local = |kept: &[Route], route: &Route| {
            route.dst.is_none() && (kept.is_empty() || (is_local(route) && !kept.iter().any(is_local)))
        };
        let defaults = self.find_routes(family, Some(desired.table), first_and_local)?;
        let is_there = defaults.iter().any(is_local);
        let other = defaults.first().map(|route| self.describe_route(route));
        Ok((!is_there).then(|| no_route(family, desired.table, other.as_deref())))
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

fn no_route(family: Family, table: TableId, other: Option<&str>) -> String {
    let other = other.map_or_else(String::new, |other| format!(", but \"{other}\""));
    format!("{family} table {table} has no local default route{other}")
}
