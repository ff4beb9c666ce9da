//! Node conditions.

use std::time::SystemTime;

use model::{Node, condition_status};
use serde_json::{Value, json};

use crate::{
    Error, KubeClient,
    client::{LIMIT, ObjectChange},
    event::rfc3339,
};

model::word_enum! {
    /// Status of a condition.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ConditionStatus {
        /// The condition holds.
        True = "True",
        /// The condition does not hold.
        False = "False",
        /// Unknown whether the condition holds.
        Unknown = "Unknown",
    }
}

/// A node condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    /// Type of the condition, such as `IstioCNIReady`. A node has one of each type.
    pub kind: &'static str,
    /// Status of the condition.
    pub status: ConditionStatus,
    /// Reason, a CamelCase word.
    pub reason: &'static str,
    /// Message, a sentence.
    pub message: String,
}

impl KubeClient {
    /// Returns the status of the node's condition of this type; `None` if the node has none.
    ///
    /// # Errors
    /// The API server did not respond within ten seconds.
    pub async fn node_condition(&self, node: &str, kind: &str) -> Result<Option<ConditionStatus>, Error> {
        let shown: Node = self.get(&format!("node {node}"), &format!("/api/v1/nodes/{node}"), LIMIT).await?;
        Ok(read_status(&shown, kind))
    }

    /// Sets a condition of the node; others are kept. `changed`: the status differs from the previous one, and the transition time
    /// is `now`.
    ///
    /// # Errors
    /// The API server did not apply the change within ten seconds.
    pub async fn set_node_condition(
        &self,
        node: &str,
        condition: &NodeCondition,
        now: SystemTime,
        changed: bool,
    ) -> Result<(), Error> {
        let doing = format!("set the condition {} of node {node}", condition.kind);
        let path = format!("/api/v1/nodes/{node}/status");
        let change = ObjectChange::StrategicMergePatch(condition_patch(condition, now, changed));
        self.change_object(doing, &path, change, LIMIT).await
    }
}

fn read_status(node: &Node, kind: &str) -> Option<ConditionStatus> {
    let status = condition_status(&node.status.conditions, kind)?;
    Some(ConditionStatus::from_name(status).unwrap_or(ConditionStatus::Unknown))
}

/// Returns the patch. The API server merges conditions by type, and keeps omitted members.
fn condition_patch(condition: &NodeCondition, now: SystemTime, changed: bool) -> Value {
    let now = rfc3339(now);
    let mut entry = json!({
        "type": condition.kind,
        "status": condition.status.as_str(),
        "reason": condition.reason,
        "message": condition.message,
        "lastHeartbeatTime": now,
    });
    if changed && let Some(entry) = entry.as_object_mut() {
        entry.insert("lastTransitionTime".to_owned(), Value::String(now));
    }
    json!({"status": {"conditions": [entry]}})
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_heartbeat_leaves_the_time_of_the_transition_alone() {
        let condition = NodeCondition {
            kind: "IstioCNIReady",
            status: ConditionStatus::True,
            reason: "Ready",
            message: "It is.".to_owned(),
        };
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let mut expected = json!({
            "type": "IstioCNIReady",
            "status": "True",
            "reason": "Ready",
            "message": "It is.",
            "lastHeartbeatTime": "2023-11-14T22:13:20Z",
        });
        assert_eq!(condition_patch(&condition, now, false), json!({"status": {"conditions": [expected]}}));
        expected["lastTransitionTime"] = json!("2023-11-14T22:13:20Z");
        assert_eq!(condition_patch(&condition, now, true), json!({"status": {"conditions": [expected]}}));
    }

    #[test]
    fn the_condition_of_the_type_is_read_and_no_other() {
        let node = json!({"status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "A", "status": "False"},
            {"type": "B", "status": "True"},
            {"type": "C", "status": "Unknown"},
        ]}});
        let node: Node = serde_json::from_value(node).unwrap();
        for (kind, expected) in [
            ("A", Some(ConditionStatus::False)),
            ("B", Some(ConditionStatus::True)),
            ("C", Some(ConditionStatus::Unknown)),
            ("D", None),
        ] {
            assert_eq!(read_status(&node, kind), expected, "{kind}");
        }
    }
}
