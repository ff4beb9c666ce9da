//! Errors of watching a namespace.

use std::io;

/// Reason why a namespace cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The namespace cannot be entered.
    #[error(transparent)]
    Netns(#[from] netns::Error),
    /// A socket cannot be opened in it, or cannot join its groups.
    #[error("cannot listen for changes of {objects}: {source}")]
    Listen {
        /// The objects whose changes the socket would report.
        objects: &'static str,
        /// The failed step, with its cause.
        source: netlink::Error,
    },
    /// All watches together would exceed their share of the descriptors that the process may open.
    #[error("watched network namespaces may take {most} file descriptors at most")]
    DescriptorShare {
        /// The share.
        most: u64,
    },
    /// The sockets cannot be added to the epoll set.
    #[error("cannot add a network namespace to the epoll set: {0}")]
    Epoll(#[source] io::Error),
}
