//! Names, numbers and marks; the operator can change all of them, and plugin and agent must use the same.

use std::{net::IpAddr, str::FromStr};

use model::{Family, IpNet, Ipv4Net, Ipv6Net, TableId};
use rules::node as rule_sets;
use serde::{Deserialize, Serialize};

use super::{
    state::ZtunnelSlot,
    want::{Direction, RULES},
};

model::word_enum! {
    /// Treatment of enrolled pods' TCP traffic while no ztunnel is ready.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ZtunnelFallback {
        /// The traffic is dropped silently. A connection attempt succeeds if a ztunnel becomes ready before it times out.
        #[default]
        Hold = "hold",
        /// The traffic is rejected, so that applications fail immediately.
        Reject = "reject",
        /// The traffic is routed as without capture, outside of the mesh.
        Open = "open",
    }
}

impl FromStr for ZtunnelFallback {
    type Err = String;

    fn from_str(text: &str) -> Result<ZtunnelFallback, String> {
        ZtunnelFallback::from_name(text).ok_or_else(|| format!("{text:?} must be one of hold, reject, open"))
    }
}

/// Routing tables on the node. Those of a slot are `base + slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteTables {
    /// New connections to enrolled pods.
    pub inbound: u32,
    /// New connections from enrolled pods.
    pub outbound: u32,
    /// Base: a slot's connections to enrolled pods.
    pub slot_inbound: u32,
    /// Base: a slot's connections from enrolled pods.
    pub slot_outbound: u32,
    /// Base: replies to connections that a slot's ztunnel opened with a foreign source address.
    pub slot_return: u32,
}

/// Priorities of policy rules on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulePriorities {
    /// The first priority; the others follow without a gap.
    pub first: u32,
}

/// Networks for the two ends of the virtual links; a slot uses one pair of addresses of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkNetworks {
    /// Towards ztunnel, for inbound traffic.
    pub inbound_v4: Ipv4Net,
    /// Towards ztunnel, for outbound traffic.
    pub outbound_v4: Ipv4Net,
    /// Inbound, IPv6.
    pub inbound_v6: Ipv6Net,
    /// Outbound, IPv6.
    pub outbound_v6: Ipv6Net,
}

/// Complete configuration of the node path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeConfig {
    /// Set of enrolled IPv4 addresses.
    pub set_v4: String,
    /// Set of enrolled IPv6 addresses.
    pub set_v6: String,
    /// Routing tables.
    pub tables: RouteTables,
    /// Policy rules.
    pub priorities: RulePriorities,
    /// Marks, links and ports as in firewall rules; enrolment needs none of them.
    #[serde(skip)]
    pub rules: rule_sets::NodeRulesConfig,
    /// Addresses of the links.
    pub nets: LinkNetworks,
}

impl Default for NodeConfig {
    fn default() -> NodeConfig {
        let v4 = |third| Ipv4Net::new_assert([192, 168, third, 0].into(), 24);
        let v6 = |last| Ipv6Net::new_assert([0xfd69, 0x7374, 0x696f, last, 0, 0, 0, 0].into(), 64);
        NodeConfig {
            set_v4: "ztunnel-pods-ips".to_owned(),
            set_v6: "ztunnel-pods-ips-v6".to_owned(),
            tables: RouteTables {
                inbound: 100,
                outbound: 101,
                slot_inbound: 110,
                slot_outbound: 120,
                slot_return: 130,
            },
            priorities: RulePriorities { first: 100 },
            rules: rule_sets::NodeRulesConfig::default(),
            nets: LinkNetworks {
                inbound_v4: v4(126),
                outbound_v4: v4(127),
                inbound_v6: v6(126),
                outbound_v6: v6(127),
            },
        }
    }
}

/// Addresses of both ends of a link, with the prefix length of their network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkEnds {
    pub(super) node: IpNet,
    pub(super) ztunnel: IpNet,
}

impl NodeConfig {
    /// Returns the name of the set of a family's enrolled addresses.
    pub fn set_name(&self, family: Family) -> &str {
        match family {
            Family::V4 => &self.set_v4,
            Family::V6 => &self.set_v6,
        }
    }

    /// Returns all our tables on the node.
    pub fn all_tables(&self) -> Vec<TableId> {
        let of_slot = |base: u32| ZtunnelSlot::BOTH.map(|slot| base + slot.number());
        let RouteTables { inbound, outbound, slot_inbound, slot_outbound, slot_return } = self.tables;
        let bases = [slot_inbound, slot_outbound, slot_return].into_iter().flat_map(of_slot);
        [inbound, outbound].into_iter().chain(bases).map(TableId).collect()
    }

    /// Returns the tables in which only captured addresses are looked up.
    pub fn inbound_tables(&self) -> [TableId; 3] {
        let RouteTables { inbound, slot_inbound, .. } = self.tables;
        [inbound, slot_inbound, slot_inbound + 1].map(TableId)
    }

    /// Returns the networks of our links.
    pub fn link_networks(&self) -> [IpNet; 4] {
        let LinkNetworks { inbound_v4, outbound_v4, inbound_v6, outbound_v6 } = self.nets;
        [inbound_v4.into(), outbound_v4.into(), inbound_v6.into(), outbound_v6.into()]
    }

    /// Returns whether a foreign policy rule of this priority would be between ours.
    pub fn has_priority_conflict(&self, priority: Option<u32>) -> bool {
        let ours = self.priorities.first..self.priorities.first + RULES;
        priority.is_some_and(|priority| ours.contains(&priority))
    }

    /// Returns the addresses of a slot's inbound or outbound link. Each slot has four consecutive addresses, of which
    /// the second is the node's and the third ztunnel's (for IPv4 that is a /30, as Istio's).
    pub(super) fn link_ends(&self, direction: Direction, slot: ZtunnelSlot, family: Family) -> LinkEnds {
        let network: IpNet = match (direction, family) {
            (Direction::Inbound, Family::V4) => self.nets.inbound_v4.into(),
            (Direction::Outbound, Family::V4) => self.nets.outbound_v4.into(),
            (Direction::Inbound, Family::V6) => self.nets.inbound_v6.into(),
            (Direction::Outbound, Family::V6) => self.nets.outbound_v6.into(),
        };
        let end = |place: u32| link_address(network, slot.number() * 4 + place);
        LinkEnds { node: end(1), ztunnel: end(2) }
    }
}

fn link_address(network: IpNet, place: u32) -> IpNet {
    let (ip, prefix) = match network.network() {
        IpAddr::V4(base) => (IpAddr::V4((u32::from(base) + place).into()), 30),
        IpAddr::V6(base) => (IpAddr::V6((u128::from(base) + u128::from(place)).into()), 126),
    };
    IpNet::new(ip, prefix).unwrap_or_else(|_| IpNet::from(ip))
}
