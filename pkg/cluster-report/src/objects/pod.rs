//! Pods.

use serde::Deserialize;

use super::{Condition, Meta, SIDECAR_STATUS, is_true};

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name, labels.
    pub metadata: Meta,
    /// The desired state.
    pub spec: PodSpec,
    /// The observed state.
    pub status: PodStatus,
}

/// The desired state of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// The name of the pod's node; empty if it has none yet.
    pub node_name: String,
    /// Whether the pod uses the node's network.
    pub host_network: bool,
    /// The pod's containers.
    pub containers: Vec<Container>,
    /// Containers that start before, native sidecars among them.
    pub init_containers: Vec<Container>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Container {
    /// The container's name.
    pub name: String,
    /// Ports that it names.
    pub ports: Vec<ContainerPort>,
}

/// A port that a container names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    /// The port's name; empty if it has none.
    pub name: String,
    /// The port number.
    pub container_port: u16,
    /// `TCP`, `UDP` or `SCTP`; empty: TCP.
    pub protocol: String,
}

/// The observed state of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`.
    pub phase: String,
    /// When the kubelet took it, RFC 3339.
    pub start_time: Option<String>,
    /// `Ready` and others.
    pub conditions: Vec<Condition>,
    /// Of its containers.
    pub container_statuses: Vec<ContainerStatus>,
}

/// A container's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ContainerStatus {
    /// The container's state, reduced to whether it waits.
    pub state: WaitingState,
}

/// Whether a container waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct WaitingState {
    /// Why; `None`: it does not.
    pub waiting: Option<Waiting>,
}

/// Why a container waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Waiting {
    /// Such as `CrashLoopBackOff`.
    pub reason: String,
}

impl Pod {
    /// `NAMESPACE/NAME`.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    /// Whether the pod is neither finished nor being deleted.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
            && self.metadata.deletion_timestamp.is_none()
    }

    /// Whether the pod's condition `Ready` is true.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        is_true(&self.status.conditions, "Ready")
    }

    /// Whether a sidecar has been injected into the pod.
    #[must_use]
    pub fn has_sidecar(&self) -> bool {
        self.metadata.annotations.contains_key(SIDECAR_STATUS) && self.has_container("istio-proxy")
    }

    fn has_container(&self, name: &str) -> bool {
        self.spec.containers.iter().chain(&self.spec.init_containers).any(|container| container.name == name)
    }

    /// Why it is not ready, in a clause.
    #[must_use]
    pub fn standing(&self) -> String {
        let mut waiting =
            self.status.container_statuses.iter().filter_map(|status| status.state.waiting.as_ref());
        let phase = if self.status.phase.is_empty() { "Unknown" } else { &self.status.phase };
        match waiting.next() {
            Some(waiting) if !waiting.reason.is_empty() => format!("{phase}, {}", waiting.reason),
            _ if self.is_ready() => format!("{phase}, ready"),
            _ => format!("{phase}, not ready"),
        }
    }
}
