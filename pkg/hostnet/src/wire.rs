//! Parts that the messages of several objects share.

use std::net::IpAddr;

use netlink::{Attribute, Malformed, MessageFlags, NetlinkRequest};

use crate::IpNet;

/// Exclusive creation: an equal object is refused, not changed or duplicated.
pub(crate) const CREATE: MessageFlags = MessageFlags(MessageFlags::CREATE.0 | MessageFlags::EXCLUSIVE.0);
/// Creation, or replacement of the object with the same key.
pub(crate) const REPLACE: MessageFlags = MessageFlags(MessageFlags::CREATE.0 | MessageFlags::REPLACE.0);

/// Adds an address of 4 or 16 bytes.
pub(crate) fn put_ip(message: &mut NetlinkRequest, kind: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => message.put_bytes(kind, &ip.octets()),
        IpAddr::V6(ip) => message.put_bytes(kind, &ip.octets()),
    };
}

/// Reads an address, whose length determines the family.
pub(crate) fn read_ip(attribute: &Attribute<'_>) -> Result<IpAddr, Malformed> {
    match attribute.payload.len() {
        4 => attribute.read_array::<4>().map(IpAddr::from),
        16 => attribute.read_array::<16>().map(IpAddr::from),
        _ => Err(Malformed("address that is neither IPv4 nor IPv6")),
    }
}

/// Reads an address whose prefix length is in another field.
pub(crate) fn read_net(attribute: &Attribute<'_>, length: u8) -> Result<IpNet, Malformed> {
    IpNet::new(read_ip(attribute)?, length).map_err(|_| Malformed("prefix longer than its address"))
}

/// Returns the table number for the fixed header: above 255 it is `RT_TABLE_COMPAT` (252), and an attribute has the
/// number.
pub(crate) fn header_table(table: u32) -> u8 {
    u8::try_from(table).unwrap_or(252)
}
