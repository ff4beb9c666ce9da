//! Errors of capturing and finding pods.

use std::{io, path::PathBuf};

/// Reason why a pod could not be captured, compared, released or found; one variant per step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The namespace could not be opened or entered.
    #[error(transparent)]
    Netns(#[from] netns::Error),
    /// Addresses, routes or policy rules of the namespace.
    #[error(transparent)]
    Network(#[from] hostnet::Error),
    /// Firewall tables of the namespace.
    #[error(transparent)]
    Firewall(#[from] firewall::Error),
    /// The name of a set of addresses.
    #[error(transparent)]
    SetName(#[from] ipset::InvalidSetName),
    /// The journal of the node's state before us.
    #[error(transparent)]
    Journal(#[from] journal::Error),
    /// A set of addresses.
    #[error(transparent)]
    Set(#[from] ipset::Error),
    /// The rules of the node are in place, but the kernel does not evaluate them.
    #[error("{0}")]
    Inactive(String),
    /// The sockets of a namespace cannot be listed.
    #[error("cannot list the sockets of the network namespace: {0}")]
    Sockets(#[source] io::Error),
    /// The processes of the node cannot be listed.
    #[error("cannot list the processes in {}: {source}", path.display())]
    Processes {
        /// The directory.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

impl Error {
    /// Returns whether the kernel has no sets of addresses: pods cannot be captured on this node, and never were.
    pub fn is_without_sets(&self) -> bool {
        matches!(self, Error::Set(ipset::Error::NoIpset(_)))
    }
}
