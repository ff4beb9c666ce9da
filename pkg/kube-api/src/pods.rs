//! Changes of one pod in the version that was observed: the API server rejects them for any other.

use model::{PodName, PodUid};
use serde_json::json;

use crate::{
    Error, KubeClient,
    client::{LIMIT, ObjectChange},
};

impl KubeClient {
    /// Deletes the pod that has this name, UID and version, with its own grace period.
    ///
    /// # Errors
    /// [`crate::ApiErrorKind::Conflict`]: the pod has changed, or its name belongs to another pod by now; nothing was deleted.
    /// Else: the API server did not apply the change within ten seconds.
    pub async fn delete_pod(&self, name: &PodName, uid: &PodUid, version: &str) -> Result<(), Error> {
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": version},
        });
        let change = ObjectChange::Delete(body);
        self.change_object(format!("delete pod {name}"), &name.api_path(), change, LIMIT).await
    }

    /// Sets a label of the pod that has this name, UID and version, through the status subresource: a role can permit that without
    /// permitting changes of pods.
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
        let path = format!("{}/status", name.api_path());
        // With UID and version in it, the API server refuses any other pod, and this one in any other version.
        let metadata = json!({"uid": uid, "resourceVersion": version, "labels": {key: value}});
        let change = ObjectChange::MergePatch(json!({"metadata": metadata}));
        self.change_object(doing, &path, change, LIMIT).await
    }
}
