//! Node conditions.

use std::time::SystemTime;

use model::{Node, condition_status};
use serde_json::{Value, json};

use crate::{
    Error, KubeClient,
    client::{LIMIT, ObjectChange},
    event::rfc3339,
};

/// A node condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    /// Type of the condition, such as `IstioCNIReady`. A node has one of each type.
    pub kind: &'static str,
    /// Whether the condition holds, so that its status is `True`, or else `False`.
    pub holds: bool,
    /// Reason, a CamelCase word.
    pub reason: &'static str,
    /// Message, a sentence.
    pub message: String,
}

impl NodeCondition {
    fn status_name(&self) -> &'static str {
        if self.holds { "True" } else { "False" }
    }
}

impl KubeClient {
    /// Sets a condition of the node; others are kept. `changed`: whether that changes its status, and so the time of its transition;
    /// `None`: if the node shows another status.
    ///
    /// # Errors
    /// The API server did not apply the change, with ten seconds for each of two requests.
    pub async fn set_node_condition(
        &self,
        node: &str,
        condition: &NodeCondition,
        changed: Option<bool>,
    ) -> Result<(), Error> {
        let path = format!("/api/v1/nodes/{node}");
        let changed = match changed {
            Some(changed) => changed,
            None => {
                let shown: Node = self.get(&format!("node {node}"), &path, LIMIT).await?;
                condition_status(&shown.status.conditions, condition.kind) != Some(condition.status_name())
            }
        };
        let patch = condition_patch(condition, SystemTime::now(), changed);
        let doing = format!("set the condition {} of node {node}", condition.kind);
        let change = ObjectChange::StrategicMergePatch(patch);
        self.change_object(doing, &format!("{path}/status"), change, LIMIT).await
    }
}

/// Returns the patch. The API server merges conditions by type, and keeps omitted members.
fn condition_patch(condition: &NodeCondition, now: SystemTime, changed: bool) -> Value {
    let now = rfc3339(now);
    let mut entry = json!({
        "type": condition.kind,
        "status": condition.status_name(),
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
            holds: true,
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
}
