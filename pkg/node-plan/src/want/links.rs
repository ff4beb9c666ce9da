//! The links of each slot, and their addresses.

use std::collections::BTreeSet;

use model::{Family, IpNet};

use crate::{
    config::NodeConfig,
    state::{ZtunnelInstance, ZtunnelSlot},
};

/// Direction of the traffic of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// To enrolled pods.
    Inbound,
    /// From enrolled pods.
    Outbound,
}

impl Direction {
    /// Both directions.
    pub const BOTH: [Direction; 2] = [Direction::Inbound, Direction::Outbound];

    pub(super) const fn link_prefix(self) -> &'static str {
        match self {
            Direction::Inbound => "istioin",
            Direction::Outbound => "istioout",
        }
    }
}

/// A pair of links from the node into a ztunnel's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkPair {
    /// The slot.
    pub slot: ZtunnelSlot,
    /// Direction of the traffic that the pair carries.
    pub direction: Direction,
    /// The node's end.
    pub node: String,
    /// ztunnel's end.
    pub ztunnel: String,
}

/// Returns the pairs of a slot.
pub fn link_pairs(slot: ZtunnelSlot) -> [LinkPair; 2] {
    Direction::BOTH.map(|direction| LinkPair {
        slot,
        direction,
        node: node_link(direction, slot),
        ztunnel: format!("p{}", direction.link_prefix()),
    })
}

pub(crate) fn node_link(direction: Direction, slot: ZtunnelSlot) -> String {
    format!("{}{slot}", direction.link_prefix())
}

/// Returns the addresses of one end of all pairs of a slot.
pub(crate) fn link_addresses(
    config: &NodeConfig,
    slot: ZtunnelSlot,
    generation: &ZtunnelInstance,
    on_node: bool,
) -> BTreeSet<(String, IpNet)> {
    let families = Family::BOTH.into_iter().filter(|family| generation.ip(*family).is_some());
    let pairs = families.flat_map(|family| link_pairs(slot).map(|pair| (pair, family)));
    let addresses = pairs.map(|(pair, family)| {
        let ends = config.link_ends(pair.direction, slot, family);
        if on_node { (pair.node, ends.node) } else { (pair.ztunnel, ends.ztunnel) }
    });
    addresses.collect()
}
