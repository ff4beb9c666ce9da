//! Changes of one pod, identified by its UID: the API server rejects them for any other of its name.

use model::{PodName, PodUid};
use serde_json::{Value, json};

use crate::{
    ApiErrorKind, Error, KubeClient,
    client::{LIMIT, ObjectChange},
};

impl KubeClient {
    /// Deletes the pod that has this name, UID and version, with its own grace period.
    ///
    /// # Errors
    /// [`ApiErrorKind::Conflict`]: the pod has changed, or its name belongs to another pod by now; nothing was deleted. Else: the
    /// API server did not apply the change within ten seconds.
    pub async fn delete_pod(&self, name: &PodName, uid: &PodUid, version: &str) -> Result<(), Error> {
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": version},
        });
        let change = ObjectChange::Delete(body);
        self.change_object(format!("delete pod {name}"), &name.api_path(), change, LIMIT).await
    }

    /// Sets a label of the pod that has this name, UID and version.
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
        let metadata = json!({"uid": uid, "resourceVersion": version, "labels": {key: value}});
        self.patch_pod_metadata(format!("label pod {name} with {key}"), name, metadata).await
    }

    /// Sets an annotation of the pod that has this name and UID, or removes it. A pod that no longer exists is a success.
    ///
    /// # Errors
    /// [`ApiErrorKind::Conflict`]: the name belongs to another pod by now, which was not changed. Else: the API server did not
    /// apply the change within ten seconds.
    pub async fn annotate_pod_status(
        &self,
        name: &PodName,
        uid: &PodUid,
        key: &str,
        value: Option<&str>,
    ) -> Result<(), Error> {
        let metadata = json!({"uid": uid, "annotations": {key: value}}); // null removes
        match self.patch_pod_metadata(format!("annotate pod {name} with {key}"), name, metadata).await {
            Err(error) if error.kind() == ApiErrorKind::NotFound => Ok(()),
            answer => answer,
        }
    }

    /// Patches through the status subresource: a role can permit that without permitting changes of pods. With UID and version in
    /// it, the API server refuses any other pod, and this one in any other version.
    async fn patch_pod_metadata(&self, doing: String, name: &PodName, metadata: Value) -> Result<(), Error> {
        let change = ObjectChange::MergePatch(json!({"metadata": metadata}));
        self.change_object(doing, &format!("{}/status", name.api_path()), change, LIMIT).await
    }
}
