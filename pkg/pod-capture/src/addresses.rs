//! Addresses of a network namespace.

use std::{collections::BTreeSet, net::IpAddr};

use hostnet::RtnetlinkHandle;
use netns::Netns;

use crate::Error;

/// Returns the addresses in a network namespace, without loopback and link-local ones.
///
/// # Errors
/// The namespace cannot be entered, or its addresses cannot be listed.
pub fn netns_addresses(netns: &Netns) -> Result<BTreeSet<IpAddr>, Error> {
    let list = || RtnetlinkHandle::open_in_pod().and_then(|mut handle| handle.list_addresses());
    let ips = netns.run_in(list)??.into_iter().map(|address| address.ip);
    Ok(ips.filter(|ip| !ip.is_loopback() && !is_link_local(*ip)).collect())
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
