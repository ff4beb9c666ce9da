//! Small types that several objects share.

use std::fmt;

/// Number of a link, unique within its netns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkIndex(pub u32);

impl LinkIndex {
    /// The loopback of every netns, whatever its name (`LOOPBACK_IFINDEX`).
    pub const LOOPBACK: Self = Self(1);
}

/// Scope in which a destination or address is valid (`RT_SCOPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteScope(pub u8);

impl RouteScope {
    /// Everywhere.
    pub const UNIVERSE: Self = Self(0);
    /// On the attached network.
    pub const LINK: Self = Self(253);
    /// On this host.
    pub const HOST: Self = Self(254);
}

impl fmt::Display for RouteScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UNIVERSE => f.write_str("global"),
            Self::LINK => f.write_str("link"),
            Self::HOST => f.write_str("host"),
            Self(number) => write!(f, "{number}"),
        }
    }
}

/// Number of a protocol on top of IP, as in the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    /// TCP.
    pub const TCP: Self = Self(6);
    /// UDP.
    pub const UDP: Self = Self(17);
}

impl fmt::Display for IpProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TCP => f.write_str("tcp"),
            Self::UDP => f.write_str("udp"),
            Self(number) => write!(f, "{number}"),
        }
    }
}
