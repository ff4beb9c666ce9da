//! Rule sets of node-level capture: in the node's own namespace, where packets of captured pods are routed to a ztunnel
//! and back, and in the ztunnel's namespace, where they are redirected to its listeners.
//!
//! A node can have two ztunnels at a time, in its *slots*, so that a new one can take over while the old one ends. Each
//! slot has its own links. Marks decide the path of a packet; policy rules, which are not created here, select a link
//! by them. Every mark has a mask: the other bits may belong to other components.
//!
//! The decision about a connection's first packet is kept in the connection mark: its slot, and the direction of its
//! packets. So packets of an established connection, captured or not, traverse few and cheap rules: whether the packet
//! comes from a ztunnel, by its link, and whether its connection has a slot. A connection without one is not ours, and
//! gets no mark. The first packet of a connection gets `any_slot`, by which policy rules compare it with the captured
//! addresses after other components have decided its destination.

mod host;
mod proxy;

use std::net::IpAddr;

use model::{Family, IfName, Mark, Port};

use crate::ir::{Chain, Hook, Rule, Table, Target};

pub use host::host_rules;
pub use proxy::ztunnel_rules;

/// Arriving packets (mangle, nat).
pub const PREROUTING: Chain = Chain::named("ztunnel-PREROUTING");
/// Forwarded packets (filter).
pub const FORWARD: Chain = Chain::named("ztunnel-FORWARD");
/// Packets that the node sends, or that IPVS forwards (mangle).
pub const OUTPUT: Chain = Chain::named("ztunnel-OUTPUT");
/// Leaving packets (nat).
pub const POSTROUTING: Chain = Chain::named("ztunnel-POSTROUTING");

/// Packets that a ztunnel sends back (mangle).
pub const RETURNED: Chain = Chain::named("ztunnel-RETURNED");
/// By slot: packets that its ztunnel sends by its pod's own link (mangle).
pub const SENT: [Chain; SLOTS] = [Chain::named("ztunnel-SENT-0"), Chain::named("ztunnel-SENT-1")];
/// First packets of connections, to a ztunnel (filter).
pub const FIRST: Chain = Chain::named("ztunnel-FIRST");
/// Packets of connections that have a slot (mangle).
pub const KNOWN: Chain = Chain::named("ztunnel-KNOWN");
/// In the ztunnel's namespace: packets that arrive on the pod's own interface (mangle).
pub const UPLINK: Chain = Chain::named("ztunnel-UPLINK");

/// Built-in chains with jumps to these chains.
pub const HOOKS: [(Table, Hook); 5] = [
    (Table::Mangle, Hook::Prerouting),
    (Table::Mangle, Hook::Output),
    (Table::Filter, Hook::Forward),
    (Table::Nat, Hook::Prerouting),
    (Table::Nat, Hook::Postrouting),
];

/// Maximum number of ztunnels on a node.
pub const SLOTS: usize = 2;

const DNS: Port = Port(53);

/// Marks, names and ports. The defaults are Istio's where it has any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRulesConfig {
    /// Marks of packets and connections.
    pub marks: NodeMarks,
    /// Names of links.
    pub links: NodeLinks,
    /// Ports on which the ztunnel listens.
    pub ports: ZtunnelPorts,
}

/// Marks of packets and connections, each within its own bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMarks {
    /// Packet and connection: from a captured pod, to the ztunnel.
    pub outbound: Mark,
    /// Packet: routed as without capture.
    pub skip: Mark,
    /// Packet: from the ztunnel, with its own address.
    pub connection_skip: Mark,
    /// Packet and connection: from the ztunnel, with a client's address.
    pub proxy: Mark,
    /// Packet: a reply to be routed back to the ztunnel. Connection: its replies are.
    pub proxy_return: Mark,
    /// Packet and connection: their slot.
    pub slots: [Mark; SLOTS],
    /// Packet: new, for the active slot if its destination is captured. The mask covers those of `slots`, the value is
    /// none of theirs.
    pub any_slot: Mark,
    /// In the ztunnel's namespace: delivered locally, to a transparent socket.
    pub tproxy: Mark,
    /// In the ztunnel's namespace: a reply to a connection that was opened with a client's address.
    pub original_source: Mark,
}

impl Default for NodeMarks {
    fn default() -> NodeMarks {
        let full = |value| Mark { value, mask: value };
        NodeMarks {
            outbound: full(0x100),
            skip: full(0x200),
            connection_skip: full(0x220),
            proxy: full(0x210),
            proxy_return: full(0x40),
            slots: [Mark { value: 0x1000, mask: 0x3000 }, Mark { value: 0x2000, mask: 0x3000 }],
            any_slot: full(0x3000),
            tproxy: Mark { value: 0x400, mask: 0xfff },
            original_source: Mark { value: 0x4d3, mask: 0xfff },
        }
    }
}

impl NodeMarks {
    /// Returns the bits of a connection mark that its packets get: the slot, and the direction of those that no ztunnel
    /// has sent.
    pub fn path_mask(&self) -> u32 {
        self.slot_mask() | self.outbound.mask | self.proxy_return.mask
    }

    /// Returns the bits that hold the slot.
    pub fn slot_mask(&self) -> u32 {
        self.slots.iter().fold(self.any_slot.mask, |mask, slot| mask | slot.mask)
    }
}

/// Combines both marks.
fn combine_marks(one: Mark, other: Mark) -> Mark {
    Mark { value: one.value | other.value, mask: one.mask | other.mask }
}

/// Names of the links between node and ztunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLinks {
    /// On the node, by slot: link for inbound packets to the ztunnel.
    pub inbound: [IfName; SLOTS],
    /// On the node, by slot: link for outbound packets to the ztunnel.
    pub outbound: [IfName; SLOTS],
    /// Pattern that matches all of `outbound`.
    pub any_outbound: IfName,
    /// Pattern that matches all links of both.
    pub any: IfName,
    /// In the ztunnel's namespace: link on which inbound packets arrive.
    pub proxy_inbound: IfName,
    /// In the ztunnel's namespace: link on which outbound packets arrive.
    pub proxy_outbound: IfName,
}

impl NodeLinks {
    /// `istioin0`, `istioout0` and so on; `pistioin`, `pistioout`.
    pub const DEFAULT: NodeLinks = NodeLinks {
        inbound: [IfName::known("istioin0"), IfName::known("istioin1")],
        outbound: [IfName::known("istioout0"), IfName::known("istioout1")],
        any_outbound: IfName::known("istioout+"),
        any: IfName::known("istio+"),
        proxy_inbound: IfName::known("pistioin"),
        proxy_outbound: IfName::known("pistioout"),
    };
}

impl Default for NodeLinks {
    fn default() -> NodeLinks {
        NodeLinks::DEFAULT
    }
}

/// Ports on which the ztunnel listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZtunnelPorts {
    /// Connections of captured pods.
    pub outbound: Port,
    /// Tunnels (HBONE) to captured pods.
    pub tunnel: Port,
    /// Plain connections to captured pods.
    pub inbound: Port,
    /// DNS.
    pub dns: Port,
}

impl Default for ZtunnelPorts {
    fn default() -> ZtunnelPorts {
        ZtunnelPorts { outbound: Port(15001), tunnel: Port(15008), inbound: Port(15006), dns: Port(15053) }
    }
}

/// A ztunnel from the node's point of view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZtunnelEndpoint {
    /// The node's end of the ztunnel pod's own link.
    pub veth: IfName,
    /// The ztunnel pod's address.
    pub ztunnel_ip: IpAddr,
}

/// A node, in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeParameters<'a> {
    /// The family of all addresses here.
    pub family: Family,
    /// The ztunnels on the node. One without an address of this family is absent.
    pub slots: [Option<ZtunnelEndpoint>; SLOTS],
    /// The set of the captured pods' addresses; it must exist before its rules.
    pub set: &'a str,
    /// The ztunnel that answers DNS; `None` if DNS is not redirected.
    pub dns: Option<IpAddr>,
    /// Whether new connections of captured pods are sent to a ztunnel. If not, only existing connections of a ztunnel
    /// are.
    pub capture: bool,
}

/// Namespace of a ztunnel pod, in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZtunnelParameters<'a> {
    /// The family of the address.
    pub family: Family,
    /// The pod's own interface.
    pub uplink: &'a IfName,
    /// The pod's address.
    pub ip: IpAddr,
    /// Whether the ztunnel answers DNS.
    pub dns: bool,
}

/// Returns a rule without conditions that sets the packet's mark.
fn set_mark(mark: Mark) -> Rule {
    Rule::new(Target::SetMark(mark))
}
