//! Requests: netfilter's header, the protocol version, and attributes.

use std::net::IpAddr;

use model::PodUid;
use netlink::{MessageFlags, NetlinkRequest};

use crate::{Family, SetName, SetSpec, set::HASH_IP};

/// `NFNL_SUBSYS_IPSET`: the upper byte of the message type.
const SUBSYSTEM: u16 = 6 << 8;
/// `NLA_F_NET_BYTEORDER`: required by ipset for numbers and addresses.
const NET_ORDER: u16 = 0x4000;

pub(crate) const PROTOCOL: u16 = SUBSYSTEM | 1;
const CREATE: u16 = SUBSYSTEM | 2;
const DESTROY: u16 = SUBSYSTEM | 3;
pub(crate) const LIST: u16 = SUBSYSTEM | 7;
const ADD: u16 = SUBSYSTEM | 9;
const DELETE: u16 = SUBSYSTEM | 10;

/// Attributes of a message (`IPSET_ATTR_*`).
pub(crate) mod attr {
    pub(crate) const PROTOCOL: u16 = 1;
    pub(crate) const SETNAME: u16 = 2;
    pub(crate) const TYPENAME: u16 = 3;
    pub(crate) const REVISION: u16 = 4;
    pub(crate) const FAMILY: u16 = 5;
    pub(crate) const FLAGS: u16 = 6;
    pub(crate) const DATA: u16 = 7;
    /// A list of `DATA`, one for each member.
    pub(crate) const ADT: u16 = 8;
    /// Minimum of a protocol version or revision.
    pub(crate) const MINIMUM: u16 = 10;
}

/// Attributes inside `DATA`.
pub(crate) mod data {
    pub(crate) const IP: u16 = 1;
    pub(crate) const FLAGS: u16 = 8;
    pub(crate) const ELEMENTS: u16 = 24;
    /// Comment of a member.
    pub(crate) const COMMENT: u16 = 26;
}

/// Attributes inside `IP`.
pub(crate) const IPV4: u16 = 1;
pub(crate) const IPV6: u16 = 2;

/// `IPSET_FLAG_LIST_HEADER`: omit the members.
const HEADER_ONLY: u32 = 1 << 2;
/// `IPSET_FLAG_WITH_COMMENT`.
pub(crate) const WITH_COMMENT: u32 = 1 << 4;
/// `IPSET_MAX_COMMENT_SIZE`.
const MAX_COMMENT: usize = 255;
/// Revision of `hash:ip` in which sets are created: since Linux 3.19, with comments.
const REVISION: u8 = 4;

/// Builder of requests in one protocol version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestBuilder {
    pub(crate) protocol: u8,
}

impl RequestBuilder {
    /// Builds a request for the protocol versions of the kernel.
    pub(crate) fn protocol_versions(self) -> NetlinkRequest {
        self.base_request(PROTOCOL, MessageFlags::NONE)
    }

    pub(crate) fn create(self, spec: &SetSpec) -> NetlinkRequest {
        let mut message =
            self.set_request(CREATE, MessageFlags::CREATE | MessageFlags::EXCLUSIVE, &spec.name);
        message.put_str(attr::TYPENAME, HASH_IP).put_u8(attr::REVISION, REVISION);
        message.put_u8(attr::FAMILY, spec.family.address_family());
        message.put_nested(attr::DATA, |inner| {
            inner.put_be32(data::FLAGS | NET_ORDER, WITH_COMMENT);
        });
        message
    }

    /// Builds the removal of a set, refused if the set does not exist: without the flag, newer kernels report success.
    pub(crate) fn destroy(self, set: &SetName) -> NetlinkRequest {
        self.set_request(DESTROY, MessageFlags::EXCLUSIVE, set)
    }

    pub(crate) fn list(self, set: &SetName) -> NetlinkRequest {
        self.set_request(LIST, MessageFlags::NONE, set)
    }

    /// Builds a request for a set without its members.
    pub(crate) fn header(self, set: &SetName) -> NetlinkRequest {
        let mut message = self.list(set);
        message.put_be32(attr::FLAGS | NET_ORDER, HEADER_ONLY);
        message
    }

    /// Builds the addition of a member. With [`MessageFlags::EXCLUSIVE`] it is refused if the member exists; without,
    /// an existing member gets this owner. An owner that is no valid comment is omitted: it is a hint for people, and
    /// for later agents.
    pub(crate) fn add(
        self,
        flags: MessageFlags,
        set: &SetName,
        ip: IpAddr,
        owner: &PodUid,
    ) -> NetlinkRequest {
        self.member_request(ADD, flags, set, ip, owner.as_str())
    }

    /// Builds the removal of a member, refused if the member does not exist.
    pub(crate) fn remove(self, set: &SetName, ip: IpAddr) -> NetlinkRequest {
        self.member_request(DELETE, MessageFlags::EXCLUSIVE, set, ip, "")
    }

    fn member_request(
        self,
        kind: u16,
        flags: MessageFlags,
        set: &SetName,
        ip: IpAddr,
        comment: &str,
    ) -> NetlinkRequest {
        let mut message = self.set_request(kind, flags, set);
        message.put_nested(attr::DATA, |inner| {
            inner.put_nested(data::IP, |address| {
                match ip {
                    IpAddr::V4(ip) => address.put_bytes(IPV4 | NET_ORDER, &ip.octets()),
                    IpAddr::V6(ip) => address.put_bytes(IPV6 | NET_ORDER, &ip.octets()),
                };
            });
            if (1..=MAX_COMMENT).contains(&comment.len()) && !comment.contains('\0') {
                inner.put_str(data::COMMENT, comment);
            }
        });
        message
    }

    fn set_request(self, kind: u16, flags: MessageFlags, set: &SetName) -> NetlinkRequest {
        let mut message = self.base_request(kind, flags);
        message.put_str(attr::SETNAME, set.as_str());
        message
    }

    /// `struct nfgenmsg`: family, version, resource.
    fn base_request(self, kind: u16, flags: MessageFlags) -> NetlinkRequest {
        let mut message = NetlinkRequest::new(kind, flags, &[Family::V4.address_family(), 0, 0, 0]);
        message.put_u8(attr::PROTOCOL, self.protocol);
        message
    }
}

#[cfg(test)]
mod tests;
