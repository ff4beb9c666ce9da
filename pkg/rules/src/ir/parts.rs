//! What a rule is made of: conditions and verdicts.

use std::{borrow::Cow, fmt, net::IpAddr};

use model::{Mark, Port};

use super::Chain;

/// A value that a packet must have, or must not have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MatchValue<T> {
    /// True for "must not".
    pub negated: bool,
    /// The value.
    pub value: T,
}

impl<T> MatchValue<T> {
    /// The packet must have `value`.
    pub const fn eq(value: T) -> MatchValue<T> {
        MatchValue { negated: false, value }
    }

    /// The packet must not have `value`.
    pub const fn ne(value: T) -> MatchValue<T> {
        MatchValue { negated: true, value }
    }
}

/// Two ports or more, without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRange {
    first: Port,
    last: Port,
}

impl PortRange {
    /// `None`: these are no two ports in order, or every port, which says nothing: no save shows it.
    pub fn new(first: Port, last: Port) -> Option<PortRange> {
        let is_range = first < last && (first, last) != (Port(0), Port(u16::MAX));
        is_range.then_some(PortRange { first, last })
    }

    /// The first one.
    pub fn first(self) -> Port {
        self.first
    }

    /// The last one.
    pub fn last(self) -> Port {
        self.last
    }
}

/// As iptables prints it.
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.first, self.last)
    }
}

model::word_enum! {
    /// A transport protocol.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum TransportProtocol {
        /// TCP, 6.
        Tcp = "tcp",
        /// UDP, 17.
        Udp = "udp",
    }
}

model::word_enum! {
    /// A set of connection-tracking states, as the `conntrack` match knows it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum CtStates {
        /// `INVALID`: packets that belong to no connection and cannot open one.
        Invalid = "INVALID",
        /// `NEW`: packets of a connection that was seen in one direction only.
        New = "NEW",
        /// `RELATED,ESTABLISHED`: packets of a connection seen in both directions, or related to one.
        RelatedEstablished = "RELATED,ESTABLISHED",
    }
}

model::word_enum! {
    /// Which address of a packet is looked up in a set.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum AddressSide {
        /// Where it comes from.
        Source = "src",
        /// Where it goes.
        Dest = "dst",
    }
}

/// A match beyond addresses, interfaces and protocol. The order in a rule is kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    /// Source port; the rule must name tcp or udp.
    SourcePort(MatchValue<Port>),
    /// Destination port; the rule must name tcp or udp.
    DestPort(MatchValue<Port>),
    /// A destination port of this range; the rule must name tcp or udp.
    DestPortRange(PortRange),
    /// One of up to 15 destination ports.
    DestPorts(MatchValue<Vec<Port>>),
    /// User id of the process that owns the sending socket.
    Uid(MatchValue<u32>),
    /// Group id of the process that owns the sending socket.
    Gid(MatchValue<u32>),
    /// A process holds the sending socket. Forwarded packets have no socket; nor have the last packets of a connection
    /// that its process has closed already.
    SocketExists {
        /// True for "none holds it".
        negated: bool,
    },
    /// Packet mark.
    Mark(MatchValue<Mark>),
    /// Connection mark.
    ConnMark(MatchValue<Mark>),
    /// Connection-tracking state.
    CtState(CtStates),
    /// One address is in a set of addresses (an "ipset").
    Set {
        /// The set's name: no blank, no quote, no leading `-` or `!`.
        name: Cow<'static, str>,
        /// Which address.
        side: AddressSide,
        /// True for "is not in it".
        negated: bool,
    },
}

/// Verdict on a packet that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Back to the calling chain.
    Return,
    /// Let it pass this table.
    Accept,
    /// Discard it.
    Drop,
    /// Continue in a chain of one's own, and then behind this rule.
    Jump(Chain),
    /// Continue in a chain of one's own, and then where this chain was jumped to from.
    Goto(Chain),
    /// nat: to this port of the host itself.
    Redirect(Port),
    /// nat: to this address and port.
    Dnat {
        /// The new destination address, of the rule's family.
        ip: IpAddr,
        /// The new destination port.
        port: Port,
    },
    /// nat: from this address; the port stays if it can.
    Snat(IpAddr),
    /// mangle: to a transparent socket on this port, destination unchanged, and mark the packet.
    Tproxy {
        /// Port of the listening socket.
        port: Port,
        /// Mark to set, for the policy route that delivers the packet locally.
        mark: Mark,
    },
    /// Set the packet's mark within the mask.
    SetMark(Mark),
    /// Copy the packet's mark (all bits) to its connection.
    SaveMark,
    /// Copy these bits of the connection's mark to the packet; its others stay.
    RestoreMark(u32),
    /// Set the connection's mark within the mask.
    SetConnMark(Mark),
    /// raw: track the connection in this zone.
    CtZone(u16),
    /// Send the start of the packet to userspace listeners.
    Nflog {
        /// Text that the listener sees.
        prefix: Cow<'static, str>,
        /// Netlink group.
        group: u16,
        /// Bytes of the packet to copy.
        size: u32,
    },
}
