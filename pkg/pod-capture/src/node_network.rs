//! Routes and links of the node to the addresses of pods: a witness that no pod can forge, because it takes privileges
//! in the node's network namespace.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    os::fd::AsFd as _,
};

use hostnet::{Link, LinkIndex, RtnetlinkHandle};
use netns::{Netns, NetnsId};
use pod_identity::{NodePath, combine_paths};

use crate::Error;

/// The node's view of some addresses and network namespaces.
#[derive(Debug, Default)]
pub(crate) struct NodeNetwork {
    destinations: BTreeMap<IpAddr, Destination>,
    /// The node's number (nsid) of each namespace; absent: no link leads there.
    numbers: BTreeMap<NetnsId, i32>,
    /// Bridges, and the numbers of the namespaces in which the peers of their ports are.
    ports: BTreeSet<(LinkIndex, i32)>,
}

/// Where packets to an address leave the node's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    /// Through a link whose peer is in the namespace of this number.
    Peer(i32),
    /// Through a bridge with ports whose peers are in other namespaces.
    Bridge(LinkIndex),
    /// Elsewhere, or nowhere.
    Unknown,
}

impl NodeNetwork {
    /// Observes the node's namespace: its links once, a route for each address, a number for each namespace.
    pub(crate) fn observe(
        node: &Netns,
        ips: &BTreeSet<IpAddr>,
        namespaces: &[&Netns],
    ) -> Result<NodeNetwork, Error> {
        node.run_in(|| Ok(observe_network(&mut RtnetlinkHandle::open()?, ips, namespaces)?))?
    }

    /// Returns where the node's route to a pod with these addresses leads, relative to this namespace.
    pub(crate) fn path_to_pod(&self, ips: &[IpAddr], netns: NetnsId) -> NodePath {
        let number = self.numbers.get(&netns).copied();
        combine_paths(ips.iter().map(|ip| match (self.destinations.get(ip), number) {
            (Some(Destination::Peer(peer)), Some(number)) if *peer == number => NodePath::Here,
            (Some(Destination::Bridge(bridge)), Some(number)) if self.ports.contains(&(*bridge, number)) => {
                NodePath::Bridge
            }
            (Some(Destination::Peer(_) | Destination::Bridge(_)), _) => NodePath::Elsewhere,
            (Some(Destination::Unknown) | None, _) => NodePath::Unknown,
        }))
    }
}

fn observe_network(
    handle: &mut RtnetlinkHandle,
    ips: &BTreeSet<IpAddr>,
    namespaces: &[&Netns],
) -> Result<NodeNetwork, hostnet::Error> {
    // Links before numbers: the kernel assigns a number to a namespace when it lists a link whose peer is there.
    let links = handle.list_links()?;
    let mut network = NodeNetwork::default();
    let ports = links.iter().filter_map(|link| Some((link.master?, peer_number(link)?)));
    network.ports = ports.collect();
    let links: BTreeMap<LinkIndex, &Link> = links.iter().map(|link| (link.index, link)).collect();
    for ip in ips {
        let link = handle.direct_link(*ip)?.and_then(|index| links.get(&index).copied());
        let destination = link.map_or(Destination::Unknown, |link| link_destination(link, &network.ports));
        network.destinations.insert(*ip, destination);
    }
    for netns in namespaces {
        if let Some(number) = handle.netns_number(netns.as_fd())? {
            network.numbers.insert(netns.id(), number);
        }
    }
    Ok(network)
}

fn link_destination(link: &Link, ports: &BTreeSet<(LinkIndex, i32)>) -> Destination {
    if let Some(number) = peer_number(link) {
        return Destination::Peer(number);
    }
    let has_ports = ports.iter().any(|(master, _)| *master == link.index);
    if link.kind.as_deref() == Some("bridge") && has_ports {
        return Destination::Bridge(link.index);
    }
    Destination::Unknown
}

/// Returns the namespace of a link's peer, if it is another one that still exists.
fn peer_number(link: &Link) -> Option<i32> {
    link.peer_netns.filter(|number| *number >= 0)
}
