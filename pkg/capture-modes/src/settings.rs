//! What the operator chose for capture.

use std::path::PathBuf;

use model::ExistingConnections;
use planner::{
    EnrolmentPolicy,
    node::{NodeConfig, ZtunnelFallback},
};

/// How pods of ambient mode are captured.
#[derive(Clone, Debug)]
pub enum CaptureConfig {
    /// By rules and links of the node; ztunnel up to 1.22.
    Node,
    /// From within each pod; ztunnel since 1.23.
    InPod(InPodConfig),
    /// The mode that the node's ztunnel speaks.
    Auto(InPodConfig),
}

impl CaptureConfig {
    /// What was chosen for in-pod capture, if it may come to that.
    #[must_use]
    pub fn in_pod(&self) -> Option<&InPodConfig> {
        match self {
            CaptureConfig::Node => None,
            CaptureConfig::InPod(chosen) | CaptureConfig::Auto(chosen) => Some(chosen),
        }
    }
}

/// What the operator chose for in-pod capture.
#[derive(Clone, Debug)]
pub struct InPodConfig {
    /// Marks, ports and addresses.
    pub rules: rules::inpod::InPodRulesConfig,
    /// Where ztunnel connects to.
    pub socket: PathBuf,
    /// ztunnel answers the DNS of pods that do not say otherwise.
    pub dns_capture: bool,
    /// What becomes of connections that a pod has when it joins, if it does not say otherwise.
    pub existing: ExistingConnections,
    /// IPv6 is captured, too.
    pub ipv6: bool,
    /// Where the processes of the whole node are seen, such as `/host/proc`.
    pub proc: PathBuf,
}

impl InPodConfig {
    /// The families that are captured.
    #[must_use]
    pub fn families(&self) -> Vec<model::Family> {
        let all = model::Family::BOTH.into_iter();
        all.filter(|family| self.ipv6 || *family == model::Family::V4).collect()
    }
}

/// What the operator chose, and the paths that capture uses.
#[derive(Clone, Debug)]
pub struct CaptureSettings {
    /// How pods are captured.
    pub capture: CaptureConfig,
    /// With [`CaptureConfig::Auto`]: until the node has a ztunnel, pods are captured in the pod, and not on the node.
    pub starts_in_pod: bool,
    /// Names, numbers and marks of the node path.
    pub node: NodeConfig,
    /// Who is enrolled.
    pub policy: EnrolmentPolicy,
    /// What happens while no ztunnel is ready, at the start.
    pub fallback: ZtunnelFallback,
    /// How the firewall tools are used.
    pub tools: netfilter::FirewallOptions,
    /// Where the container runtime binds network namespaces.
    pub netns_directory: PathBuf,
    /// Where the plugin leaves its records of ADDs.
    pub records: PathBuf,
    /// Where old values of kernel settings are kept.
    pub journal: PathBuf,
    /// The file that plugin and agent share.
    pub shared_config: PathBuf,
}
