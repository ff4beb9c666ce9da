//! Network interfaces.

use netlink::{Attributes, Errno, Malformed, MessageFlags, NetlinkRequest, ReceivedMessage, allow_missing};

use crate::{Error, LinkIndex, RtnetlinkHandle, error::kernel_error};

mod change;
mod new;

pub use new::NewVeth;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;

/// Set up by the administrator.
const IFF_UP: u32 = 0x1;

const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_EXT_MASK: u16 = 29;
const IFLA_LINK_NETNSID: u16 = 37;
/// `RTEXT_FILTER_SKIP_STATS`: half of a reply's bytes are counters.
const SKIP_STATISTICS: u32 = 1 << 3;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Interface index of the link.
    pub index: LinkIndex,
    /// Name of the link.
    pub name: String,
    /// Whether the administrator has set the link up.
    pub is_up: bool,
    /// Kind of virtual link (`veth`, `vxlan`, …); `None` for loopback and hardware.
    pub kind: Option<String>,
    /// The link that it is attached to: the other end of a veth, the lower link of a VLAN, macvlan or tunnel.
    pub peer: Option<LinkIndex>,
    /// The bridge, bond or VRF that it is a port of.
    pub master: Option<LinkIndex>,
    /// Netns of the [peer](Link::peer): its number in this netns ([`RtnetlinkHandle::netns_number`]), -1 for one that
    /// is being removed; `None`: this netns.
    pub peer_netns: Option<i32>,
}

impl RtnetlinkHandle {
    /// Returns all links in the kernel's order (by number).
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn list_links(&mut self) -> Result<Vec<Link>, Error> {
        let list = |source| kernel_error("list links", source);
        let replies = self.socket.dump(&link_request(LinkIndex(0))).map_err(list)?;
        replies.parse_all(parse).map_err(list)
    }

    /// Returns the link with this name, if it exists.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn link_by_name(&mut self, name: &str) -> Result<Option<Link>, Error> {
        let mut message = link_request(LinkIndex(0));
        message.put_str(IFLA_IFNAME, name);
        self.find_link(message).map_err(|error| kernel_error(format_args!("look up link {name}"), error))
    }

    /// Returns the link with this number, if it exists.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn link_by_index(&mut self, index: LinkIndex) -> Result<Option<Link>, Error> {
        self.find_link(link_request(index))
            .map_err(|error| kernel_error(format_args!("look up link #{}", index.0), error))
    }

    fn find_link(&mut self, message: NetlinkRequest) -> Result<Option<Link>, netlink::Error> {
        allow_missing(self.socket.get(message), Errno::NODEV)?.unwrap_or_default().parse_first(parse)
    }
}

/// `struct ifinfomsg`: family, padding, type, index (0: none), flags, and the mask of flags to change.
const fn link_header(index: LinkIndex, flags: u32) -> [u8; 16] {
    let [i0, i1, i2, i3] = index.0.to_ne_bytes();
    let [f0, f1, f2, f3] = flags.to_ne_bytes();
    [0, 0, 0, 0, i0, i1, i2, i3, f0, f1, f2, f3, f0, f1, f2, f3]
}

fn link_request(index: LinkIndex) -> NetlinkRequest {
    let mut message = NetlinkRequest::new(RTM_GETLINK, MessageFlags::NONE, &link_header(index, 0));
    message.put_u32(IFLA_EXT_MASK, SKIP_STATISTICS);
    message
}

pub(crate) fn parse(reply: &ReceivedMessage<'_>) -> Result<Option<Link>, Malformed> {
    let Some((header, attributes)) = reply.split_kind::<16>(RTM_NEWLINK)? else { return Ok(None) };
    let [_, _, _, _, i0, i1, i2, i3, f0, f1, f2, f3, ..] = *header;
    let mut link = Link {
        index: LinkIndex(u32::from_ne_bytes([i0, i1, i2, i3])),
        name: String::new(),
        is_up: u32::from_ne_bytes([f0, f1, f2, f3]) & IFF_UP != 0,
        kind: None,
        peer: None,
        master: None,
        peer_netns: None,
    };
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            IFLA_IFNAME => attribute.read_name().clone_into(&mut link.name),
            // 0: a tunnel that is bound to no link
            IFLA_LINK => link.peer = Some(LinkIndex(attribute.read_u32()?)).filter(|peer| peer.0 != 0),
            IFLA_MASTER => link.master = Some(LinkIndex(attribute.read_u32()?)),
            IFLA_LINK_NETNSID => link.peer_netns = Some(attribute.read_array().map(i32::from_ne_bytes)?),
            IFLA_LINKINFO => link.kind = link_kind(&attribute.nested_attributes())?,
            _ => {}
        }
    }
    Ok(Some(link))
}

fn link_kind(information: &Attributes<'_>) -> Result<Option<String>, Malformed> {
    information.find(IFLA_INFO_KIND).map(|kind| kind.read_str().map(str::to_owned)).transpose()
}

#[cfg(test)]
mod tests;
