//! Parts of a rule: conditions and verdicts.

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

/// Two or more consecutive ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRange {
    first: Port,
    last: Port,
}

impl PortRange {
    /// `None`: the ports are not two in ascending order, or are all ports, which is no condition and in no save.
    pub fn new(first: Port, last: Port) -> Option<PortRange> {
        let is_range = first < last && (first, last) != (Port(0), Port(u16::MAX));
        is_range.then_some(PortRange { first, last })
    }

    /// Returns the first port.
    pub fn first(self) -> Port {
        self.first
    }

    /// Returns the last port.
    pub fn last(self) -> Port {
        self.last
    }
}

/// Formats the range as iptables does.
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.first, self.last)
    }
}

model::word_enum! {
    /// A transport protocol.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum TransportProtocol {
        /// TCP, 6.
        Tcp = "tcp",
        /// UDP, 17.
        Udp = "udp",
    }
}

impl TransportProtocol {
    /// Returns the number in the header of IP (`IPPROTO_*`).
    pub const fn number(self) -> u8 {
        match self {
            TransportProtocol::Tcp => 6,
            TransportProtocol::Udp => 17,
        }
    }
}

model::word_enum! {
    /// A set of connection-tracking states, as in the `conntrack` match.
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
        /// Source address.
        Source = "src",
        /// Destination address.
        Dest = "dst",
    }
}

/// A match besides addresses, interfaces and protocol. Matches of a rule keep their order.
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
    /// Whether a process holds the sending socket. Forwarded packets have no socket; nor have the last packets of a
    /// connection that its process has already closed.
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
        /// Name of the set: no blank, no quote, no leading `-` or `!`.
        name: Cow<'static, str>,
        /// Address that is looked up.
        side: AddressSide,
        /// True for "is not in it".
        negated: bool,
    },
}

/// Verdict on a packet that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Return to the calling chain.
    Return,
    /// Accept the packet in this table.
    Accept,
    /// Drop the packet.
    Drop,
    /// Continue in another chain, and then after this rule.
    Jump(Chain),
    /// Continue in another chain, and then where this chain was called.
    Goto(Chain),
    /// nat: redirect to this port of the host itself.
    Redirect(Port),
    /// nat: change the destination to this address and port.
    Dnat {
        /// The new destination address, of the rule's family.
        ip: IpAddr,
        /// The new destination port.
        port: Port,
    },
    /// nat: change the source to this address; the port is kept if possible.
    Snat(IpAddr),
    /// mangle: redirect to a transparent socket on this port, with unchanged destination, and mark the packet.
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
    /// Copy these bits of the connection's mark to the packet, whose other bits are kept.
    RestoreMark(u32),
    /// Set the connection's mark within the mask.
    SetConnMark(Mark),
    /// raw: track the connection in this zone.
    CtZone(u16),
    /// Send the beginning of the packet to userspace listeners.
    Nflog {
        /// Text that listeners receive.
        prefix: Cow<'static, str>,
        /// Netlink group.
        group: u16,
        /// Number of bytes of the packet to copy.
        size: u32,
    },
}
