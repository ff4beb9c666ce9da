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
    /// UID of the pod; empty: unknown.
    pub uid: PodUid,
    /// IP addresses of the pod.
    pub ips: Vec<IpAddr>,
    /// Phase of the pod: `Pending`, `Running`, `Succeeded` or `Failed`; empty: unknown.
    pub phase: String,
    /// Creation of the pod by the API server, in whole seconds; `None`: unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// Capture state. `captured`; `pending`: in progress; `bypassing`: all or some of the pod's traffic bypasses the mesh;
    /// `held`: its traffic is held and not delivered; `outside`: correctly not captured; `leaving`: should be outside, but
    /// objects of Millrace are still present; `unknown`: could not be determined.
    pub capture: CaptureState,
    /// Capture mode, actual or desired: `sidecar`, `node` or `in-pod`; `None`: the pod should not be captured.
    #[serde(deserialize_with = "known_value")]
    pub mode: Option<RedirectionMode>,
    /// The pod's own problem; otherwise the cause of its state. Derived from the other members.
    pub message: String,
    /// Reason why the pod should be captured, or why not.
    pub reason: StateReason,
    /// Time since which `capture` has had this value; not kept across restarts of the agent.
    pub last_transition_time: Option<String>,
    /// Value of the pod's annotation `ambient.istio.io/redirection`.
    pub redirection_annotation: Option<String>,
    /// Observed state of the pod in the kernel.
    pub kernel: KernelView,
    /// State of the pod in ztunnel; `None`: with a sidecar, outside the mesh, and with node-level capture.
    pub ztunnel: Option<ZtunnelView>,
    /// Reason why the agent keeps the pod although the API server's list contradicts that
    /// ([ambient.md](ambient.md#stale-lists)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconfirmed: Option<String>,
    /// Last failure; `None`: none, or resolved.
    pub problem: Option<String>,
    /// With in-pod capture: privilege of the pod's most privileged container in its network namespace: `none`,
    /// `runtime-default`, `net-raw`, `net-admin` or `privileged` ([security.md](security.md#what-a-pod-can-do)); `None`:
    /// another capture mode, or unknown.
    pub privilege: Option<String>,
    /// Traffic that stays outside the mesh by intent ([in-pod.md](in-pod.md#exceptions)), each kind as `outbound TCP ports
    /// 5432`; absent if there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<String>,
    /// Exceptions that annotations request but that are not applied, each with the reason; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused_exceptions: Vec<String>,
}

/// Reason of a capture state.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StateReason {
    /// Stable code, such as `ambient-namespace` or `host-network`.
    pub code: String,
    /// Clause whose subject is the pod.
    pub message: String,
}

/// State of a pod in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KernelView {
    /// Time of the observation: up to 240 s ago for a captured pod without changes; `None`: never observed.
    pub observed_at: Option<String>,
    /// Network namespace of the pod; `None`: unknown.
    pub netns: Option<NetnsRef>,
    /// Evidence on which this namespace is attributed to the pod; `None`: not recorded.
    pub netns_witness: Option<String>,
    /// Objects that are missing, unexpected or changed; empty for an observed pod: the kernel's state is the desired one.
    pub differences: Vec<String>,
    /// Objects that are as desired.
    pub observed: Vec<String>,
    /// Rules of other components in the pod's network namespace that precede ours, so that traffic bypasses the mesh, or can.
    pub preceding_rules: Vec<String>,
    /// Number of consecutive repairs of the pod's rules, if they are removed repeatedly; 0: they stay in place.
    pub repair_count: u32,
    /// Connections that are older than the pod's capture and bypass ztunnel until they close
    /// ([in-pod.md](in-pod.md#existing-connections)).
    pub bypassing_connections: BypassView,
    /// Whether the pod's DNS is redirected to ztunnel, which serves the pod, but no socket receives it
    /// ([see-inside.md](see-inside.md#output-of-explain): `dns-unanswered`).
    pub dns_unanswered: bool,
    /// Reason why the pod could not be observed; `None`: it was, or need not be.
    pub unobserved: Option<String>,
}

/// TCP connections that a pod had before it was captured, and that bypass the proxy until they close.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BypassView {
    /// Number of these connections at the observation.
    pub count: usize,
    /// The first 20 of these connections, each as `CLIENT to SERVER` with ports.
    pub connections: Vec<String>,
}

/// Identity of a network namespace.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetnsRef {
    /// Device number of the namespace's file.
    pub device: u64,
    /// Inode number of the namespace's file, as `readlink /proc/PID/ns/net` shows it.
    pub inode: u64,
}

/// State of a pod in ztunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ZtunnelView {
    /// Whether ztunnel has acknowledged the pod with its current network namespace.
    pub acknowledged: bool,
    /// Error that ztunnel reported when it rejected the pod.
    pub error: Option<String>,
}

impl PodState {
    /// Returns `NAMESPACE/NAME`.
    pub fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}
