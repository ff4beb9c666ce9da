//! Objects of the API, as far as findings need them: a tenth of what the API server sends.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

/// Annotations that are kept. Others are often large, and none is needed.
const ANNOTATIONS: [&str; 2] = [REDIRECTION, SIDECAR_STATUS];
/// By which the agent says that a pod is captured.
pub(crate) const REDIRECTION: &str = "ambient.istio.io/redirection";
/// By which Istio's injector marks a pod with a sidecar.
pub(crate) const SIDECAR_STATUS: &str = "sidecar.istio.io/status";

/// What every object has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Meta {
    /// Its name.
    pub name: String,
    /// Its namespace; empty: it is in none.
    pub namespace: String,
    /// Its UID.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The annotations that findings need.
    #[serde(deserialize_with = "kept")]
    pub annotations: BTreeMap<String, String>,
    /// It is being deleted since.
    pub deletion_timestamp: Option<String>,
}

impl Meta {
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }
}

fn kept<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Kept;
    impl<'de> Visitor<'de> for Kept {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("annotations")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut kept = BTreeMap::new();
            while let Some(name) = map.next_key::<String>()? {
                if ANNOTATIONS.contains(&name.as_str()) {
                    kept.insert(name, map.next_value()?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(kept)
        }
    }
    deserializer.deserialize_map(Kept)
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name, labels.
    pub metadata: Meta,
    /// What is desired.
    pub spec: PodSpec,
    /// What is observed.
    pub status: PodStatus,
}

/// What is desired of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// Its node; empty: none yet.
    pub node_name: String,
    /// It uses the node's network.
    pub host_network: bool,
    /// Its containers.
    pub containers: Vec<Container>,
    /// Containers that start before, native sidecars among them.
    pub init_containers: Vec<Container>,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Ports that it names.
    pub ports: Vec<ContainerPort>,
}

/// A port that a container names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    /// Its name; empty: none.
    pub name: String,
    /// Its number.
    pub container_port: u16,
    /// `TCP`, `UDP` or `SCTP`; empty: TCP.
    pub protocol: String,
}

/// What is observed of a pod.
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

/// A condition of a pod or a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// Such as `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
}

/// A container's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ContainerStatus {
    /// Its state, as far as it waits.
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

    /// It is neither finished nor being deleted.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
            && self.metadata.deletion_timestamp.is_none()
    }

    /// Its condition `Ready` is true.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        is_true(&self.status.conditions, "Ready")
    }

    /// It has been injected with a sidecar.
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

fn is_true(conditions: &[Condition], kind: &str) -> bool {
    conditions.iter().any(|condition| condition.kind == kind && condition.status == "True")
}

/// A namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Name, labels.
    pub metadata: Meta,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name, labels.
    pub metadata: Meta,
    /// What is desired.
    pub spec: NodeSpec,
    /// What is observed.
    pub status: NodeStatus,
}

/// What is desired of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// It takes no new pods.
    pub unschedulable: bool,
    /// Its taints.
    pub taints: Vec<Taint>,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// What is observed of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    /// `Ready` and others.
    pub conditions: Vec<Condition>,
    /// What it runs.
    pub node_info: NodeInfo,
}

/// What a node runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeInfo {
    /// `linux` or `windows`; empty: nobody says.
    pub operating_system: String,
}

impl Node {
    /// Its condition `Ready` is true.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        is_true(&self.status.conditions, "Ready")
    }

    /// The agent should run on it: pods can be scheduled on it, and it runs Linux.
    #[must_use]
    pub fn is_schedulable_linux(&self) -> bool {
        let label = self.metadata.label("kubernetes.io/os").unwrap_or_default();
        ![self.status.node_info.operating_system.as_str(), label].contains(&"windows")
            && !self.spec.unschedulable
    }
}

/// The agents' DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    /// Name, labels.
    pub metadata: Meta,
    /// How far it is.
    pub status: DaemonSetStatus,
}

/// How far a DaemonSet is, in nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DaemonSetStatus {
    /// That should run a pod.
    pub desired_number_scheduled: u32,
    /// Whose pod is ready.
    pub number_ready: u32,
    /// Whose pod is of the newest revision.
    pub updated_number_scheduled: u32,
}
