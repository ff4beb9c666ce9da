//! Slim facts about nodes, and about the DaemonSet that puts the agent on them.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{
    pod::{EnvVar, ObjectMeta, null_is_empty},
    status::{Condition, condition_status},
};

/// The fields of a node that we need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// `metadata`
    pub metadata: ObjectMeta,
    /// `spec`
    #[serde(deserialize_with = "null_is_empty")]
    pub spec: NodeSpec,
    /// `status`
    #[serde(deserialize_with = "null_is_empty")]
    pub status: NodeStatus,
}

impl AsRef<ObjectMeta> for Node {
    fn as_ref(&self) -> &ObjectMeta {
        &self.metadata
    }
}

impl Node {
    /// Whether the condition `Ready` is `True`.
    pub fn is_ready(&self) -> bool {
        condition_status(&self.status.conditions, "Ready") == Some("True")
    }
}

/// The fields of a node's `spec` that we need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// `spec.unschedulable`: the node is cordoned, and accepts no new pods.
    pub unschedulable: bool,
    /// `spec.taints`
    #[serde(deserialize_with = "null_is_empty")]
    pub taints: Vec<Taint>,
}

/// The fields of a node's `status` that we need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    /// Conditions, `Ready` among them.
    #[serde(deserialize_with = "null_is_empty")]
    pub conditions: Vec<Condition>,
    /// `nodeInfo`
    pub node_info: NodeInfo,
}

/// A node's system, by its kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeInfo {
    /// `linux` or `windows`; empty: nobody says.
    pub operating_system: String,
    /// Such as `6.1.0-18-amd64`; empty: nobody says.
    pub kernel_version: String,
    /// Such as `containerd://2.1.4`; empty: nobody says.
    pub container_runtime_version: String,
}

/// One taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Never empty.
    pub key: String,
    /// May be empty.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// The fields of a DaemonSet that we need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    /// `metadata`
    pub metadata: ObjectMeta,
    /// `spec`
    pub spec: DaemonSetSpec,
}

/// `spec` of a DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DaemonSetSpec {
    /// The pods it makes.
    pub template: PodTemplate,
}

/// `spec.template` of a DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodTemplate {
    /// Where such a pod may be.
    pub spec: PodPlacement,
}

/// The fields of a pod template's `spec` that we need: what a pod asks of its node, and its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodPlacement {
    /// Labels that the node must have.
    #[serde(deserialize_with = "null_is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that do not matter.
    #[serde(deserialize_with = "null_is_empty")]
    pub tolerations: Vec<Toleration>,
    /// `affinity`
    #[serde(deserialize_with = "null_is_empty")]
    pub affinity: Affinity,
    /// Containers of the pods.
    #[serde(deserialize_with = "null_is_empty")]
    pub containers: Vec<TemplateContainer>,
    /// Containers that run before.
    #[serde(deserialize_with = "null_is_empty")]
    pub init_containers: Vec<TemplateContainer>,
}

/// The fields that we need of a container that a DaemonSet makes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TemplateContainer {
    /// The container's name.
    pub name: String,
    /// The container's image.
    pub image: String,
    /// Arguments of the container.
    #[serde(deserialize_with = "null_is_empty")]
    pub args: Vec<String>,
    /// Environment variables of the container.
    #[serde(deserialize_with = "null_is_empty")]
    pub env: Vec<EnvVar>,
    /// Where more variables come from; what is in there the DaemonSet does not say.
    #[serde(deserialize_with = "null_is_empty")]
    pub env_from: Vec<EnvSource>,
}

/// A source of variables, of which nothing but its existence matters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EnvSource {}

/// One toleration; empty members match everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Toleration {
    /// Key of the taint.
    pub key: String,
    /// `Equal` (also when empty) or `Exists`.
    pub operator: String,
    /// Value of the taint, for `Equal`.
    pub value: String,
    /// Effect of the taint.
    pub effect: String,
}

/// The fields of `affinity` that we need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Affinity {
    /// `nodeAffinity`
    #[serde(deserialize_with = "null_is_empty")]
    pub node_affinity: NodeAffinity,
}

/// The fields of `nodeAffinity` that we need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAffinity {
    /// `requiredDuringSchedulingIgnoredDuringExecution`; `None`: any node.
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<NodeSelector>,
}

/// Terms of which one must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelector {
    /// An empty list matches no node.
    #[serde(deserialize_with = "null_is_empty")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Requirements that must all be met; a term without any matches no node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelectorTerm {
    /// On labels.
    #[serde(deserialize_with = "null_is_empty")]
    pub match_expressions: Vec<LabelRequirement>,
    /// On fields; `metadata.name` is the only one that there is.
    #[serde(deserialize_with = "null_is_empty")]
    pub match_fields: Vec<LabelRequirement>,
}

/// One requirement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LabelRequirement {
    /// Label or field.
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt`, `Lt`.
    pub operator: String,
    /// As the operator needs.
    #[serde(deserialize_with = "null_is_empty")]
    pub values: Vec<String>,
}

impl LabelRequirement {
    /// Whether these labels meet it; `None`: its operator is none of those that selectors of labels have.
    pub fn is_met_by(&self, labels: &BTreeMap<String, String>) -> Option<bool> {
        let value = labels.get(&self.key);
        let is_listed = value.is_some_and(|value| self.values.contains(value));
        match self.operator.as_str() {
            "In" => Some(is_listed),
            "NotIn" => Some(!is_listed),
            "Exists" => Some(value.is_some()),
            "DoesNotExist" => Some(value.is_none()),
            _ => None,
        }
    }
}
