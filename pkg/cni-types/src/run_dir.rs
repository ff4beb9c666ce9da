//! Names in the directory that plugin and agent share, `/var/run/istio-cni`. All but the first and the last are Istio's (1.29 to 1.31).

use std::path::Path;

/// Our plugin's questions to the agent.
pub const AGENT_SOCKET: &str = "agent.sock";
/// The plugin's log lines, for the agent.
pub const LOG_SOCKET: &str = "log.sock";
/// The questions of Istio's own plugin to the agent.
pub const EVENT_SOCKET: &str = "pluginevent.sock";
/// The plugin's credential.
pub const KUBECONFIG: &str = "istio-cni-kubeconfig";
/// The plugin's log lines while the agent is unavailable.
pub const LOG_FILE: &str = "istio-cni.log";
/// Locks of pods' legacy tables: a directory.
pub const LOCKS: &str = "locks";

/// The path of one of these names.
pub fn path(directory: &str, name: &str) -> String {
    Path::new(directory).join(name).to_string_lossy().into_owned()
}
