//! What became of a pod.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::pod::null_is_empty;

/// The fields of a pod's `status` that we need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`; empty before the first.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// When the kubelet took the pod, RFC 3339; `None` in facts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// `podIP`: the first address.
    #[serde(rename = "podIP", skip_serializing_if = "String::is_empty")]
    pub pod_ip: String,
    /// `podIPs`: all addresses, one for each family.
    #[serde(rename = "podIPs", deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<PodIp>,
    /// Conditions, `Ready` among them.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Of regular containers.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Of init containers, native sidecars among them.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// One address of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct PodIp {
    /// As text.
    pub ip: String,
}

/// A condition of a pod or a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Condition {
    /// Such as `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}

/// How a container is. Facts have nothing but `ready`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerStatus {
    /// Name of the container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The container passes its readiness check; an init container has finished.
    pub ready: bool,
    /// How it is now.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "ContainerState::is_empty")]
    pub state: ContainerState,
    /// How it was before its last restart.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "ContainerState::is_empty")]
    pub last_state: ContainerState,
}

/// Whether a container waits or has ended; else it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ContainerState {
    /// Why it waits, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// How it has ended, if it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminated: Option<Box<Termination>>,
}

impl ContainerState {
    fn is_empty(&self) -> bool {
        *self == ContainerState::default()
    }
}

/// Why a container waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Waiting {
    /// Such as `CrashLoopBackOff`.
    #[serde(deserialize_with = "null_is_empty")]
    pub reason: String,
}

/// How a container has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Termination {
    /// Exit code of the container.
    pub exit_code: i32,
    /// Such as `Completed` or `Error`.
    #[serde(deserialize_with = "null_is_empty")]
    pub reason: String,
    /// Termination message of the container.
    #[serde(deserialize_with = "null_is_empty")]
    pub message: String,
}

/// Returns the status of the first condition of this type.
pub fn condition_status<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a str> {
    let found = conditions.iter().find(|condition| condition.kind == kind);
    found.map(|condition| condition.status.as_str())
}

impl PodStatus {
    /// Whether all containers of the pod have ended, and none is started again.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    /// The pod's addresses: `podIPs`, or `podIP` where that list is empty. Each once, in the order of the API; what is
    /// no address is left out.
    pub fn ips(&self) -> Vec<IpAddr> {
        let mut ips = Vec::new();
        let first = self.pod_ips.is_empty().then_some(self.pod_ip.as_str());
        let all = self.pod_ips.iter().map(|address| address.ip.as_str()).chain(first);
        for ip in all.filter_map(|text| text.parse().ok()) {
            if !ips.contains(&ip) {
                ips.push(ip);
            }
        }
        ips
    }

    /// The status of the first condition of this type.
    pub fn condition_status(&self, kind: &str) -> Option<&str> {
        condition_status(&self.conditions, kind)
    }

    /// Whether the condition `Ready` is `True`.
    pub fn is_ready(&self) -> bool {
        self.condition_status("Ready") == Some("True")
    }
}
