//! Why a reconciler cannot work.

/// What cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What the node path needs.
    #[error(transparent)]
    Node(#[from] nodepath::Error),
    /// What in-pod capture needs.
    #[error(transparent)]
    InPod(#[from] inpod::Error),
    /// The node's network namespace.
    #[error(transparent)]
    Netns(#[from] netns::Error),
    /// The socket for ztunnel.
    #[error(transparent)]
    Zds(#[from] zds::Error),
    /// A thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
}
