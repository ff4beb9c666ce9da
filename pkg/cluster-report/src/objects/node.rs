//! Nodes.

use serde::Deserialize;

use super::{Condition, Meta, is_true};

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name, labels.
    pub metadata: Meta,
    /// The desired state.
    pub spec: NodeSpec,
    /// The observed state.
    pub status: NodeStatus,
}

/// The desired state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Whether the node is cordoned: it accepts no new pods.
    pub unschedulable: bool,
    /// The node's taints.
    pub taints: Vec<Taint>,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// The taint's key.
    pub key: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// The observed state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    /// `Ready` and others.
    pub conditions: Vec<Condition>,
    /// Information about the node's system.
    pub node_info: NodeInfo,
}

/// Information about a node's system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeInfo {
    /// `linux` or `windows`; empty: nobody says.
    pub operating_system: String,
}

impl Node {
    /// Whether the node's condition `Ready` is true.
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
