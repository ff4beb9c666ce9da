//! A tracked connection.

use std::net::SocketAddr;

use model::{Family, Mark};
use rules::TransportProtocol;

/// One direction of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TcpTuple {
    /// The sender's address and port.
    pub source: SocketAddr,
    /// The receiver's address and port.
    pub dest: SocketAddr,
}

impl TcpTuple {
    /// Returns the other direction.
    #[must_use]
    pub fn reversed(self) -> TcpTuple {
        TcpTuple { source: self.dest, dest: self.source }
    }

    /// Returns the family of the addresses.
    pub fn family(self) -> Family {
        if self.source.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

/// Key of a flow in connection tracking: one direction, the protocol, and the zone (0: the default one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// Both ends, with the sender of this direction first.
    pub tuple: TcpTuple,
    /// The protocol.
    pub protocol: TransportProtocol,
    /// The zone. Flows of different zones are different even if all other fields are equal.
    pub zone: u16,
}

impl From<TcpTuple> for FlowKey {
    /// Returns the key of a TCP connection in the default zone.
    fn from(tuple: TcpTuple) -> FlowKey {
        FlowKey { tuple, protocol: TransportProtocol::Tcp, zone: 0 }
    }
}

/// A TCP connection, or another flow, in connection tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackedConnection {
    /// Direction from the end that opened it.
    pub original: TcpTuple,
    /// Direction of replies. Differs from the reverse of `original` if addresses are translated.
    pub reply: TcpTuple,
    /// Whether both ends have closed it, or one has reset it; the kernel removes it within two minutes.
    pub is_closed: bool,
    /// The connection's mark; 0 in a kernel without connection marks.
    pub mark: u32,
}

impl TrackedConnection {
    /// Returns whether a rule of `nat` has redirected it.
    pub fn is_translated(&self) -> bool {
        self.reply != self.original.reversed()
    }

    /// Returns whether it has this mark.
    pub fn has_mark(&self, mark: Mark) -> bool {
        self.mark & mark.mask == mark.value
    }
}
