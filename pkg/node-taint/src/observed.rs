//! The state of nodes and pods at the API server that taints depend on.

use model::{Node, Pod, PodName, Taint};

use crate::TAINT;

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedNode {
    /// Name of the node.
    pub name: String,
    /// Whether the node's condition `Ready` is `True`.
    pub is_ready: bool,
    /// Whether the node has the taint.
    pub is_tainted: bool,
}

/// A pod that a selector matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadinessPod {
    /// Namespace and name.
    pub name: PodName,
    /// The node that it was scheduled to; empty before.
    pub node: String,
    /// Whether the pod's condition `Ready` is `True` and it is not being deleted: a pod being deleted may stop at any moment.
    pub is_ready: bool,
}

impl From<Node> for ObservedNode {
    fn from(node: Node) -> ObservedNode {
        let is_ours = |taint: &Taint| taint.key == TAINT.key && taint.effect == TAINT.effect;
        ObservedNode {
            is_ready: node.is_ready(),
            is_tainted: node.spec.taints.iter().any(is_ours),
            name: node.metadata.name,
        }
    }
}

impl From<Pod> for ReadinessPod {
    fn from(pod: Pod) -> ReadinessPod {
        ReadinessPod {
            name: pod.name(),
            is_ready: pod.status.is_ready() && pod.metadata.deleted.is_none(),
            node: pod.spec.node_name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(spec: &Value, conditions: &Value) -> (bool, bool) {
        let node = json!({"metadata": {"name": "n"}, "spec": spec, "status": {"conditions": conditions}});
        let node: ObservedNode = serde_json::from_value::<Node>(node).unwrap().into();
        (node.is_ready, node.is_tainted)
    }

    #[test]
    fn a_node_is_ready_by_its_condition_and_no_other() {
        let condition = |kind: &str, status: &str, at: &str| json!({"type": kind, "status": status, "lastHeartbeatTime": at});
        let ready = condition("Ready", "True", "2026-01-01T00:00:00Z");
        // Istio uses the condition with the latest heartbeat, which is often another one.
        let later = condition("MemoryPressure", "False", "2026-01-02T00:00:00Z");
        for (conditions, expected) in [
            (json!([ready, later]), true),
            (json!([later]), false),
            (json!([condition("Ready", "False", ""), later]), false),
            (json!([condition("Ready", "Unknown", "")]), false),
            (json!(null), false),
        ] {
            assert_eq!(node(&json!({}), &conditions).0, expected, "{conditions}");
        }
    }

    #[test]
    fn a_taint_is_ours_by_key_and_effect() {
        for (taints, expected) in [
            (json!([{"key": "NodeReadiness", "effect": "NoSchedule"}]), true),
            (
                json!([{"key": "a", "effect": "NoSchedule"}, {"key": "NodeReadiness", "effect": "NoSchedule", "value": "v"}]),
                true,
            ),
            (json!([{"key": "NodeReadiness", "effect": "NoExecute"}]), false),
            (json!(null), false),
        ] {
            assert_eq!(node(&json!({"taints": taints}), &json!(null)).1, expected, "{taints}");
        }
    }

    #[test]
    fn a_pod_that_is_being_deleted_is_not_ready() {
        let pod = |deleted: &Value, status: &str| {
            let pod = json!({
                "metadata": {"namespace": "s", "name": "p", "deletionTimestamp": deleted},
                "spec": {"nodeName": "n"},
                "status": {"conditions": [{"type": "Ready", "status": status}]},
            });
            ReadinessPod::from(serde_json::from_value::<Pod>(pod).unwrap())
        };
        let name = PodName { namespace: "s".to_owned(), name: "p".to_owned() };
        let expected = ReadinessPod { name, node: "n".to_owned(), is_ready: true };
        assert_eq!(pod(&json!(null), "True"), expected);
        assert!(!pod(&json!(null), "False").is_ready);
        assert!(!pod(&json!("2026-01-01T00:00:00Z"), "True").is_ready);
    }
}
