//! Desired and observed state: values that can be compared.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use model::{Family, IpNet, Mark, MemberAddresses, PodUid, TableId};
use rules::SavedTables;

use super::config::ZtunnelFallback;

/// One of the two paths to a ztunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZtunnelSlot {
    /// Slot 0.
    Zero,
    /// Slot 1.
    One,
}

impl ZtunnelSlot {
    /// Both slots, 0 first.
    pub const BOTH: [ZtunnelSlot; 2] = [ZtunnelSlot::Zero, ZtunnelSlot::One];

    /// Returns 0 or 1.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Returns the other slot.
    #[must_use]
    pub const fn other(self) -> ZtunnelSlot {
        match self {
            ZtunnelSlot::Zero => ZtunnelSlot::One,
            ZtunnelSlot::One => ZtunnelSlot::Zero,
        }
    }

    /// Returns this slot's part of a pair.
    pub fn select_from<T>(self, [zero, one]: &[T; 2]) -> &T {
        match self {
            ZtunnelSlot::Zero => zero,
            ZtunnelSlot::One => one,
        }
    }

    /// Returns this slot's part of a pair, mutable.
    pub fn part_mut<T>(self, [zero, one]: &mut [T; 2]) -> &mut T {
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

/// A ztunnel pod, and its connection to the node.
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
        self.ips.iter().copied().find(|ip| Family::from_ip(*ip) == family)
    }
}

/// The desired state of the node path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredState {
    /// The ztunnels with a path, by slot.
    pub slots: [Option<ZtunnelInstance>; 2],
    /// The slot of new connections.
    pub active: Option<ZtunnelSlot>,
    /// The enrolled addresses.
    pub members: MemberAddresses,
    /// Treatment of traffic when no slot is active.
    pub fallback: ZtunnelFallback,
}

impl DesiredState {
    /// Returns the families in use: those of the enrolled addresses and of the ztunnels.
    pub fn families(&self) -> BTreeSet<Family> {
        let ztunnels = self.slots.iter().flatten().flat_map(|generation| &generation.ips);
        self.members.keys().chain(ztunnels).map(|ip| Family::from_ip(*ip)).collect()
    }

    /// Returns the ztunnel in a slot.
    pub fn ztunnel_in(&self, slot: ZtunnelSlot) -> Option<&ZtunnelInstance> {
        slot.select_from(&self.slots).as_ref()
    }

    /// Returns the slots that have a ztunnel, each with it.
    pub(super) fn occupied_slots(&self) -> impl Iterator<Item = (ZtunnelSlot, &ZtunnelInstance)> {
        ZtunnelSlot::BOTH.into_iter().filter_map(|slot| Some((slot, self.ztunnel_in(slot)?)))
    }

    /// Returns the ztunnel of new connections.
    pub fn active_ztunnel(&self) -> Option<&ZtunnelInstance> {
        self.active.and_then(|slot| self.ztunnel_in(slot))
    }

    /// Returns the active slot and its ztunnel, if it serves a family.
    pub fn active_for(&self, family: Family) -> Option<(ZtunnelSlot, &ZtunnelInstance)> {
        let slot = self.active?;
        let generation = self.ztunnel_in(slot)?;
        generation.ip(family).map(|_| (slot, generation))
    }
}

/// Target of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteTo {
    /// A neighbour on a link, which need not be on a connected network.
    Via(IpAddr, String),
    /// This host.
    Local(String),
    /// No target: packets are dropped silently.
    Blackhole,
    /// No target: packets are rejected with an error.
    Unreachable,
    /// A target that we never use, as text.
    Other(String),
}

/// A route of one of our tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathRoute {
    /// Address family.
    pub family: Family,
    /// Routing table.
    pub table: TableId,
    /// Destination; `None` means all.
    pub dst: Option<IpNet>,
    /// Metric: of two routes to one destination, the lower one takes effect.
    pub metric: u32,
    /// Target of the route.
    pub to: RouteTo,
}

impl PathRoute {
    /// Returns the key of the route: a table has at most one route of each key.
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
    /// Priority of the rule.
    pub priority: u32,
    /// Only packets with this mark.
    pub mark: Option<Mark>,
    /// Table that is looked up.
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
    /// Number of the link; another one of the same name has another.
    pub index: u32,
    /// Whether the link is up.
    pub up: bool,
    /// Whether the link is of the right kind and its peer is in the namespace of this slot's ztunnel.
    pub right: bool,
}

/// Observed state of a ztunnel's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedInside {
    /// Our links there, and whether they are up.
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
    /// Relevant kernel settings, by name under `/proc/sys`.
    pub sysctls: BTreeMap<String, String>,
    /// Values of such settings before we changed them.
    pub journal: BTreeMap<String, String>,
    /// Whether the journal has the built-in chains that existed before our rules.
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
    /// Policy rules at our priorities that could be ours, and those of an agent with other numbers.
    pub rules: Vec<PathRule>,
    /// Routes of our tables, and of those of an agent with other numbers.
    pub routes: Vec<PathRoute>,
    /// Links with our names, and those of Istio's own agent.
    pub links: BTreeMap<String, ObservedLink>,
    /// Addresses of these links.
    pub addresses: BTreeSet<(String, IpNet)>,
    /// Relevant kernel settings, by name under `/proc/sys`.
    pub sysctls: BTreeMap<String, String>,
    /// Values of such settings before we changed them.
    pub journal: BTreeMap<String, String>,
    /// Whether the journal has the built-in chains that existed before our rules.
    pub chains_noted: bool,
    /// Foreign objects in the place of ours, as text: default routes in our tables, rules between ours for all packets
    /// with a mark, and networks within those of our links.
    pub foreign: Vec<String>,
    /// Foreign policy rules and routes that take captured traffic before ours, as text.
    pub overruling: Vec<String>,
    /// The namespaces of the ztunnels that should have a slot.
    pub inside: [Option<ObservedInside>; 2],
}

impl ObservedState {
    /// Returns the reasons why captured traffic bypasses ztunnel although our objects are in place, as text.
    pub fn bypass_reasons(&self) -> impl Iterator<Item = String> {
        self.inactive_rules().chain(self.overruling.iter().cloned())
    }

    /// Returns tables and chains of ours that the kernel does not evaluate, on the node and in the namespaces of its
    /// ztunnels, as text.
    pub fn inactive_rules(&self) -> impl Iterator<Item = String> {
        let inside = self.inside.iter().flatten().flat_map(|inside| &inside.inactive);
        let inside = inside.map(|what| format!("in the network namespace of ztunnel, {what}"));
        self.inactive.iter().cloned().chain(inside)
    }
}
