//! Events, which inform people who look at the cluster instead of the agent's log.

mod publisher;
mod queue;
mod series;

use std::time::{SystemTime, UNIX_EPOCH};

use model::{EventLevel, Notice, PodName, PodUid};
use serde_json::{Value, json};

use crate::{
    Error, KubeClient,
    client::{LIMIT, ObjectChange},
};

pub use publisher::EventRecorder;

/// The object that an Event refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EventObject {
    /// Node of this name. Its Events are in namespace `default`.
    Node(String),
    /// Pod. Its Events are in its own namespace.
    Pod { name: PodName, uid: PodUid },
}

/// Maximum length of `note` and `message` (apiserver, events validation).
const MAX_MESSAGE: usize = 1024;
/// Maximum length of an object's name.
const MAX_NAME: usize = 253;

impl EventObject {
    /// Returns the namespace of the object's Events.
    fn namespace(&self) -> &str {
        match self {
            EventObject::Node(_) => "default",
            EventObject::Pod { name, .. } => &name.namespace,
        }
    }

    /// Returns a name in client-go's form: unique for an object while the clock advances.
    fn event_name(&self, now: SystemTime) -> String {
        let name = match self {
            EventObject::Node(node) => node,
            EventObject::Pod { name, .. } => &name.name,
        };
        let suffix = format!(".{:x}", now.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos());
        let name = truncate_text(name, MAX_NAME.saturating_sub(suffix.len()));
        format!("{}{suffix}", name.trim_end_matches(['.', '-']))
    }

    fn object_reference(&self) -> Value {
        match self {
            // A node's Events have its name as UID, as the kubelet's do, so that `kubectl describe node` finds them.
            EventObject::Node(node) => {
                json!({"kind": "Node", "apiVersion": "v1", "name": node, "uid": node})
            }
            EventObject::Pod { name, uid } => json!({
                "kind": "Pod",
                "apiVersion": "v1",
                "namespace": name.namespace,
                "name": name.name,
                "uid": uid,
            }),
        }
    }
}

impl std::fmt::Display for EventObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EventObject::Node(node) => write!(f, "node {node}"),
            EventObject::Pod { name, .. } => write!(f, "pod {name}"),
        }
    }
}

impl KubeClient {
    /// Creates an Event that has occurred `times` times, and returns its name.
    async fn create_event(
        &self,
        node: &str,
        subject: &EventObject,
        event: &Notice,
        times: u32,
    ) -> Result<String, Error> {
        let doing = format!("publish the Event {} about {subject}", event.reason);
        let path = format!("/api/v1/namespaces/{}/events", subject.namespace());
        let now = SystemTime::now();
        let name = subject.event_name(now);
        let change = ObjectChange::Create(event_body(&name, node, subject, event, times, now));
        self.change_object(doing, &path, change, LIMIT).await.map(|()| name)
    }

    /// Updates the count of an Event that has occurred again.
    async fn count_event(&self, name: &str, subject: &EventObject, count: u32) -> Result<(), Error> {
        let doing = format!("count the Event {name} about {subject}");
        let path = format!("/api/v1/namespaces/{}/events/{name}", subject.namespace());
        let patch = json!({"count": count, "lastTimestamp": rfc3339(SystemTime::now())});
        self.change_object(doing, &path, ObjectChange::MergePatch(patch), LIMIT).await
    }
}

fn event_body(
    name: &str,
    node: &str,
    subject: &EventObject,
    event: &Notice,
    times: u32,
    now: SystemTime,
) -> Value {
    let time = rfc3339(now);
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": subject.namespace(), "name": name},
        "involvedObject": subject.object_reference(),
        "type": match event.level { EventLevel::Normal => "Normal", EventLevel::Warning => "Warning" },
        "reason": event.reason,
        "message": truncate_text(&event.message, MAX_MESSAGE),
        "source": {"component": "istio-cni", "host": node},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": times,
    })
}

/// Truncates to at most `most` bytes, at a character boundary.
fn truncate_text(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or_default()
}

/// Formats a time in the API's format, in whole seconds.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let time = k8s_openapi::jiff::Timestamp::from_second(i64::try_from(seconds).unwrap_or_default());
    time.map(|time| time.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::EventSubject;

    use super::*;

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789)
    }

    fn made(subject: &EventObject, event: &Notice) -> Value {
        event_body(&subject.event_name(now()), "n1", subject, event, 3, now())
    }

    #[test]
    fn an_event_is_about_the_node_and_fits() {
        let message = format!("{}é", "x".repeat(1023));
        let event =
            Notice { about: EventSubject::Node, level: EventLevel::Warning, reason: "Conflict", message };
        let body = made(&EventObject::Node("n1".to_owned()), &event);
        assert_eq!(body["metadata"], json!({"namespace": "default", "name": "n1.17979cfe3d85cd15"}));
        assert_eq!(body["involvedObject"]["uid"], "n1");
        assert_eq!(body["lastTimestamp"], "2023-11-14T22:13:20Z");
        assert_eq!(body["count"], 3);
        assert_eq!(body["message"].as_str().unwrap().len(), 1023, "not in the middle of a character");
        assert_eq!((&body["type"], &body["reason"]), (&json!("Warning"), &json!("Conflict")));
    }

    #[test]
    fn an_event_about_a_pod_lives_beside_it_and_has_a_name_that_may_be() {
        let name = format!("{}-{}", "x".repeat(235), "y".repeat(17));
        let pod = EventObject::Pod {
            name: PodName { namespace: "shop".to_owned(), name: name.clone() },
            uid: "u1".into(),
        };
        let event = Notice {
            level: EventLevel::Normal,
            reason: "JoinedMesh",
            about: EventSubject::Node,
            message: "It is.".to_owned(),
        };
        let body = made(&pod, &event);
        let expected =
            json!({"kind": "Pod", "apiVersion": "v1", "namespace": "shop", "name": name, "uid": "u1"});
        assert_eq!(body["involvedObject"], expected);
        assert_eq!(body["metadata"]["namespace"], "shop");
        assert_eq!(body["source"], json!({"component": "istio-cni", "host": "n1"}));
        let name = body["metadata"]["name"].as_str().unwrap();
        assert_eq!(name, format!("{}.17979cfe3d85cd15", "x".repeat(235)), "no -. in it");
    }
}
