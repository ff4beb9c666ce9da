//! File names in the directory shared by plugin and agent, `/var/run/istio-cni`. All but the first and the last are Istio's (1.29
//! to 1.31).

use std::path::Path;

/// Socket for our plugin's requests to the agent.
pub const AGENT_SOCKET: &str = "agent.sock";
/// Socket for the plugin's log lines to the agent.
pub const LOG_SOCKET: &str = "log.sock";
/// Socket for requests of Istio's own plugin to the agent.
pub const EVENT_SOCKET: &str = "pluginevent.sock";
/// Credential of the plugin.
pub const KUBECONFIG: &str = "istio-cni-kubeconfig";
/// Log of the plugin while the agent is unavailable.
pub const LOG_FILE: &str = "istio-cni.log";
/// Directory with locks of pods' legacy tables.
pub const LOCKS: &str = "locks";

/// Returns the path of one of these names.
pub fn path(directory: &str, name: &str) -> String {
    Path::new(directory).join(name).to_string_lossy().into_owned()
}
