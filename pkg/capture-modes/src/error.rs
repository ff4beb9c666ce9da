//! Errors of opening a capture mode.

/// Part of a capture mode that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A part of the node path.
    #[error(transparent)]
    Node(#[from] node_capture::Error),
    /// A part of in-pod capture.
    #[error(transparent)]
    InPod(#[from] pod_capture::Error),
    /// The node's network namespace.
    #[error(transparent)]
    Netns(#[from] netns::Error),
    /// The socket for ztunnel.
    #[error(transparent)]
    Zds(#[from] zds::SocketError),
    /// The watch on pods' network namespaces.
    #[error("cannot watch network namespaces of pods: {0}")]
    Changes(#[source] std::io::Error),
    /// A thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
}
