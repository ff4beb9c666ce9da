//! Objects of the API, as far as findings need them: a tenth of what the API server sends.

mod node;
mod pod;

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

pub use node::{Node, NodeInfo, NodeSpec, NodeStatus, Taint};
pub use pod::{Container, ContainerPort, ContainerStatus, Pod, PodSpec, PodStatus, Waiting, WaitingState};

/// Annotations that are kept. Others are often large, and none is needed.
const ANNOTATIONS: [&str; 2] = [REDIRECTION, SIDECAR_STATUS];
/// By which the agent says that a pod is captured.
pub(crate) const REDIRECTION: &str = "ambient.istio.io/redirection";
/// By which Istio's injector marks a pod with a sidecar.
pub(crate) const SIDECAR_STATUS: &str = "sidecar.istio.io/status";

/// Metadata that every object has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Meta {
    /// The object's name.
    pub name: String,
    /// The object's namespace; empty if it is in none.
    pub namespace: String,
    /// The object's UID.
    pub uid: String,
    /// The object's labels.
    pub labels: BTreeMap<String, String>,
    /// The annotations that findings need.
    #[serde(deserialize_with = "kept")]
    pub annotations: BTreeMap<String, String>,
    /// The time of the object's deletion, grace period included; `None` if it is not being deleted.
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
    /// The number of nodes that should run a pod.
    pub desired_number_scheduled: u32,
    /// The number of nodes whose pod is ready.
    pub number_ready: u32,
    /// The number of nodes whose pod is of the newest revision.
    pub updated_number_scheduled: u32,
}
