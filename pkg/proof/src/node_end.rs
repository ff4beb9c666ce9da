//! The node's end of the pod's interface, by which a packet arrives in the pod as from the network.
//!
//! Frames are broadcast, though their packet is addressed to the pod alone. Such a packet traverses netfilter, and the
//! kernel then discards it before it looks up a socket, forwards it, or replies.
//!
//! Sources: the kernel's `net/packet/af_packet.c`, `drivers/net/veth.c`, `eth_type_trans` of `net/ethernet/eth.c`;
//! `tcp_v4_rcv`, `tcp_v6_rcv`, `ip_forward` and `ip6_forward`, which discard packets other than `PACKET_HOST`.

use std::os::fd::{AsFd as _, OwnedFd};

use hostnet::{LinkIndex, RtnetlinkHandle};
use model::Family;
use netns::Netns;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, SendFlags, SocketFlags, SocketType,
        addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque},
    },
};

use crate::plan::INTERFACE;

/// Protocols of Ethernet.
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
/// Six bytes of an Ethernet address, in a field of eight.
const BROADCAST: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0];

/// A socket for frames, in the node's network namespace.
pub(crate) struct NodeSocket {
    socket: OwnedFd,
    netns: Netns,
}

impl NodeSocket {
    /// Opens a socket in the network namespace of the calling thread. It receives nothing.
    pub(crate) fn open() -> Result<NodeSocket, String> {
        let netns = Netns::current().map_err(|error| error.to_string())?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None) {
            Ok(socket) => Ok(NodeSocket { socket, netns }),
            Err(Errno::PERM) => Err("the agent lacks CAP_NET_RAW".to_owned()),
            Err(errno) => Err(format!("cannot open a packet socket: {errno}")),
        }
    }

    /// Returns the peer of the pod's interface. The calling thread is in the pod's network namespace.
    pub(crate) fn find_peer(&self) -> Result<LinkIndex, String> {
        let interface = INTERFACE;
        let mut pod = RtnetlinkHandle::open_in_pod().map_err(|error| error.to_string())?;
        let link = pod.link_by_name(interface.as_str()).map_err(|error| error.to_string())?;
        let link = link.filter(|link| link.kind.as_deref() == Some("veth"));
        let (peer, number) = link
            .and_then(|link| link.peer.zip(link.peer_netns))
            .ok_or_else(|| format!("its {interface} is not a veth pair between it and the node"))?;
        let node = pod.netns_number(self.netns.as_fd()).map_err(|error| error.to_string())?;
        let is_here = node == Some(number);
        is_here.then_some(peer).ok_or_else(|| {
            format!("the other end of its {interface} is in another network namespace than the agent")
        })
    }

    /// Sends a packet to the pod.
    pub(crate) fn send(&self, peer: LinkIndex, family: Family, packet: &[u8]) -> Result<(), Errno> {
        let protocol = match family {
            Family::V4 => ETH_P_IP,
            Family::V6 => ETH_P_IPV6,
        };
        let to = BroadcastAddress::new(peer, protocol);
        rustix::net::sendto(&self.socket, packet, SendFlags::empty(), &to).map(drop)
    }
}

/// `sockaddr_ll` of `include/uapi/linux/if_packet.h`.
#[repr(C)]
struct BroadcastAddress {
    family: u16,
    /// In network byte order.
    protocol: u16,
    link: u32,
    hardware_type: u16,
    packet_type: u8,
    length: u8,
    address: [u8; 8],
}

impl BroadcastAddress {
    fn new(link: LinkIndex, protocol: u16) -> BroadcastAddress {
        BroadcastAddress {
            family: AddressFamily::PACKET.as_raw(),
            protocol: protocol.to_be(),
            link: link.0,
            hardware_type: 0,
            packet_type: 0,
            length: 6,
            address: BROADCAST,
        }
    }
}

#[expect(unsafe_code, reason = "rustix has no address of a packet socket")]
// SAFETY: the pointer is to a complete `sockaddr_ll`, without padding, and the length is its size; it outlives the call
// of `f`.
unsafe impl SocketAddrArg for BroadcastAddress {
    unsafe fn with_sockaddr<R>(&self, f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R) -> R {
        f(std::ptr::from_ref(self).cast(), size_of::<Self>() as SocketAddrLen)
    }
}
