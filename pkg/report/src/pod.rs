//! State of one pod of the node.

use std::net::IpAddr;

use model::PodUid;
use pod_status::{CaptureState, RedirectionMode};
use serde::{Deserialize, Serialize};

use crate::document::known_value;

/// Known state of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodState {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod; empty if unknown.
    pub uid: PodUid,
    /// IP addresses of the pod.
    pub ips: Vec<IpAddr>,
    /// Phase: `Pending`, `Running`, `Succeeded`, `Failed`; empty: unknown.
    pub phase: String,
    /// Time of the pod's creation, in whole seconds, by the API server; `None`: unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// Capture state of the pod.
    pub capture: CaptureState,
    /// Capture mode of the pod, actual or desired; `None`: none is desired.
    #[serde(deserialize_with = "known_value")]
    pub mode: Option<RedirectionMode>,
    /// The pod's own problem, on one line; otherwise the cause of its state. Derived from the other members, see
    /// [`crate::StateReport::fill_conclusions`].
    pub message: String,
    /// Reason why the pod should be captured, or why not.
    pub reason: StateReason,
    /// Time of the last change of [`Self::capture`], RFC 3339, if the agent knows it; not kept across restarts.
    pub last_transition_time: Option<String>,
    /// Value of the pod's annotation `ambient.istio.io/redirection`.
    pub redirection_annotation: Option<String>,
    /// The kernel's view of the pod.
    pub kernel: KernelView,
    /// The pod's state in ztunnel; `None` with a sidecar, outside the mesh, and with node-level capture.
    pub ztunnel: Option<ZtunnelView>,
    /// Reason why the agent keeps the pod as known although the API server's list disagrees, as a clause; `None`: it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconfirmed: Option<String>,
    /// Last failure, as a sentence; `None` if there was none, or if it was overcome.
    pub problem: Option<String>,
    /// With in-pod capture: privilege of the pod's most privileged container in its network namespace, such as `net-admin`; `None`:
    /// another capture mode, or unknown.
    pub privilege: Option<String>,
    /// Traffic excluded from capture by intent, because annotations request it and the administrator permits it; each kind as a
    /// clause ("outbound TCP ports 5432").
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<String>,
    /// Exclusions that annotations request and that are not applied, each as a clause.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused_exceptions: Vec<String>,
}

/// Reason of a capture state.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StateReason {
    /// Short, stable code, such as `ambient-namespace` or `host-network`.
    pub code: String,
    /// Clause whose subject is the pod: "its namespace is labelled istio.io/dataplane-mode=ambient".
    pub message: String,
}

/// State of a pod in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KernelView {
    /// Time of the observation, RFC 3339; `None`: not observed.
    pub observed_at: Option<String>,
    /// Network namespace of the pod; `None` if unknown.
    pub netns: Option<NetnsRef>,
    /// Evidence that attributes this namespace to the pod, as a clause; `None`: no agent has recorded it.
    pub netns_witness: Option<String>,
    /// Differences from the desired state, as text. If the pod was observed, none means that the kernel's state is the desired one.
    pub differences: Vec<String>,
    /// Facts that were observed as desired, each as a clause ("10.0.0.7 is in the set of enrolled addresses").
    pub observed: Vec<String>,
    /// Foreign rules in its network namespace that precede ours, so that traffic bypasses the mesh, or can; each as a clause.
    pub preceding_rules: Vec<String>,
    /// Number of consecutive repairs of the pod's rules, which are removed repeatedly; 0 if they are stable.
    pub repair_count: u32,
    /// Connections older than its capture.
    pub bypassing_connections: BypassView,
    /// Whether its DNS is redirected to ztunnel, which serves the pod, but no socket in its network namespace receives it.
    pub dns_unanswered: bool,
    /// Reason why the pod could not be observed; `None`: it was, or need not be.
    pub unobserved: Option<String>,
}

/// TCP connections that a pod had before it was captured, and that bypass the proxy until they close.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BypassView {
    /// Number of connections at the observation.
    pub count: usize,
    /// The first of the connections, each as `CLIENT to SERVER` with ports.
    pub connections: Vec<String>,
}

/// Identity of a network namespace.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetnsRef {
    /// Device number of its file.
    pub device: u64,
    /// Inode number, as shown by `readlink /proc/PID/ns/net`.
    pub inode: u64,
}

/// State of a pod in ztunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ZtunnelView {
    /// Whether ztunnel has acknowledged the pod with its current network namespace.
    pub acknowledged: bool,
    /// Reason for which ztunnel refused the pod; `None` if it did not.
    pub error: Option<String>,
}

impl PodState {
    /// Returns `NAMESPACE/NAME`.
    pub fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
