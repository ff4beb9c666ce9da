//! Events about the node: how an agent tells people who look at the cluster, not at its log.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Method;
use serde_json::{Value, json};

use crate::{Client, Error, client::Body};

/// How grave an Event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventLevel {
    /// Told for the record.
    Normal,
    /// Somebody should look.
    Warning,
}

/// An Event about a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// How grave it is.
    pub level: EventLevel,
    /// One word in CamelCase, for filters.
    pub reason: &'static str,
    /// A sentence. The API server takes 1024 bytes; what is longer is cut.
    pub message: String,
}

/// Of `note` and `message` (apiserver, events validation).
const MAX_MESSAGE: usize = 1024;
const LIMIT: Duration = Duration::from_secs(10);

impl Client {
    /// Publishes an Event about node `node`, at time `now`. Events about nodes live in namespace `default`.
    ///
    /// # Errors
    /// The API server did not take it within ten seconds.
    pub async fn publish(&self, node: &str, event: &Event, now: SystemTime) -> Result<(), Error> {
        let doing = format!("publish the Event {} about node {node}", event.reason);
        let body = Body::Json(body(node, event, now).to_string().into_bytes());
        let answer = self.ask::<Value>(doing, Method::POST, "/api/v1/namespaces/default/events", body, LIMIT);
        answer.await.map(drop)
    }
}

fn body(node: &str, event: &Event, now: SystemTime) -> Value {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = rfc3339(since.as_secs());
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        // As client-go names them: unique for an object as long as its clock moves.
        "metadata": {"namespace": "default", "name": format!("{node}.{:x}", since.as_nanos())},
        // A node's Events carry its name as UID, as the kubelet's do, so that `kubectl describe node` finds them.
        "involvedObject": {"kind": "Node", "apiVersion": "v1", "name": node, "uid": node},
        "type": match event.level { EventLevel::Normal => "Normal", EventLevel::Warning => "Warning" },
        "reason": event.reason,
        "message": cut(&event.message),
        "source": {"component": "istio-cni", "host": node},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    })
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(MAX_MESSAGE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// Seconds since 1970 as the API writes times.
fn rfc3339(seconds: u64) -> String {
    let time = k8s_openapi::jiff::Timestamp::from_second(i64::try_from(seconds).unwrap_or_default());
    time.map(|time| time.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_about_the_node_and_fits() {
        let now = UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789);
        let message = format!("{}é", "x".repeat(1023));
        let event = Event { level: EventLevel::Warning, reason: "Fight", message };
        let body = body("n1", &event, now);
        assert_eq!(body["metadata"]["name"], "n1.17979cfe3d85cd15");
        assert_eq!(body["lastTimestamp"], "2023-11-14T22:13:20Z");
        assert_eq!(body["message"].as_str().unwrap().len(), 1023, "not in the middle of a character");
        assert_eq!((&body["type"], &body["reason"]), (&json!("Warning"), &json!("Fight")));
    }
}
