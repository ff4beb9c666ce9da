//! Links to be made, and their messages.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink::NetlinkRequest;

use super::{IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINKINFO, RTM_NEWLINK, plain_header};
use crate::wire::{self, CREATE};
use crate::{Error, LinkIndex};

const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_DATA: u16 = 2;

const VETH_INFO_PEER: u16 = 1;

const IFLA_GENEVE_ID: u16 = 1;
const IFLA_GENEVE_REMOTE: u16 = 2;
const IFLA_GENEVE_PORT: u16 = 5;
const IFLA_GENEVE_REMOTE6: u16 = 7;

const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_GROUP: u16 = 2;
const IFLA_VXLAN_PORT: u16 = 15;
const IFLA_VXLAN_GROUP6: u16 = 16;

/// A link to be made by [`RtnetlinkHandle::create_link`](crate::RtnetlinkHandle::create_link); what is not set here has the
/// kernel's defaults.
#[derive(Clone, Copy, Debug)]
pub enum NewLink<'a> {
    /// Two links, each of which receives what the other one sends.
    Veth {
        /// Name of the one in the handle's netns.
        name: &'a str,
        /// Name of the other one.
        peer_name: &'a str,
        /// Where the other one is made; `None`: in the handle's netns too.
        peer_netns: Option<BorrowedFd<'a>>,
    },
    /// A tunnel to one host, Ethernet in UDP (RFC 8926).
    Geneve {
        /// Name of the link.
        name: &'a str,
        /// Number of the virtual network, 24 bits.
        vni: u32,
        /// The other end.
        remote: IpAddr,
        /// UDP port of both ends; assigned is 6081.
        port: u16,
    },
    /// A tunnel to one host, Ethernet in UDP (RFC 7348).
    Vxlan {
        /// Name of the link.
        name: &'a str,
        /// Number of the virtual network, 24 bits.
        vni: u32,
        /// The other end.
        remote: IpAddr,
        /// UDP port of both ends; assigned is 4789.
        port: u16,
    },
}

impl NewLink<'_> {
    /// Returns the link's name in the handle's netns.
    #[must_use]
    pub const fn name(&self) -> &str {
        match self {
            Self::Veth { name, .. } | Self::Geneve { name, .. } | Self::Vxlan { name, .. } => name,
        }
    }

    /// Returns the kind of the link, as in [`Link::kind`](crate::Link::kind).
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Veth { .. } => "veth",
            Self::Geneve { .. } => "geneve",
            Self::Vxlan { .. } => "vxlan",
        }
    }

    /// Refuses names that the kernel would fill in itself (`dev_alloc_name`), so that each call made another link.
    pub(super) fn check_names(&self) -> Result<(), Error> {
        let peer = if let Self::Veth { peer_name, .. } = self { peer_name } else { self.name() };
        let reason = match [self.name(), peer] {
            names if names.contains(&"") => "a name is empty",
            names if names.iter().any(|name| name.contains('%')) => "a name is a pattern (%)",
            _ => return Ok(()),
        };
        Err(Error::UnsuitableLink { link: self.to_string(), reason })
    }

    pub(super) fn creation_request(&self) -> NetlinkRequest {
        let mut message = NetlinkRequest::new(RTM_NEWLINK, CREATE, &plain_header(LinkIndex(0)));
        message.put_str(IFLA_IFNAME, self.name());
        message.put_nested(IFLA_LINKINFO, |information| {
            information.put_str(IFLA_INFO_KIND, self.kind());
            information.put_nested(IFLA_INFO_DATA, |data| self.add_kind_attributes(data));
        });
        message
    }

    /// Adds the attributes that are specific to the kind of link.
    fn add_kind_attributes(&self, data: &mut NetlinkRequest) {
        match *self {
            Self::Veth { peer_name, peer_netns, .. } => {
                data.put_nested(VETH_INFO_PEER, |peer| veth_peer(peer, peer_name, peer_netns));
            }
            Self::Geneve { vni, remote, port, .. } => {
                data.put_u32(IFLA_GENEVE_ID, vni);
                put_ip(data, (IFLA_GENEVE_REMOTE, IFLA_GENEVE_REMOTE6), remote);
                data.put_be16(IFLA_GENEVE_PORT, port);
            }
            Self::Vxlan { vni, remote, port, .. } => {
                data.put_u32(IFLA_VXLAN_ID, vni);
                put_ip(data, (IFLA_VXLAN_GROUP, IFLA_VXLAN_GROUP6), remote);
                data.put_be16(IFLA_VXLAN_PORT, port);
            }
        }
    }
}

/// As `ip link add` is told.
impl fmt::Display for NewLink<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} type {}", self.name(), self.kind())?;
        match self {
            Self::Veth { peer_name, peer_netns, .. } => {
                write!(f, " peer {peer_name}")?;
                f.write_str(if peer_netns.is_some() { " in another netns" } else { "" })
            }
            Self::Geneve { vni, remote, port, .. } | Self::Vxlan { vni, remote, port, .. } => {
                write!(f, " id {vni} remote {remote} dstport {port}")
            }
        }
    }
}

/// The peer's own request: header, name, and where to make it. (`veth_newlink`.)
fn veth_peer(peer: &mut NetlinkRequest, name: &str, netns: Option<BorrowedFd<'_>>) {
    peer.family_header(&plain_header(LinkIndex(0)));
    peer.put_str(IFLA_IFNAME, name);
    if let Some(netns) = netns {
        peer.put_u32(IFLA_NET_NS_FD, wire::fd_number(netns.as_raw_fd()));
    }
}

/// Tunnels have an attribute for each family.
fn put_ip(data: &mut NetlinkRequest, (v4, v6): (u16, u16), ip: IpAddr) {
    wire::put_ip(data, if ip.is_ipv4() { v4 } else { v6 }, ip);
}
