//! Small types that several objects share.

use std::fmt;

/// Number of a link, unique within its netns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkIndex(pub u32);

/// How far away a destination or address is valid (`RT_SCOPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RouteScope {
    /// Everywhere.
    Universe,
    /// Within the site (IPv6, historical).
    Site,
    /// On the attached network.
    Link,
    /// On this host.
    Host,
    /// Nowhere: the destination does not exist.
    Nowhere,
    /// A number without a name.
    Other(u8),
}

impl RouteScope {
    pub(crate) const fn from_wire(number: u8) -> Self {
        match number {
            0 => Self::Universe,
            200 => Self::Site,
            253 => Self::Link,
            254 => Self::Host,
            255 => Self::Nowhere,
            other => Self::Other(other),
        }
    }

    pub(crate) const fn to_wire(self) -> u8 {
        match self {
            Self::Universe => 0,
            Self::Site => 200,
            Self::Link => 253,
            Self::Host => 254,
            Self::Nowhere => 255,
            Self::Other(number) => number,
        }
    }
}

impl fmt::Display for RouteScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Universe => "global",
            Self::Site => "site",
            Self::Link => "link",
            Self::Host => "host",
            Self::Nowhere => "nowhere",
            Self::Other(number) => return write!(f, "{number}"),
        })
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
