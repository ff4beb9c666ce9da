//! What can go wrong with the node path.

use std::net::IpAddr;

/// Which step failed, on what, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Links, addresses, routes, rules or settings.
    #[error(transparent)]
    Net(#[from] hostnet::Error),
    /// Sets of addresses.
    #[error(transparent)]
    Set(#[from] ipset::Error),
    /// Firewall rules.
    #[error(transparent)]
    Firewall(#[from] firewall::Error),
    /// A network namespace could not be found, opened or entered.
    #[error(transparent)]
    Netns(#[from] netns::Error),
    /// The journal of what was there before.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// The configured name of a set is none.
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
    /// The namespace at the other end of a veth link is bound nowhere.
    #[error("the network namespace behind link {link} is not in {directory}")]
    NoNetns {
        /// The link.
        link: String,
        /// Where it was looked for.
        directory: String,
    },
    /// Changes in namespaces of ztunnels cannot be watched.
    #[error("cannot watch the network namespaces of ztunnels: {0}")]
    Watch(#[source] std::io::Error),
    /// A link that a step needs is gone.
    #[error("there is no link {0}")]
    NoLink(String),
    /// A step in the namespace of a ztunnel that is gone.
    #[error("the ztunnel of slot {0} is gone")]
    NoZtunnel(node_plan::ZtunnelSlot),
}

impl Error {
    /// Whether the kernel said that a pod is not where it should be, and not that it could not be asked.
    pub fn is_absence(&self) -> bool {
        matches!(self, Error::NotRouted(_) | Error::NotVeth { .. } | Error::NoNetns { .. })
    }

    /// Whether the kernel has no sets of addresses: then pods cannot be captured on this node, and never were.
    pub fn is_without_sets(&self) -> bool {
        matches!(self, Error::Set(ipset::Error::NoIpset(_)))
    }
}
