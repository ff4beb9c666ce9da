//! The file that agent and plugin share, `/etc/ambient-config/config.json`: Istio's two members, and one with what the
//! plugin needs to enrol a pod alone.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedConfig {
    /// A ztunnel on this node takes traffic.
    #[serde(default)]
    pub ztunnel_ready: bool,
    /// `iptables`, as Istio says when eBPF is not used.
    #[serde(default)]
    pub redirect_mode: String,
    /// The node path; missing in a file that Istio's agent wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<SharedNode>,
}

/// The node path, as far as enrolment needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedNode {
    /// The slot of new connections, 0 or 1; `None`: there is no ztunnel.
    #[serde(default)]
    pub active: Option<u32>,
    /// `hold`, `reject` or `open`.
    pub fallback: String,
    /// Families of which sets, rules and catching routes are in place: `4`, `6`.
    pub families: Vec<u8>,
    /// Names and numbers, as `node_plan::NodeConfig` prints.
    pub config: Value,
}
