//! The network namespace of a process that has connected to a Unix socket of ours.
//!
//! Its process ID is useless: a ztunnel is outside our PID namespace, for which the kernel reports 0. The network
//! namespace of the connection is that in which the peer called `connect`, on every kernel.

use std::{collections::BTreeSet, net::IpAddr, os::fd::AsFd};

use hostnet::RtnetlinkHandle;
use netns::Netns;

use crate::Error;

/// Returns the addresses of the network namespace in which a peer connected, without loopback and link-local ones.
///
/// # Errors
/// The namespace cannot be opened or entered.
pub fn peer_addresses(connection: &impl AsFd) -> Result<BTreeSet<IpAddr>, Error> {
    netns_addresses(&Netns::from_socket(connection)?)
}

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
