//! Addresses of links.

use std::net::IpAddr;

use netlink::{Errno, Malformed, MessageFlags, NetlinkRequest, ReceivedMessage};

use crate::error::kernel_error;
use crate::wire::{self, CREATE};
use crate::{ChangeOutcome, Error, Family, IpNet, LinkIndex, RouteScope, RtnetlinkHandle};

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// `IFA_F_NODAD`; the kernel drops it for an IPv4 address (`IPV6ONLY_FLAGS`).
const UNCHECKED: u32 = 0x02;

/// An address of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddress {
    /// The link.
    pub index: LinkIndex,
    /// The address itself (of a point-to-point link: the local end).
    pub ip: IpAddr,
    /// Prefix length of its network.
    pub prefix_len: u8,
}

impl RtnetlinkHandle {
    /// Returns all addresses in the kernel's order: IPv4, then IPv6, each by link, and on a link as `ip address` lists
    /// them.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn list_addresses(&mut self) -> Result<Vec<LinkAddress>, Error> {
        let list = |source| kernel_error("list addresses", source);
        let replies =
            self.socket.dump(&NetlinkRequest::new(RTM_GETADDR, MessageFlags::NONE, &[0; 8])).map_err(list)?;
        replies.parse_all(parse).map_err(list)
    }

    /// Adds an address to a link, unless the link has it. The address is usable immediately, without duplicate address
    /// detection (RFC 4862), which suits addresses of `lo` and of links of our own whose other end is ours, too. An
    /// existing address stays unchanged, tentative or not.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn add_address(&mut self, index: LinkIndex, address: IpNet) -> Result<ChangeOutcome, Error> {
        let request = address_request(RTM_NEWADDR, CREATE, index, address, UNCHECKED);
        let added = self.send_change(request, &[Errno::EXIST]);
        added.map_err(|error| self.address_error("add", index, address, error))
    }

    /// Deletes an address of a link, if the link has it. If an IPv4 address was the first of its network, the kernel
    /// also deletes the others, unless the link promotes them (`promote_secondaries`).
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn delete_address(&mut self, index: LinkIndex, address: IpNet) -> Result<ChangeOutcome, Error> {
        let request = address_request(RTM_DELADDR, MessageFlags::NONE, index, address, 0);
        let deleted = self.send_change(request, &[Errno::ADDRNOTAVAIL]);
        deleted.map_err(|error| self.address_error("delete", index, address, error))
    }

    fn address_error(
        &mut self,
        verb: &str,
        index: LinkIndex,
        address: IpNet,
        source: netlink::Error,
    ) -> Error {
        kernel_error(format_args!("{verb} address {address} dev {}", self.link_name(index)), source)
    }
}

/// `struct ifaddrmsg`: family, prefix length, flags, scope, index.
fn address_request(
    kind: u16,
    flags: MessageFlags,
    index: LinkIndex,
    address: IpNet,
    state: u32,
) -> NetlinkRequest {
    let family = Family::from_ip(address.addr()).address_family();
    let scope = if address.addr().is_loopback() { RouteScope::HOST } else { RouteScope::UNIVERSE };
    let [i0, i1, i2, i3] = index.0.to_ne_bytes();
    let header = [family, address.prefix_len(), 0, scope.0, i0, i1, i2, i3];
    let mut message = NetlinkRequest::new(kind, flags, &header);
    if state != 0 {
        message.put_u32(IFA_FLAGS, state);
    }
    wire::put_ip(&mut message, IFA_LOCAL, address.addr());
    wire::put_ip(&mut message, IFA_ADDRESS, address.addr());
    message
}

pub(crate) fn parse(reply: &ReceivedMessage<'_>) -> Result<Option<LinkAddress>, Malformed> {
    let Some((header, attributes)) = reply.split_kind::<8>(RTM_NEWADDR)? else { return Ok(None) };
    let [family, prefix_len, _, _, i0, i1, i2, i3] = *header;
    if Family::from_address_family(family).is_none() {
        return Ok(None);
    }
    let (mut local, mut address) = (None, None);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind {
            IFA_LOCAL => local = Some(wire::read_ip(&attribute)?),
            IFA_ADDRESS => address = Some(wire::read_ip(&attribute)?),
            _ => {}
        }
    }
    Ok(Some(LinkAddress {
        index: LinkIndex(u32::from_ne_bytes([i0, i1, i2, i3])),
        // On a point-to-point link ADDRESS is the peer's; only there IPv6 has LOCAL.
        ip: local.or(address).ok_or(Malformed("address message without an address"))?,
        prefix_len,
    }))
}
