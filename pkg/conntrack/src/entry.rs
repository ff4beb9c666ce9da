//! A tracked connection.

use std::net::SocketAddr;

use model::{Family, Mark};

/// One direction of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TcpTuple {
    /// The sender's address and port.
    pub source: SocketAddr,
    /// The receiver's address and port.
    pub dest: SocketAddr,
}

impl TcpTuple {
    /// The other direction.
    #[must_use]
    pub fn reversed(self) -> TcpTuple {
        TcpTuple { source: self.dest, dest: self.source }
    }

    /// The family of its addresses.
    pub fn family(self) -> Family {
        if self.source.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}

/// A transport protocol whose flows can be asked for, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrackedProtocol {
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
}

/// Where the tracking has a flow: one direction of it, its protocol, and its zone (0: the default one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// The ends, from whoever sends in this direction.
    pub tuple: TcpTuple,
    /// The protocol.
    pub protocol: TrackedProtocol,
    /// The zone. Flows of different zones are different even if all else is the same.
    pub zone: u16,
}

impl From<TcpTuple> for FlowKey {
    /// A TCP connection in the default zone.
    fn from(tuple: TcpTuple) -> FlowKey {
        FlowKey { tuple, protocol: TrackedProtocol::Tcp, zone: 0 }
    }
}

/// A TCP connection, or another flow, as the kernel's connection tracking knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackedConnection {
    /// From whoever opened it.
    pub original: TcpTuple,
    /// Back. Another than the reverse of the original where addresses are translated.
    pub reply: TcpTuple,
    /// Both sides have closed it, or one has reset it; the kernel forgets it within two minutes.
    pub is_closed: bool,
    /// The connection's mark; 0 in a kernel without connection marks.
    pub mark: u32,
}

impl TrackedConnection {
    /// A rule of `nat` has led it elsewhere.
    pub fn is_translated(&self) -> bool {
        self.reply != self.original.reversed()
    }

    /// Has this mark.
    pub fn has_mark(&self, mark: Mark) -> bool {
        self.mark & mark.mask == mark.value
    }
}
