//! Tables of nf_tables that only one process may change, and that the kernel removes when that process ends
//! (`flags owner`).

use netlink::{ListBounds, MessageFlags, NetlinkProtocol, NetlinkRequest, Socket};
use nftables::uapi::{GET_TABLE, INET, NFPROTO, TABLE_FLAGS, TABLE_NAME, TABLE_OWNED};

use crate::{
    foreign::{IPTABLES, place_name},
    presence::is_native,
};

/// Describes which tables for our rules are owned by another process in the calling thread's network namespace. `None`:
/// there are none, or the kernel could not be queried.
pub fn describe_owned_tables() -> Option<String> {
    let mut socket = Socket::open(NetlinkProtocol::Netfilter).ok()?.with_bounds(ListBounds::POD);
    // struct nfgenmsg: any family, version 0, resource 0
    let replies = socket.dump(&NetlinkRequest::new(GET_TABLE, MessageFlags::NONE, &[0; 4])).ok()?;
    let owned = replies.iter().filter_map(|reply| {
        let ([family, ..], attributes) = reply.split_header::<4>().ok()?;
        let flags = attributes.find(TABLE_FLAGS)?.read_be32().ok()?;
        let name = attributes.find(TABLE_NAME)?.read_name();
        let is_of_iptables = NFPROTO.iter().any(|(_, number)| number == family) && IPTABLES.contains(&name);
        let is_ours = is_of_iptables || (*family == INET && is_native(name));
        (is_ours && flags & TABLE_OWNED != 0).then(|| place_name(&(*family, name.to_owned())))
    });
    let names: Vec<String> = owned.collect();
    (!names.is_empty()).then(|| {
        format!(
            "{} is owned by another process (flag \"owner\"), which alone can change it",
            names.join(" and ")
        )
    })
}
