//! Slim facts about nodes, and about the DaemonSet that deploys the agent to them.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{
    pod::{EnvVar, ObjectMeta, null_is_empty},
    status::{Condition, condition_status},
};

/// The required fields of a node.
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

/// The required fields of a node's `spec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// `spec.unschedulable`: the node is cordoned, and accepts no new pods.
    pub unschedulable: bool,
    /// `spec.taints`
    #[serde(deserialize_with = "null_is_empty")]
    pub taints: Vec<Taint>,
}

/// The required fields of a node's `status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    /// Conditions, `Ready` among them.
    #[serde(deserialize_with = "null_is_empty")]
    pub conditions: Vec<Condition>,
    /// `nodeInfo`
    pub node_info: NodeInfo,
}

/// System information of a node, from its kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeInfo {
    /// `linux` or `windows`; empty: unknown.
    pub operating_system: String,
    /// Kernel version, such as `6.1.0-18-amd64`; empty: unknown.
    pub kernel_version: String,
    /// Container runtime, such as `containerd://2.1.4`; empty: unknown.
    pub container_runtime_version: String,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Key, never empty.
    pub key: String,
    /// Value, may be empty.
    pub value: String,
    /// Effect: `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// The required fields of a DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    /// `metadata`
    pub metadata: ObjectMeta,
    /// `spec`
    pub spec: DaemonSetSpec,
    /// `status`
    pub status: DaemonSetStatus,
}

/// Rollout status of a DaemonSet, in nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DaemonSetStatus {
    /// Generation to which the numbers refer.
    pub observed_generation: u64,
    /// Number of nodes that should run a pod.
    pub desired_number_scheduled: u32,
    /// Number of nodes whose pod is ready.
    pub number_ready: u32,
    /// Number of nodes whose pod has the newest revision.
    pub updated_number_scheduled: u32,
}

/// `spec` of a DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DaemonSetSpec {
    /// Template of its pods.
    pub template: PodTemplate,
}

/// `spec.template` of a DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodTemplate {
    /// Scheduling constraints and containers of such a pod.
    pub spec: PodPlacement,
}

/// The required fields of a pod template's `spec`: scheduling constraints, and containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodPlacement {
    /// Labels that the node must have.
    #[serde(deserialize_with = "null_is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that are tolerated.
    #[serde(deserialize_with = "null_is_empty")]
    pub tolerations: Vec<Toleration>,
    /// `affinity`
    #[serde(deserialize_with = "null_is_empty")]
    pub affinity: Affinity,
    /// Containers of the pods.
    #[serde(deserialize_with = "null_is_empty")]
    pub containers: Vec<TemplateContainer>,
    /// Init containers of the pods.
    #[serde(deserialize_with = "null_is_empty")]
    pub init_containers: Vec<TemplateContainer>,
}

/// The required fields of a container in a pod template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TemplateContainer {
    /// Name of the container.
    pub name: String,
    /// Image of the container.
    pub image: String,
    /// Arguments of the container.
    #[serde(deserialize_with = "null_is_empty")]
    pub args: Vec<String>,
    /// Environment variables of the container.
    #[serde(deserialize_with = "null_is_empty")]
    pub env: Vec<EnvVar>,
    /// Sources of further variables, whose values are not in the DaemonSet.
    #[serde(deserialize_with = "null_is_empty")]
    pub env_from: Vec<EnvSource>,
}

/// A source of variables, of which only the existence matters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EnvSource {}

/// A toleration; empty members match everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Toleration {
    /// Key of the taint.
    pub key: String,
    /// Operator: `Equal` (also if empty) or `Exists`.
    pub operator: String,
    /// Value of the taint, for `Equal`.
    pub value: String,
    /// Effect of the taint.
    pub effect: String,
}

/// The required fields of `affinity`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Affinity {
    /// `nodeAffinity`
    #[serde(deserialize_with = "null_is_empty")]
    pub node_affinity: NodeAffinity,
}

/// The required fields of `nodeAffinity`.
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
    /// Terms; an empty list matches no node.
    #[serde(deserialize_with = "null_is_empty")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Requirements that must all be met; a term without any matches no node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelectorTerm {
    /// Requirements on labels.
    #[serde(deserialize_with = "null_is_empty")]
    pub match_expressions: Vec<LabelRequirement>,
    /// Requirements on fields; `metadata.name` is the only one.
    #[serde(deserialize_with = "null_is_empty")]
    pub match_fields: Vec<LabelRequirement>,
}

/// A requirement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LabelRequirement {
    /// Key of the label or field.
    pub key: String,
    /// Operator: `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt`, `Lt`.
    pub operator: String,
    /// Values, as required by the operator.
    #[serde(deserialize_with = "null_is_empty")]
    pub values: Vec<String>,
}

impl LabelRequirement {
    /// Whether these labels meet the requirement; `None`: its operator is invalid for label selectors.
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
