//! Location of a ztunnel pod on the node.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use firewall::Firewall;
use hostnet::{IpNet, Link, RtnetlinkHandle, TableId};
use model::Family;
use netns::Netns;

use crate::Error;

/// A pod's veth pair, and its namespace.
#[derive(Debug)]
pub struct LocatedPod {
    /// The node's end.
    pub veth: String,
    /// The pod's end.
    pub uplink: String,
    /// The pod's network namespace.
    pub netns: Netns,
    /// File to which the container runtime has bound the namespace.
    pub(crate) place: PathBuf,
    /// Handle on that namespace's network.
    pub net: RtnetlinkHandle,
    /// Backend of the pod's tables, as last observed.
    pub(crate) firewall: Option<Firewall>,
}

/// Finds a pod by its addresses.
pub(crate) fn locate_pod(
    net: &mut RtnetlinkHandle,
    ips: &[IpAddr],
    directory: &Path,
) -> Result<LocatedPod, Error> {
    let link = link_to(net, ips)?;
    if link.kind.as_deref() != Some("veth") {
        let ip = ips.first().copied().unwrap_or_else(|| Family::V4.unspecified_address());
        return Err(Error::NotVeth { ip, link: link.name, kind: link.kind.unwrap_or_default() });
    }
    let missing = || Error::NoNetns { link: link.name.clone(), directory: directory.display().to_string() };
    let number = link.peer_netns.ok_or_else(missing)?;
    let (place, netns) = find_netns_by_number(net, number, directory)?.ok_or_else(missing)?;
    let mut inside = netns.run_in(RtnetlinkHandle::open)??;
    let peer = link.peer.map(|peer| inside.link_by_index(peer)).transpose()?.flatten();
    let uplink = peer.ok_or_else(missing)?.name;
    Ok(LocatedPod { veth: link.name.clone(), uplink, netns, place, net: inside, firewall: None })
}

/// Returns the link over which the main table has a route to exactly one of the addresses.
fn link_to(net: &mut RtnetlinkHandle, ips: &[IpAddr]) -> Result<Link, Error> {
    let desired: Vec<IpNet> = ips.iter().copied().map(IpNet::from).collect();
    let routes = net.list_routes(Some(TableId::MAIN))?;
    let found = routes.iter().find(|route| route.dst.is_some_and(|dst| desired.contains(&dst)));
    let not_routed = || Error::NotRouted(ips.first().copied().unwrap_or(Family::V4.unspecified_address()));
    let index = found.and_then(|route| route.oif).ok_or_else(not_routed)?;
    net.link_by_index(index)?.ok_or_else(not_routed)
}

fn find_netns_by_number(
    net: &mut RtnetlinkHandle,
    number: i32,
    directory: &Path,
) -> Result<Option<(PathBuf, Netns)>, Error> {
    use std::os::fd::AsFd as _;
    let bound: Vec<(PathBuf, Netns)> = Netns::list_directory(directory)?;
    for (place, netns) in bound {
        if net.netns_number(netns.as_fd())? == Some(number) {
            return Ok(Some((place, netns)));
        }
    }
    Ok(None)
}
