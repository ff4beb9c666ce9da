//! Annotations on pods, by way of their status: an agent may be allowed that without being allowed to change pods.

use model::{PodName, PodUid};
use serde_json::json;

use crate::{
    ApiErrorKind, Error, KubeClient,
    client::{LIMIT, ObjectChange},
};

impl KubeClient {
    /// Sets an annotation of the pod that has this name and UID, or removes it. A pod that is not there any more has
    /// none, which is good.
    ///
    /// # Errors
    /// [`ApiErrorKind::Conflict`]: the name has passed to another pod, which was not touched. Else: the API server did not do it
    /// within ten seconds.
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
