//! The rule sets of ambient redirection at the level of a node: in the node's own namespace, where the packets of
//! captured pods are led to a ztunnel and back, and in the ztunnel's, where they are handed to it.
//!
//! A node has room for two ztunnels at a time, its *slots*, so that a new one can take over while the old one ends.
//! Each slot has links of its own. A packet's way is decided by marks; rules of the routing policy, which are not made
//! here, choose a link by them. Every mark has a mask: the other bits belong to whoever uses them.
//!
//! What is decided about a connection's first packet is kept in the mark of the connection: its slot, and which way its
//! packets go. So an established connection, captured or not, is dealt with by few and cheap rules: whether the packet
//! comes from a ztunnel, which its link tells, and whether its connection has a slot. One that has none is none of our
//! business, and gets no mark. The first packet of a connection gets `any_slot`, by which it is looked for among the
//! captured addresses after others have had their say about its destination.

mod host;
mod proxy;

use std::net::IpAddr;

use model::{Family, IfName, Mark, Port};

use crate::ir::{Chain, Hook, HookJump, JumpPlace, Rule, RuleSet, Table, Target};

pub use host::host_rules;
pub use proxy::ztunnel_rules;

/// First stop of arriving packets (mangle, nat).
pub const PREROUTING: Chain = Chain::named("ztunnel-PREROUTING");
/// Packets passing through (filter).
pub const FORWARD: Chain = Chain::named("ztunnel-FORWARD");
/// Packets that the node makes, or that IPVS forwards (mangle).
pub const OUTPUT: Chain = Chain::named("ztunnel-OUTPUT");
/// Last stop of leaving packets (nat).
pub const POSTROUTING: Chain = Chain::named("ztunnel-POSTROUTING");

/// Packets that a ztunnel hands back (mangle).
pub const RETURNED: Chain = Chain::named("ztunnel-RETURNED");
/// By slot: what its ztunnel sends by its pod's own link (mangle).
pub const SENT: [Chain; SLOTS] = [Chain::named("ztunnel-SENT-0"), Chain::named("ztunnel-SENT-1")];
/// First packets of connections, on their way to a ztunnel (filter).
pub const FIRST: Chain = Chain::named("ztunnel-FIRST");
/// Packets of connections that have a slot (mangle).
pub const KNOWN: Chain = Chain::named("ztunnel-KNOWN");
/// In the ztunnel's namespace: what arrives by the pod's own interface (mangle).
pub const UPLINK: Chain = Chain::named("ztunnel-UPLINK");

/// Where the jumps into these chains are.
pub const HOOKS: [(Table, Hook); 5] = [
    (Table::Mangle, Hook::Prerouting),
    (Table::Mangle, Hook::Output),
    (Table::Filter, Hook::Forward),
    (Table::Nat, Hook::Prerouting),
    (Table::Nat, Hook::Postrouting),
];

/// How many ztunnels a node has room for.
pub const SLOTS: usize = 2;

const DNS: Port = Port(53);

/// Marks, names and ports. The defaults are Istio's where it has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRulesConfig {
    /// Marks of packets and connections.
    pub marks: NodeMarks,
    /// Names of links.
    pub links: NodeLinks,
    /// Where the ztunnel listens.
    pub ports: ZtunnelPorts,
}

/// Marks of packets and connections, each within its own bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMarks {
    /// Packet and connection: from a captured pod, on its way to the ztunnel.
    pub outbound: Mark,
    /// Packet: goes its ordinary way.
    pub skip: Mark,
    /// Packet: the ztunnel's own, under its own address.
    pub connection_skip: Mark,
    /// Packet and connection: from the ztunnel under the address of a client.
    pub proxy: Mark,
    /// Packet: an answer that has to go back to the ztunnel. Connection: its answers do.
    pub proxy_return: Mark,
    /// Packet and connection: which slot they belong to.
    pub slots: [Mark; SLOTS],
    /// Packet: new, for whichever slot is active if its destination is captured. Its mask covers those of `slots`, its
    /// value is none of theirs.
    pub any_slot: Mark,
    /// In the ztunnel's namespace: delivered locally, to a transparent socket.
    pub tproxy: Mark,
    /// In the ztunnel's namespace: an answer to a connection that was opened under the address of a client.
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
    /// The bits of a connection's mark that its packets get: its slot, and the way of those that no ztunnel has sent.
    pub fn path_mask(&self) -> u32 {
        self.slot_mask() | self.outbound.mask | self.proxy_return.mask
    }

    /// The bits that hold the slot.
    pub fn slot_mask(&self) -> u32 {
        self.slots.iter().fold(self.any_slot.mask, |mask, slot| mask | slot.mask)
    }
}

/// Both marks at once.
fn combine_marks(one: Mark, other: Mark) -> Mark {
    Mark { value: one.value | other.value, mask: one.mask | other.mask }
}

/// Names of the links between node and ztunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLinks {
    /// On the node, by slot: the way of inbound packets to the ztunnel.
    pub inbound: [IfName; SLOTS],
    /// On the node, by slot: the way of outbound packets to the ztunnel.
    pub outbound: [IfName; SLOTS],
    /// All of `outbound`, as a pattern.
    pub any_outbound: IfName,
    /// All of both, as a pattern.
    pub any: IfName,
    /// In the ztunnel's namespace: where inbound packets arrive.
    pub proxy_inbound: IfName,
    /// In the ztunnel's namespace: where outbound packets arrive.
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

/// A ztunnel as the node sees it.
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
    /// The ztunnels that run on it. One without an address of this family is absent.
    pub slots: [Option<ZtunnelEndpoint>; SLOTS],
    /// The set of the captured pods' addresses; it must exist before its rules.
    pub set: &'a str,
    /// The ztunnel that answers DNS; none where DNS goes its own way.
    pub dns: Option<IpAddr>,
    /// Whether new connections of captured pods go to a ztunnel. Without, only those that one has already do.
    pub capture: bool,
}

/// The inside of a ztunnel pod, in one address family.
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

impl RuleSet {
    /// The one jump of a built-in chain, ahead of everybody else's rules; `condition` has only conditions that count.
    fn add_first_jump(&mut self, table: Table, hook: Hook, chain: &Chain, condition: &Rule) {
        let rule = condition.with_target(Target::Jump(chain.clone()));
        self.table_mut(table).jumps.push(HookJump { hook, rule, place: JumpPlace::First });
    }
}

/// A rule without conditions yet, that sets the packet's mark.
fn set_mark(mark: Mark) -> Rule {
    Rule::new(Target::SetMark(mark))
}
