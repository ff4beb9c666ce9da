//! Changes of a very pod, in the version that was seen: the API server refuses them for any other.

use std::time::Duration;

use http::Method;
use model::{PodName, PodUid};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::{Error, KubeClient, client::RequestBody};

const LIMIT: Duration = Duration::from_secs(10);

impl KubeClient {
    /// Deletes the pod that has this name, UID and version, with its own grace period.
    ///
    /// # Errors
    /// [`crate::ApiErrorKind::Conflict`]: it has changed, or its name has passed to another pod; nothing was deleted. Else:
    /// the API server did not do it within ten seconds.
    pub async fn delete_pod(&self, name: &PodName, uid: &PodUid, version: &str) -> Result<(), Error> {
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": version},
        });
        let body = RequestBody::Json(body.to_string().into_bytes());
        let path = format!("/api/v1/namespaces/{}/pods/{}", name.namespace, name.name);
        self.send_request::<IgnoredAny>(format!("delete pod {name}"), Method::DELETE, &path, body, LIMIT)
            .await
            .map(drop)
    }

    /// Sets a label of the pod that has this name, UID and version, by way of its status: that may be allowed to who may
    /// not change pods.
    ///
    /// # Errors
    /// As [`KubeClient::delete_pod`].
    pub async fn label_pod_status(
        &self,
        name: &PodName,
        uid: &PodUid,
        version: &str,
        key: &str,
        value: &str,
    ) -> Result<(), Error> {
        let doing = format!("label pod {name} with {key}");
        let path = format!("/api/v1/namespaces/{}/pods/{}/status", name.namespace, name.name);
        let body = RequestBody::MergePatch(label_patch(uid, version, key, value).to_string().into_bytes());
        self.send_request::<IgnoredAny>(doing, Method::PATCH, &path, body, LIMIT).await.map(drop)
    }
}

/// With UID and version in it, the API server refuses any other pod, and this one in any other version.
fn label_patch(uid: &PodUid, version: &str, key: &str, value: &str) -> Value {
    json!({"metadata": {"uid": uid, "resourceVersion": version, "labels": {key: value}}})
}
