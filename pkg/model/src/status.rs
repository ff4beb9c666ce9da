//! Status of a pod.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::pod::null_is_empty;

/// The required fields of a pod's `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    /// Phase: `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`; empty before the first.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Time at which the kubelet accepted the pod, RFC 3339; `None` in facts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<String>,
    /// `podIP`: the first address.
    #[serde(rename = "podIP", skip_serializing_if = "String::is_empty")]
    pub pod_ip: String,
    /// `podIPs`: all addresses, one for each family.
    #[serde(rename = "podIPs", deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<PodIp>,
    /// Conditions, including `Ready`.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Statuses of regular containers.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub container_statuses: Vec<ContainerStatus>,
    /// Statuses of init containers, including native sidecars.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// An address of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct PodIp {
    /// Address as text.
    pub ip: String,
}

/// A condition of a pod or a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Condition {
    /// Type, such as `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Status: `True`, `False` or `Unknown`.
    pub status: String,
}

/// Status of a container. Facts contain only `ready`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerStatus {
    /// Name of the container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Whether the container passes its readiness probe; for an init container, whether it has finished.
    pub ready: bool,
    /// Current state.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "ContainerState::is_empty")]
    pub state: ContainerState,
    /// State before its last restart.
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "ContainerState::is_empty")]
    pub last_state: ContainerState,
}

/// State of a container: waiting or terminated, otherwise running.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ContainerState {
    /// Reason for waiting, if it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// Termination, if it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminated: Option<Box<Termination>>,
}

impl ContainerState {
    fn is_empty(&self) -> bool {
        *self == ContainerState::default()
    }
}

/// Waiting state of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Waiting {
    /// Reason, such as `CrashLoopBackOff`.
    #[serde(deserialize_with = "null_is_empty")]
    pub reason: String,
}

/// Termination of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Termination {
    /// Exit code of the container.
    pub exit_code: i32,
    /// Reason, such as `Completed` or `Error`.
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
    /// Whether all containers of the pod have ended, and none is restarted.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Returns the pod's addresses: `podIPs`, or `podIP` if that list is empty. Each once, in the API's order; invalid ones are
    /// skipped.
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

    /// Whether the condition `Ready` is `True`.
    pub fn is_ready(&self) -> bool {
        condition_status(&self.conditions, "Ready") == Some("True")
    }
}
