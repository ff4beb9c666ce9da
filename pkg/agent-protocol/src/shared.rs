//! File shared by agent and plugin, `/etc/ambient-config/config.json`: Istio's two members, and one with what the plugin needs to
//! enrol a pod alone.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedConfig {
    /// Whether a ztunnel on this node accepts traffic.
    #[serde(default)]
    pub ztunnel_ready: bool,
    /// `iptables`, Istio's value without eBPF.
    #[serde(default)]
    pub redirect_mode: String,
    /// Node path; missing in a file written by Istio's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<SharedNode>,
}

/// Node path, reduced to what enrolment needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SharedNode {
    /// Slot of new connections, 0 or 1; `None`: no ztunnel.
    #[serde(default)]
    pub active: Option<u32>,
    /// Policy without ztunnel: `hold`, `reject` or `open`.
    pub fallback: String,
    /// Families whose sets, rules and catching routes are in place: `4`, `6`.
    pub families: Vec<u8>,
    /// Names and numbers, as written by `node_plan::NodeConfig`.
    pub config: Value,
}
