//! One pod of the node.

use std::net::IpAddr;

use model::PodUid;
use pod_status::{CaptureState, RedirectionMode};
use serde::{Deserialize, Serialize};

use crate::document::known_value;

/// State of a pod, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodState {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod; empty if it is not known.
    pub uid: PodUid,
    /// IP addresses of the pod.
    pub ips: Vec<IpAddr>,
    /// `Pending`, `Running`, `Succeeded`, `Failed`; empty: nobody says.
    pub phase: String,
    /// Whether it is captured.
    pub capture: CaptureState,
    /// By which way it is captured, or should be; `None`: it should not be.
    #[serde(deserialize_with = "known_value")]
    pub mode: Option<RedirectionMode>,
    /// The problem of the pod itself, on one line; otherwise the cause of its state. Follows from the other members, see
    /// [`crate::StateReport::fill_conclusions`].
    pub message: String,
    /// Why it should be captured, or why not.
    pub reason: StateReason,
    /// Since when [`Self::capture`] is as it is, RFC 3339, as far as the agent knows; it forgets this at a restart.
    pub last_transition_time: Option<String>,
    /// Value of the pod's annotation `ambient.istio.io/redirection`.
    pub redirection_annotation: Option<String>,
    /// The kernel's view of the pod.
    pub kernel: KernelView,
    /// The pod's state in ztunnel; `None` with a sidecar, outside the mesh, and with capture on the node.
    pub ztunnel: Option<ZtunnelView>,
    /// Why the agent holds on to it although the API server's list says otherwise, in a clause; `None`: it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconfirmed: Option<String>,
    /// The last failure, in a sentence; `None` if nothing failed, or if it was overcome.
    pub problem: Option<String>,
    /// With in-pod capture: what its most privileged container may do in its network namespace, such as `net-admin`; `None`: it is
    /// not captured so, or nobody says.
    pub privilege: Option<String>,
    /// Traffic that stays outside of the mesh by intent, because annotations ask for it and the administrator allows it; each
    /// kind in a clause ("outbound TCP ports 5432").
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<String>,
    /// Exceptions that annotations ask for and that are not applied, each in a clause.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused_exceptions: Vec<String>,
}

/// Why.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StateReason {
    /// A short, stable name, such as `ambient-namespace` or `host-network`.
    pub code: String,
    /// A clause whose subject is the pod: "its namespace is labelled istio.io/dataplane-mode=ambient".
    pub message: String,
}

/// State of a pod in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KernelView {
    /// When it was looked at, RFC 3339; `None`: it was not.
    pub observed_at: Option<String>,
    /// Network namespace of the pod; `None` if it is not known.
    pub netns: Option<NetnsRef>,
    /// The evidence on which this namespace is attributed to the pod, as a clause; `None`: no agent has recorded it.
    pub netns_witness: Option<String>,
    /// Differences from the desired state, as text. If the pod was observed, none means that the kernel shows what is desired.
    pub differences: Vec<String>,
    /// Facts that were observed in place, each in a clause ("10.0.0.7 is in the set of enrolled addresses").
    pub observed: Vec<String>,
    /// Rules of other components in its network namespace that precede ours, so that traffic bypasses the mesh, or can; each
    /// in a clause.
    pub preceding_rules: Vec<String>,
    /// How many times in a row the pod's rules were restored because they are removed repeatedly; 0 if they stay in place.
    pub repair_count: u32,
    /// Connections that are older than its capture.
    pub bypassing_connections: BypassView,
    /// Whether its DNS is redirected to ztunnel, which serves the pod, and no socket in its network namespace receives it.
    pub dns_unanswered: bool,
    /// Why it could not be observed; `None`: it was, or it is none of our business.
    pub unobserved: Option<String>,
}

/// TCP connections that a pod had before it was captured, and that bypass the proxy until they close.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BypassView {
    /// How many there were at the observation.
    pub count: usize,
    /// The first of them, each as `CLIENT to SERVER` with ports.
    pub connections: Vec<String>,
}

/// A network namespace, by what identifies it.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetnsRef {
    /// Device number of its file.
    pub device: u64,
    /// Inode number, as `readlink /proc/PID/ns/net` shows it.
    pub inode: u64,
}

/// State of a pod in ztunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ZtunnelView {
    /// Whether ztunnel has acknowledged the pod in the namespace that it has now.
    pub acknowledged: bool,
    /// Reason for which ztunnel refused the pod; `None` if it did not.
    pub error: Option<String>,
}

impl PodState {
    /// `NAMESPACE/NAME`.
    pub fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
