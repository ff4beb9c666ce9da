//! Annotations of pods, set through the status subresource: a role can permit that without permitting changes of pods.

use model::{PodName, PodUid};
use serde_json::json;

use crate::{
    ApiErrorKind, Error, KubeClient,
    client::{LIMIT, ObjectChange},
};

impl KubeClient {
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
        let doing = format!("annotate pod {name} with {key}");
        let path = format!("{}/status", name.api_path());
        // With the UID in it the API server refuses a pod of another one. Null removes.
        let change = ObjectChange::MergePatch(json!({"metadata": {"uid": uid, "annotations": {key: value}}}));
        match self.change_object(doing, &path, change, LIMIT).await {
            Err(error) if error.kind() == ApiErrorKind::NotFound => Ok(()),
            answer => answer,
        }
    }
}
