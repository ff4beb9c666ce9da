//! What the operator chose for ambient mode.

use std::path::PathBuf;

/// Where pods are read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PodSource {
    /// The API server.
    #[default]
    Api,
    /// A directory of manifests.
    Directory(PathBuf),
}

/// The operator's settings for ambient mode.
#[derive(Clone, Debug)]
pub struct AmbientOptions {
    /// For the agent.
    pub agent: capture_modes::CaptureSettings,
    /// Where pods are read from.
    pub source: PodSource,
    /// A file that says what happens while no ztunnel is ready.
    pub fallback_file: Option<PathBuf>,
    /// The node's network namespace, if the daemon is in one of its own.
    pub host_network: Option<PathBuf>,
    /// For Istio's own plugin; `None`: it could not be served, because pods are captured on the node.
    pub events: Option<EventSettings>,
}

/// Where the socket is, and where the host's namespaces are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSettings {
    /// The socket.
    pub socket: PathBuf,
    /// The namespaces.
    pub places: HostPaths,
}

/// Where this container sees namespaces that the host has elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPaths {
    /// The host's directories, as far as they are mounted.
    pub root: PathBuf,
    /// The host's processes.
    pub proc: PathBuf,
    /// Where the host's runtime binds namespaces.
    pub netns_directory: PathBuf,
}
