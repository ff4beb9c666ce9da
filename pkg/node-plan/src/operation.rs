//! Operations of a plan.

use std::{fmt, net::IpAddr};

use model::{Family, IpNet, PodUid};
use rules::RuleChange;

use super::{
    state::{PathRoute, PathRule, ZtunnelSlot},
    want::LinkPair,
};

/// A network namespace, by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetnsPlace {
    /// The node's namespace.
    Node,
    /// The namespace of the ztunnel in a slot.
    Ztunnel(ZtunnelSlot),
}

/// A change of one route. A table has at most one route for a destination and metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteEdit {
    /// Add the route, and replace the one with its destination and metric.
    Replace(PathRoute),
    /// Delete the route.
    Delete(PathRoute),
}

/// One operation of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Create the set of a family.
    CreateSet(Family),
    /// Remove the set of a family.
    DestroySet(Family),
    /// Add addresses to their family's set, with their pod's UID; an existing one gets the new UID.
    AddMembers(Vec<(IpAddr, PodUid)>),
    /// Remove addresses from their sets.
    RemoveMembers(Vec<IpAddr>),
    /// Create a pair of links into a ztunnel's namespace.
    CreatePair(LinkPair),
    /// Delete one of our links; of a veth link, this deletes the other end, too.
    DeleteLink(NetnsPlace, String),
    /// Set a link up.
    SetUp(NetnsPlace, String),
    /// Add an address to a link.
    AddAddress(NetnsPlace, String, IpNet),
    /// Change kernel settings, by name and value, after recording their old values.
    SetSysctls(NetnsPlace, Vec<(String, String)>),
    /// Restore a kernel setting to its recorded value, if the setting still exists.
    RestoreSysctl(NetnsPlace, String, String),
    /// Add a policy rule.
    AddRule(NetnsPlace, PathRule),
    /// Delete a policy rule.
    DeleteRule(NetnsPlace, PathRule),
    /// Change routes, in order.
    Routes(NetnsPlace, Vec<RouteEdit>),
    /// Change the firewall.
    Firewall {
        /// The namespace whose firewall changes.
        place: NetnsPlace,
        /// The change of each family that needs one.
        changes: Vec<(Family, RuleChange)>,
        /// Reasons by family.
        why: Vec<(Family, String)>,
    },
    /// Remove unused built-in chains of nf_tables that did not exist before our rules.
    RemoveChains(NetnsPlace),
}

impl Operation {
    /// Returns the setting below `/proc/sys` that has to be 0 before a link gets an address; `None`: none has to. A namespace may
    /// have IPv6 disabled for new links only (`net.ipv6.conf.default.disable_ipv6`).
    pub fn required_setting(link: &str, address: &IpNet) -> Option<String> {
        address.addr().is_ipv6().then(|| format!("net/ipv6/conf/{link}/disable_ipv6"))
    }

    /// Returns a short, stable name for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Operation::CreateSet(_) => "create-set",
            Operation::DestroySet(_) => "destroy-set",
            Operation::AddMembers(_) => "add-members",
            Operation::RemoveMembers(_) => "remove-members",
            Operation::CreatePair(_) => "create-links",
            Operation::DeleteLink(..) => "delete-link",
            Operation::SetUp(..) => "set-up",
            Operation::AddAddress(..) => "add-address",
            Operation::SetSysctls(..) => "set-sysctl",
            Operation::RestoreSysctl(..) => "restore-sysctl",
            Operation::AddRule(..) => "add-rule",
            Operation::DeleteRule(..) => "delete-rule",
            Operation::Routes(..) => "routes",
            Operation::Firewall { .. } => "firewall",
            Operation::RemoveChains(_) => "remove-chains",
        }
    }
}

impl fmt::Display for NetnsPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetnsPlace::Node => f.write_str("node"),
            NetnsPlace::Ztunnel(slot) => write!(f, "ztunnel in slot {slot}"),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::CreateSet(family) => write!(f, "create the set of {family} addresses"),
            Operation::DestroySet(family) => write!(f, "destroy the set of {family} addresses"),
            Operation::AddMembers(members) => write!(f, "add {} addresses to the sets", members.len()),
            Operation::RemoveMembers(ips) => write!(f, "remove {} addresses from the sets", ips.len()),
            Operation::CreatePair(pair) => write!(f, "create links {} and {}", pair.node, pair.ztunnel),
            Operation::DeleteLink(place, name) => write!(f, "{place}: delete link {name}"),
            Operation::SetUp(place, name) => write!(f, "{place}: switch {name} on"),
            Operation::AddAddress(place, name, net) => write!(f, "{place}: add {net} to {name}"),
            Operation::SetSysctls(place, settings) => {
                let settings_text: Vec<_> =
                    settings.iter().map(|(name, value)| format!("{name} to {value}")).collect();
                write!(f, "{place}: set {}", settings_text.join(", "))
            }
            Operation::RestoreSysctl(place, name, value) => write!(f, "{place}: restore {name} to {value}"),
            Operation::AddRule(place, rule) => write!(f, "{place}: add rule {rule}"),
            Operation::DeleteRule(place, rule) => write!(f, "{place}: delete rule {rule}"),
            Operation::Routes(place, edits) => match edits.as_slice() {
                [RouteEdit::Replace(route)] => write!(f, "{place}: put route {route}"),
                [RouteEdit::Delete(route)] => write!(f, "{place}: delete route {route}"),
                many => write!(f, "{place}: change {} routes", many.len()),
            },
            Operation::Firewall { place, why, .. } => {
                let why: Vec<String> =
                    why.iter().map(|(family, reason)| format!("{family}: {reason}")).collect();
                write!(f, "{place}: firewall: {}", why.join(", "))
            }
            Operation::RemoveChains(place) => write!(f, "{place}: remove built-in chains that nobody needs"),
        }
    }
}
