//! Node taints, added or removed without losing a foreign one.

use model::{ObjectMeta, null_is_empty};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Error, KubeClient,
    client::{LIMIT, ObjectChange},
};

/// A taint, identified on a node by key and effect, as in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTaint {
    /// Key of the taint.
    pub key: &'static str,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: &'static str,
}

/// Change of a node's taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintChange {
    /// Ensure that the node has the taint, without a value unless it has one already.
    Add,
    /// Ensure that the node does not have the taint.
    Remove,
}

/// Attempts to write a change that conflicts with another component's.
const CONFLICTS: usize = 5;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TaintedNode {
    metadata: ObjectMeta,
    spec: TaintedSpec,
}

/// Taints as they are stored: foreign ones may have fields unknown to us.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TaintedSpec {
    #[serde(deserialize_with = "null_is_empty")]
    taints: Vec<Value>,
}

impl KubeClient {
    /// Adds or removes a taint of a node, in the version that a fresh request returns. Returns whether the node was changed.
    ///
    /// # Errors
    /// [`crate::ApiErrorKind::Conflict`]: the node changed meanwhile, five times in a row, and nothing was written. Else: the API
    /// server did not apply the change, with ten seconds for each of two requests.
    pub async fn change_node_taint(
        &self,
        node: &str,
        taint: NodeTaint,
        change: TaintChange,
    ) -> Result<bool, Error> {
        // No back-off: each conflict is a successful write of another component, and waiting longer would only let more of them
        // come first.
        for _ in 1..CONFLICTS {
            match self.try_to_change(node, taint, change).await {
                Err(error) if error.kind() == crate::ApiErrorKind::Conflict => {}
                result => return result,
            }
        }
        self.try_to_change(node, taint, change).await
    }

    async fn try_to_change(&self, node: &str, taint: NodeTaint, change: TaintChange) -> Result<bool, Error> {
        let path = format!("/api/v1/nodes/{node}");
        let shown: TaintedNode = self.get(&format!("node {node}"), &path, LIMIT).await?;
        let Some(patch) = taint_patch(&shown, taint, change) else { return Ok(false) };
        let doing = match change {
            TaintChange::Add => format!("add the taint {} to node {node}", taint.key),
            TaintChange::Remove => format!("remove the taint {} from node {node}", taint.key),
        };
        self.change_object(doing, &path, ObjectChange::MergePatch(patch), LIMIT).await.map(|()| true)
    }
}

/// Returns a patch of the whole list, with UID and version, so that the API server rejects it for any other list; `None`: no
/// change. Not a strategic merge: that identifies taints by their key alone, and would merge ours with one of another effect.
fn taint_patch(node: &TaintedNode, taint: NodeTaint, change: TaintChange) -> Option<Value> {
    let is_it = |one: &Value| one["key"] == taint.key && one["effect"] == taint.effect;
    let (mut taints, had) = (node.spec.taints.clone(), node.spec.taints.iter().any(is_it));
    match (change, had) {
        (TaintChange::Add, true) | (TaintChange::Remove, false) => return None,
        (TaintChange::Add, false) => taints.push(json!({"key": taint.key, "effect": taint.effect})),
        (TaintChange::Remove, true) => taints.retain(|one| !is_it(one)),
    }
    let ObjectMeta { uid, resource_version, .. } = &node.metadata;
    Some(json!({"metadata": {"uid": uid, "resourceVersion": resource_version}, "spec": {"taints": taints}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAINT: NodeTaint = NodeTaint { key: "k", effect: "NoSchedule" };

    fn patched(taints: &Value, change: TaintChange) -> Option<Value> {
        let node = json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"taints": taints}});
        let patch = taint_patch(&serde_json::from_value(node).unwrap(), TAINT, change)?;
        assert_eq!(patch["metadata"], json!({"uid": "u", "resourceVersion": "7"}));
        Some(patch["spec"]["taints"].clone())
    }

    #[test]
    fn a_change_concerns_one_taint_and_keeps_all_others_as_they_are() {
        let foreign =
            json!({"key": "f", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z", "new": 1});
        let other_effect = json!({"key": "k", "effect": "NoExecute"});
        let (plain, valued) = (
            json!({"key": "k", "effect": "NoSchedule"}),
            json!({"key": "k", "effect": "NoSchedule", "value": "v"}),
        );
        let others = json!([foreign, other_effect]);
        let with = |one: &Value| json!([foreign, other_effect, one]);
        for (before, change, after) in [
            (Value::Null, TaintChange::Add, Some(json!([plain]))),
            (Value::Null, TaintChange::Remove, None),
            (others.clone(), TaintChange::Add, Some(with(&plain))),
            (others.clone(), TaintChange::Remove, None),
            (with(&plain), TaintChange::Add, None),
            (with(&valued), TaintChange::Add, None),
            (with(&plain), TaintChange::Remove, Some(others.clone())),
            (with(&valued), TaintChange::Remove, Some(others)),
            (json!([plain]), TaintChange::Remove, Some(json!([]))),
        ] {
            assert_eq!(patched(&before, change), after, "{before} {change:?}");
        }
    }
}
