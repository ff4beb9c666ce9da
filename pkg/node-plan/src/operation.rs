//! The steps that a plan is made of.

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
    /// The node's.
    Node,
    /// The namespace of the ztunnel in a slot.
    Ztunnel(ZtunnelSlot),
}

/// A change of one route. A table has one route for a destination and metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteEdit {
    /// Put it in, in the place of the one with its destination and metric.
    Replace(PathRoute),
    /// Take it out.
    Delete(PathRoute),
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Make the set of a family.
    CreateSet(Family),
    /// Remove the set of a family.
    DestroySet(Family),
    /// Put addresses into their family's set, with their pod's UID; one that is there gets the new UID.
    AddMembers(Vec<(IpAddr, PodUid)>),
    /// Take addresses out.
    RemoveMembers(Vec<IpAddr>),
    /// Make a pair of links into a ztunnel's namespace.
    CreatePair(LinkPair),
    /// Remove one of our links, and with it, if it is a veth link, its other end.
    DeleteLink(NetnsPlace, String),
    /// Switch a link on.
    SetUp(NetnsPlace, String),
    /// Give a link an address.
    AddAddress(NetnsPlace, String, IpNet),
    /// Change kernel settings, by name and value, after writing down what they were.
    SetSysctls(NetnsPlace, Vec<(String, String)>),
    /// Restore a kernel setting to what was written down, if the setting still exists.
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
        /// Why, by family.
        why: Vec<(Family, String)>,
    },
    /// Take away built-in chains of nf_tables that were not there before our rules came, as far as nobody uses them.
    RemoveChains(NetnsPlace),
}

impl Operation {
    /// A short, stable name, for metrics.
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
