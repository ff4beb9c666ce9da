//! What should be, and what is: values that can be compared.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use model::{Family, IpNet, Mark, MemberAddresses, PodUid, TableId};
use rules::SavedTables;

use super::config::ZtunnelFallback;

/// One of the two paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZtunnelSlot {
    /// Slot 0.
    Zero,
    /// Slot 1.
    One,
}

impl ZtunnelSlot {
    /// Both, 0 first.
    pub const BOTH: [ZtunnelSlot; 2] = [ZtunnelSlot::Zero, ZtunnelSlot::One];

    /// 0 or 1.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The other one.
    #[must_use]
    pub const fn other(self) -> ZtunnelSlot {
        match self {
            ZtunnelSlot::Zero => ZtunnelSlot::One,
            ZtunnelSlot::One => ZtunnelSlot::Zero,
        }
    }

    /// This slot's part of a pair.
    pub fn select_from<T>(self, [zero, one]: &[T; 2]) -> &T {
        match self {
            ZtunnelSlot::Zero => zero,
            ZtunnelSlot::One => one,
        }
    }

    /// Returns this slot's part of a pair, to change it.
    pub fn of_mut<T>(self, [zero, one]: &mut [T; 2]) -> &mut T {
        match self {
            ZtunnelSlot::Zero => zero,
            ZtunnelSlot::One => one,
        }
    }
}

impl fmt::Display for ZtunnelSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

/// A ztunnel pod, and how it hangs on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZtunnelInstance {
    /// UID of the ztunnel pod.
    pub uid: PodUid,
    /// The node's end of its veth pair.
    pub veth: String,
    /// The pod's own end, in its namespace.
    pub uplink: String,
    /// Addresses of the pod, at most one of a family.
    pub ips: Vec<IpAddr>,
    /// Whether the ztunnel answers DNS queries on port 15053.
    pub dns: bool,
}

impl ZtunnelInstance {
    /// Returns the pod's address of a family.
    pub fn ip(&self, family: Family) -> Option<IpAddr> {
        self.ips.iter().copied().find(|ip| Family::of_ip(*ip) == family)
    }
}

/// The desired state of the node path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredState {
    /// The ztunnels with a path, by slot.
    pub slots: [Option<ZtunnelInstance>; 2],
    /// Where new connections go.
    pub active: Option<ZtunnelSlot>,
    /// The enrolled addresses.
    pub members: MemberAddresses,
    /// Treatment of traffic when no slot is active.
    pub fallback: ZtunnelFallback,
}

impl DesiredState {
    /// The families that anybody uses: those of the enrolled addresses and of the ztunnels.
    pub fn families(&self) -> BTreeSet<Family> {
        let ztunnels = self.slots.iter().flatten().flat_map(|generation| &generation.ips);
        self.members.keys().chain(ztunnels).map(|ip| Family::of_ip(*ip)).collect()
    }

    /// The generation of a slot.
    pub fn ztunnel_in(&self, slot: ZtunnelSlot) -> Option<&ZtunnelInstance> {
        slot.select_from(&self.slots).as_ref()
    }

    /// Where new connections go.
    pub fn active_ztunnel(&self) -> Option<&ZtunnelInstance> {
        self.active.and_then(|slot| self.ztunnel_in(slot))
    }

    /// The active slot, if it serves a family.
    pub fn active_for(&self, family: Family) -> Option<(ZtunnelSlot, &ZtunnelInstance)> {
        let slot = self.active?;
        let generation = self.ztunnel_in(slot)?;
        generation.ip(family).map(|_| (slot, generation))
    }
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteTo {
    /// To a neighbour on a link, which need not be on a connected network.
    Via(IpAddr, String),
    /// To this host.
    Local(String),
    /// Nowhere, silently.
    Blackhole,
    /// Nowhere, and the sender is told.
    Unreachable,
    /// Something that we never make, in words.
    Other(String),
}

/// A route of one of our tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathRoute {
    /// Address family.
    pub family: Family,
    /// Routing table.
    pub table: TableId,
    /// Destination; `None` means everything.
    pub dst: Option<IpNet>,
    /// Metric: of two routes with one destination, the lower one counts.
    pub metric: u32,
    /// Where it leads.
    pub to: RouteTo,
}

impl PathRoute {
    /// Returns what identifies the route: a table can hold only one route of each key.
    pub(super) fn key(&self) -> (Family, TableId, Option<IpNet>, u32) {
        (self.family, self.table, self.dst, self.metric)
    }
}

impl fmt::Display for PathRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dst = self.dst.map_or_else(|| "default".to_owned(), |dst| dst.to_string());
        match &self.to {
            RouteTo::Via(gateway, link) => write!(f, "{dst} via {gateway} dev {link}")?,
            RouteTo::Local(link) => write!(f, "local {dst} dev {link}")?,
            RouteTo::Blackhole => write!(f, "blackhole {dst}")?,
            RouteTo::Unreachable => write!(f, "unreachable {dst}")?,
            RouteTo::Other(text) => write!(f, "{text}")?,
        }
        write!(f, " table {} metric {}", self.table, self.metric)
    }
}

/// A policy rule of ours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathRule {
    /// Address family.
    pub family: Family,
    /// Place among the policy rules.
    pub priority: u32,
    /// Only packets with this mark.
    pub mark: Option<Mark>,
    /// Where it looks.
    pub table: TableId,
}

impl fmt::Display for PathRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}:", self.family, self.priority)?;
        if let Some(mark) = self.mark {
            write!(f, " fwmark {mark}")?;
        }
        write!(f, " lookup {}", self.table)
    }
}

/// A virtual link of ours on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedLink {
    /// Whether the link is switched on.
    pub up: bool,
    /// Whether the link is of the right kind and leads to the ztunnel that this slot should have.
    pub right: bool,
}

/// Observed state of a ztunnel's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedInside {
    /// Our links there, and whether they are switched on.
    pub links: BTreeMap<String, bool>,
    /// Addresses of these links.
    pub addresses: BTreeSet<(String, IpNet)>,
    /// Policy rules at our priorities.
    pub rules: Vec<PathRule>,
    /// Routes of our table.
    pub routes: Vec<PathRoute>,
    /// Firewall of the namespace.
    pub firewall: BTreeMap<Family, SavedTables>,
    /// Tables and chains of ours that the kernel does not evaluate, as text.
    pub inactive: Vec<String>,
    /// Kernel settings that we care about, by name under `/proc/sys`.
    pub sysctls: BTreeMap<String, String>,
    /// How such settings were before we changed them.
    pub journal: BTreeMap<String, String>,
    /// Whether the built-in chains that were there before our rules are recorded.
    pub chains_noted: bool,
}

/// The observed state of the node path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedState {
    /// Members of the set of each family that has one, with the UID in their comment.
    pub sets: BTreeMap<Family, BTreeMap<IpAddr, Option<PodUid>>>,
    /// The node's firewall.
    pub firewall: BTreeMap<Family, SavedTables>,
    /// Tables and chains of ours that the kernel does not evaluate, as text.
    pub inactive: Vec<String>,
    /// Policy rules at our priorities that could be ours.
    pub rules: Vec<PathRule>,
    /// Routes of our tables.
    pub routes: Vec<PathRoute>,
    /// Links with our names.
    pub links: BTreeMap<String, ObservedLink>,
    /// Addresses of these links.
    pub addresses: BTreeSet<(String, IpNet)>,
    /// Kernel settings that we care about, by name under `/proc/sys`.
    pub sysctls: BTreeMap<String, String>,
    /// How such settings were before we changed them.
    pub journal: BTreeMap<String, String>,
    /// Whether the built-in chains that were there before our rules are recorded.
    pub chains_noted: bool,
    /// Foreign objects where ours should be, as text: default routes in our tables, rules between ours for every packet of a
    /// mark, and networks within those of our links.
    pub foreign: Vec<String>,
    /// Policy rules and routes of other components that take captured traffic ahead of ours, as text.
    pub overruling: Vec<String>,
    /// The namespaces of the ztunnels that should have a slot.
    pub inside: [Option<ObservedInside>; 2],
}

impl ObservedState {
    /// Why captured traffic bypasses ztunnel although our objects are in place, as text.
    pub fn bypass_reasons(&self) -> impl Iterator<Item = String> {
        self.inactive_rules().chain(self.overruling.iter().cloned())
    }

    /// Tables and chains of ours that the kernel does not evaluate, on the node and in the namespaces of its ztunnels, as text.
    pub fn inactive_rules(&self) -> impl Iterator<Item = String> {
        let inside = self.inside.iter().flatten().flat_map(|inside| &inside.inactive);
        let inside = inside.map(|what| format!("in the network namespace of ztunnel, {what}"));
        self.inactive.iter().cloned().chain(inside)
    }
}
