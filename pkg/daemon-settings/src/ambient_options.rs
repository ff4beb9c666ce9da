//! Ambient mode's settings, parsed.

use std::path::PathBuf;

/// Source of facts about pods.
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
    /// Settings of the agent's capture.
    pub agent: capture_modes::CaptureSettings,
    /// Source of facts about pods.
    pub source: PodSource,
    /// File with the policy that applies while no ztunnel is ready.
    pub fallback_file: Option<PathBuf>,
    /// Network namespace of the node, if the daemon runs in another one.
    pub host_network: Option<PathBuf>,
    /// Settings for Istio's own plugin; `None`: it cannot be served, because pods are captured on the node.
    pub events: Option<EventSettings>,
}

/// Path of the socket for Istio's own plugin, and mounts in this container of the host's network namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSettings {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Mount of the host's root.
    pub root: PathBuf,
    /// Mount of the host's /proc.
    pub proc: PathBuf,
    /// Mount of the directory to which the host's runtime binds network namespaces.
    pub netns_directory: PathBuf,
}
