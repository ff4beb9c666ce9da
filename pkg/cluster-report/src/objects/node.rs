//! Nodes.

use serde::Deserialize;

use super::{Condition, Meta, is_true};

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
