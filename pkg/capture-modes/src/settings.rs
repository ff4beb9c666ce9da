//! The operator's settings for capture.

use std::{net::IpAddr, path::PathBuf, sync::Arc};

use agent::RecordIndex;
use enrolment::{EnrolmentPolicy, inpod::PodOptionPolicy};
use model::ExistingConnections;
use node_plan::{NodeConfig, ZtunnelFallback};
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
};

/// How pods of ambient mode are captured.
#[derive(Clone, Debug)]
pub enum CaptureConfig {
    /// Node-level capture, by rules and links of the node; ztunnel up to 1.22.
    Node,
    /// In-pod capture; ztunnel since 1.23.
    InPod(InPodConfig),
    /// The mode that the node's ztunnel supports.
    Auto(InPodConfig),
}

impl CaptureConfig {
    /// Returns the settings of in-pod capture, if it may be used.
    pub fn in_pod(&self) -> Option<&InPodConfig> {
        match self {
            CaptureConfig::Node => None,
            CaptureConfig::InPod(chosen) | CaptureConfig::Auto(chosen) => Some(chosen),
        }
    }
}

/// The settings of in-pod capture.
#[derive(Clone, Debug)]
pub struct InPodConfig {
    /// Marks, ports and addresses.
    pub rules: rules::inpod::InPodRulesConfig,
    /// The families for which the source address of probes is to be detected; until then, [`InPodConfig::rules`] has
    /// Istio's.
    pub detected_probes: Vec<model::Family>,
    /// The socket to which ztunnel connects.
    pub socket: PathBuf,
    /// The administrator's settings for the options of pods.
    pub pods: PodOptionPolicy,
    /// Treatment of connections that a pod has when it joins, unless the pod requests otherwise.
    pub existing: ExistingConnections,
    /// Whether IPv6 is captured, too.
    pub ipv6: bool,
    /// Directory that shows the processes of the whole node, such as `/host/proc`.
    pub proc: PathBuf,
}

impl InPodConfig {
    /// Returns the families that are captured.
    pub fn captured_families(&self) -> Vec<model::Family> {
        let all = model::Family::BOTH.into_iter();
        all.filter(|family| self.ipv6 || *family == model::Family::V4).collect()
    }

    /// Returns whether the family of an address is captured.
    pub(crate) fn captures(&self, ip: IpAddr) -> bool {
        self.ipv6 || ip.is_ipv4()
    }

    /// Returns the settings without IPv6 if the kernel has none (`ipv6.disable=1`), because the legacy tools refuse its
    /// tables there.
    pub fn within_kernel(&self) -> InPodConfig {
        InPodConfig { ipv6: self.ipv6 && kernel_has_ipv6(), ..self.clone() }
    }
}

/// Returns whether the kernel has IPv6.
pub fn kernel_has_ipv6() -> bool {
    let asked = socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    !matches!(asked, Err(Errno::AFNOSUPPORT))
}

/// The operator's settings for capture, and the paths that capture uses.
#[derive(Clone, Debug)]
pub struct CaptureSettings {
    /// How pods are captured.
    pub capture: CaptureConfig,
    /// With [`CaptureConfig::Auto`]: in-pod capture until the node has a ztunnel, instead of node-level capture.
    pub starts_in_pod: bool,
    /// Names, numbers and marks of the node path.
    pub node: NodeConfig,
    /// Policy that decides which pods are enrolled.
    pub policy: EnrolmentPolicy,
    /// Initial treatment of traffic while no ztunnel is ready.
    pub fallback: ZtunnelFallback,
    /// Whether to name the process that changes the node's rules.
    pub drift_attribution: bool,
    /// Options of the firewall tools.
    pub tools: firewall::FirewallOptions,
    /// Directory in which the container runtime binds network namespaces.
    pub netns_directory: PathBuf,
    /// The plugin's records of ADDs.
    pub records: Arc<RecordIndex>,
    /// Journal of the old values of kernel settings.
    pub journal: PathBuf,
    /// File of the history of changes.
    pub history: PathBuf,
    /// Configuration file that plugin and agent share.
    pub shared_config: PathBuf,
}
