//! Routes.

use std::fmt;
use std::net::IpAddr;

use netlink::Errno;

use crate::error::kernel_error;
use crate::{ChangeOutcome, Error, Family, IpNet, LinkIndex, RouteScope, RtnetlinkHandle, TableId};

mod bulk;
mod change;
mod lookup;
pub(crate) mod message;

pub use bulk::RouteChange;

use change::RouteVerb;

/// A route of one table, created with [`Route::new`] and further fields. A route that [`RtnetlinkHandle::list_routes`]
/// returns equals the one that was added, without values that the kernel fills in by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// IPv4 or IPv6.
    pub family: Family,
    /// Destination; `None` is the default route.
    pub dst: Option<IpNet>,
    /// Table of the route.
    pub table: TableId,
    /// Kind of the route, which decides what happens to packets.
    pub kind: RouteKind,
    /// The link on which packets leave. (Always `None` for discarding routes of IPv6, though the kernel shows `lo`.)
    pub oif: Option<LinkIndex>,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// Scope of the route; `None`: that of `ip route add`, which is [`Route::natural_scope`].
    pub scope: Option<RouteScope>,
    /// Source address for packets of this host.
    pub prefsrc: Option<IpAddr>,
    /// Rank among routes to the same destination, lowest first; `None` is 0 (IPv4) or 1024 (IPv6).
    pub metric: Option<u32>,
    /// Whether the next hop is assumed to be on the link although no address of ours shows it.
    pub onlink: bool,
    /// Origin of the route.
    pub protocol: RouteProtocol,
}

/// Kind of a route (`RTN_*`), which decides what happens to its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// Packets are forwarded.
    Unicast,
    /// Packets are delivered to this host.
    Local,
    /// Packets are dropped silently.
    Blackhole,
    /// Packets are rejected with "host unreachable".
    Unreachable,
    /// Another number: 3 broadcast, 4 anycast, 5 multicast, 8 prohibit, 9 throw.
    Other(u8),
}

impl RouteKind {
    /// Packets are rejected with "administratively prohibited".
    pub const PROHIBIT: RouteKind = RouteKind::Other(8);

    /// Returns whether packets end here: blackhole, unreachable, prohibit; and throw, which passes them on to the next
    /// rule.
    const fn discards_packets(self) -> bool {
        matches!(self, Self::Blackhole | Self::Unreachable | Self::PROHIBIT | Self::Other(9))
    }
}

/// Origin of a route (`RTPROT_*`), by which an owner recognises its own routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteProtocol(pub u8);

impl RouteProtocol {
    /// Matches any protocol in a deletion.
    pub const ANY: Self = Self(0);
    /// The value that `ip route add` sets, and so does Istio's agent.
    pub const BOOT: Self = Self(3);
}

impl Route {
    /// Returns a route with only a destination, as `ip route add` would create it.
    pub const fn new(family: Family, kind: RouteKind, dst: Option<IpNet>, table: TableId) -> Self {
        Self {
            family,
            dst,
            table,
            kind,
            oif: None,
            gateway: None,
            scope: None,
            prefsrc: None,
            metric: None,
            onlink: false,
            protocol: RouteProtocol::BOOT,
        }
    }

    /// Returns the default scope of a route like this (iproute2, `iproute_modify`): IPv6 has none; that of a local
    /// route is the host; that of a route without next hop is the link.
    pub const fn natural_scope(&self) -> RouteScope {
        match (self.family, self.kind, self.gateway) {
            (Family::V6, ..) => RouteScope::UNIVERSE,
            (_, RouteKind::Local, _) => RouteScope::HOST,
            (_, RouteKind::Unicast, None) => RouteScope::LINK,
            _ => RouteScope::UNIVERSE,
        }
    }

    /// Clears values that the kernel fills in by default, so that a route reads back as it was added.
    fn drop_kernel_defaults(&mut self) {
        self.metric = self.metric.filter(|metric| *metric != 0 && Some(*metric) != self.default_metric());
        if self.family == Family::V6 && self.kind.discards_packets() {
            self.oif = None; // the kernel shows lo
        }
        self.scope = self.scope.filter(|scope| *scope != self.natural_scope());
    }

    /// Returns the metric that the kernel assigns to a route without one (`IP6_RT_PRIO_USER`).
    const fn default_metric(&self) -> Option<u32> {
        match self.family {
            Family::V4 => None,
            Family::V6 => Some(1024),
        }
    }

    /// Formats the route as `ip` does, with this name for its link.
    fn describe_with_link(&self, link: Option<&str>) -> String {
        let mut fields = Vec::new();
        match self.kind {
            RouteKind::Unicast => {}
            RouteKind::Local => fields.push("local".to_owned()),
            RouteKind::Blackhole => fields.push("blackhole".to_owned()),
            RouteKind::Unreachable => fields.push("unreachable".to_owned()),
            RouteKind::Other(number) => fields.push(format!("type {number}")),
        }
        fields.push(self.dst.map_or_else(|| "default".to_owned(), |dst| dst.to_string()));
        let number = self.oif.map(|index| format!("#{}", index.0));
        let link = link.or(number.as_deref());
        fields.extend(self.gateway.map(|gateway| format!("via {gateway}")));
        fields.extend(link.map(|link| format!("dev {link}")));
        fields.push(format!("table {}", self.table));
        fields.extend(self.scope.map(|scope| format!("scope {scope}")));
        fields.extend(self.prefsrc.map(|source| format!("src {source}")));
        fields.extend(self.metric.map(|metric| format!("metric {metric}")));
        fields.extend(self.onlink.then(|| "onlink".to_owned()));
        fields.join(" ")
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe_with_link(None))
    }
}

impl RtnetlinkHandle {
    /// Returns the routes of both families in one table, or in all, without cached ones. A table that does not exist
    /// has none.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn list_routes(&mut self, table: Option<TableId>) -> Result<Vec<Route>, Error> {
        let mut routes = self.family_routes(Family::V4, table)?;
        routes.extend(self.family_routes(Family::V6, table)?);
        Ok(routes)
    }

    /// Like [`RtnetlinkHandle::list_routes`], but for one family.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn family_routes(&mut self, family: Family, table: Option<TableId>) -> Result<Vec<Route>, Error> {
        self.find_routes(family, table, |_, _| true)
    }

    /// Like [`RtnetlinkHandle::family_routes`], but returns only routes for which `keep` returns true, given those kept
    /// so far: other routes take only time, not memory.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn find_routes(
        &mut self,
        family: Family,
        table: Option<TableId>,
        mut keep: impl FnMut(&[Route], &Route) -> bool,
    ) -> Result<Vec<Route>, Error> {
        // Kernels before 4.20 ignore the filter of the request, and those without the family ignore that.
        let is_asked =
            |route: &Route| route.family == family && table.is_none_or(|table| route.table == table);
        let keep = |kept: &[Route], found: &Route| is_asked(found) && keep(kept, found);
        match self.socket.dump_some(&message::list_request(family, table), message::parse, keep) {
            // "FIB table does not exist"
            Err(refused) if table.is_some() && refused.errno() == Some(Errno::NOENT) => Ok(Vec::new()),
            other => other.map_err(|source| {
                let of = table.map_or_else(String::new, |table| format!(" of table {table}"));
                kernel_error(format_args!("list {family} routes{of}"), source)
            }),
        }
    }

    /// Adds a route. [`ChangeOutcome::No`] means that the table has one with the same destination and metric, which may
    /// differ otherwise: the kernel refuses by that key, and this function does not compare further.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn add_route(&mut self, route: &Route) -> Result<ChangeOutcome, Error> {
        self.change_route(RouteVerb::Add, route)
    }

    /// Adds a route, and replaces any with the same destination and metric.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn replace_route(&mut self, route: &Route) -> Result<ChangeOutcome, Error> {
        self.change_route(RouteVerb::Replace, route)
    }

    /// Deletes a route, if it exists. The kernel compares only the fields that are given: a route without metric
    /// (IPv4), link or gateway matches the first route of that destination and kind.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn delete_route(&mut self, route: &Route) -> Result<ChangeOutcome, Error> {
        self.change_route(RouteVerb::Delete, route)
    }
}
