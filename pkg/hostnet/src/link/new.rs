//! Links to be created, and their messages.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink::NetlinkRequest;

use super::{IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINKINFO, RTM_NEWLINK, link_header};
use crate::LinkIndex;
use crate::wire::CREATE;

const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_DATA: u16 = 2;

const VETH_INFO_PEER: u16 = 1;

pub(super) const VETH: &str = "veth";

/// A veth pair to be created by [`RtnetlinkHandle::create_veth`](crate::RtnetlinkHandle::create_veth); settings that
/// are not given here have the kernel's defaults. The kernel would complete a name that is empty or has a `%`.
#[derive(Clone, Copy, Debug)]
pub struct NewVeth<'a> {
    /// Name of the link in the handle's netns.
    pub name: &'a str,
    /// Name of its peer.
    pub peer_name: &'a str,
    /// Netns in which the peer is created; `None`: the handle's netns.
    pub peer_netns: Option<BorrowedFd<'a>>,
}

impl NewVeth<'_> {
    pub(super) fn creation_request(&self) -> NetlinkRequest {
        let mut message = NetlinkRequest::new(RTM_NEWLINK, CREATE, &link_header(LinkIndex(0), 0));
        message.put_str(IFLA_IFNAME, self.name);
        message.put_nested(IFLA_LINKINFO, |information| {
            information.put_str(IFLA_INFO_KIND, VETH);
            information.put_nested(IFLA_INFO_DATA, |data| {
                data.put_nested(VETH_INFO_PEER, |peer| self.write_peer(peer));
            });
        });
        message
    }

    /// Writes the peer's own request: header, name, and netns (`veth_newlink`).
    fn write_peer(&self, peer: &mut NetlinkRequest) {
        peer.family_header(&link_header(LinkIndex(0), 0));
        peer.put_str(IFLA_IFNAME, self.peer_name);
        if let Some(netns) = self.peer_netns {
            peer.put_u32(IFLA_NET_NS_FD, netns.as_raw_fd().cast_unsigned());
        }
    }
}

/// Formats the arguments of `ip link add`.
impl fmt::Display for NewVeth<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} type {VETH} peer {}", self.name, self.peer_name)?;
        f.write_str(if self.peer_netns.is_some() { " in another netns" } else { "" })
    }
}
