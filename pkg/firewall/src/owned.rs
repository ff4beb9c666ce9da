//! Tables of nf_tables that only one process may change, and that the kernel removes when that process ends
//! (`flags owner`).

use model::Family;
use netlink::{ListBounds, NetlinkProtocol, Socket};
use nftables::uapi::{GET_TABLE, INET, TABLE_FLAGS, TABLE_NAME, TABLE_OWNED, query_message};

use crate::{
    foreign::{IPTABLES, place_name},
    presence::is_native,
};

/// Describes which tables for our rules are owned by another process in the calling thread's network namespace. `None`:
/// there are none, or the kernel could not be queried.
pub fn describe_owned_tables() -> Option<String> {
    let mut socket = Socket::open(NetlinkProtocol::Netfilter).ok()?.with_bounds(ListBounds::POD);
    let replies = socket.dump(&query_message(GET_TABLE, 0, &[])).ok()?;
    let owned = replies.iter().filter_map(|reply| {
        let ([family, ..], attributes) = reply.split_header::<4>().ok()?;
        let flags = attributes.find(TABLE_FLAGS)?.read_be32().ok()?;
        let name = attributes.find(TABLE_NAME)?.read_name();
        let is_of_iptables = Family::from_address_family(*family).is_some() && IPTABLES.contains(&name);
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
