//! Errors of the node path.

use std::net::IpAddr;

/// A failed step, its object, and the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Links, addresses, routes, rules or settings could not be read or changed.
    #[error(transparent)]
    Net(#[from] hostnet::Error),
    /// Sets of addresses could not be read or changed.
    #[error(transparent)]
    Set(#[from] ipset::Error),
    /// Firewall rules could not be read or changed.
    #[error(transparent)]
    Firewall(#[from] firewall::Error),
    /// A network namespace could not be found, opened or entered.
    #[error(transparent)]
    Netns(#[from] netns::Error),
    /// The journal of the node's state before us could not be used.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// The configured name of a set is invalid.
    #[error(transparent)]
    SetName(#[from] ipset::InvalidSetName),
    /// The node does not route to the pod by a link of its own.
    #[error(
        "there is no route to {0} over a link of its own: node-level capture needs a network plugin that routes \
         each pod (such as ptp, kindnet, Calico, AWS, GKE); with a bridge, traffic between pods of the node would \
         bypass the mesh"
    )]
    NotRouted(IpAddr),
    /// The node routes to the pod over a link of its own, but not over a veth link.
    #[error("link {link} of {ip} is of kind {kind}, not veth")]
    NotVeth {
        /// The pod's address.
        ip: IpAddr,
        /// The link.
        link: String,
        /// Kind of the link; empty for hardware.
        kind: String,
    },
    /// The namespace at the other end of a veth link is not bound to any file.
    #[error("the network namespace behind link {link} is not in {directory}")]
    NoNetns {
        /// The link.
        link: String,
        /// Directory that was searched.
        directory: String,
    },
    /// Namespaces of ztunnels cannot be watched.
    #[error("cannot watch the network namespaces of ztunnels: {0}")]
    Watch(#[source] std::io::Error),
    /// A link that a step needs does not exist.
    #[error("there is no link {0}")]
    NoLink(String),
    /// A step in the namespace of a ztunnel that has ended.
    #[error("the ztunnel of slot {0} is gone")]
    NoZtunnel(node_plan::ZtunnelSlot),
}

impl Error {
    /// Returns whether the error means that a pod is not where it should be, rather than that the kernel could not be
    /// queried.
    pub fn is_absence(&self) -> bool {
        matches!(self, Error::NotRouted(_) | Error::NotVeth { .. } | Error::NoNetns { .. })
    }

    /// Returns whether the kernel has no sets of addresses: pods cannot be captured on this node, and never were.
    pub fn is_without_sets(&self) -> bool {
        matches!(self, Error::Set(ipset::Error::NoIpset(_)))
    }
}
