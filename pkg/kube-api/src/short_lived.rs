//! Short-lived pods of a command, which creates one, reads its log, and deletes it.

use std::time::Duration;

use http::Method;
use model::PodName;
use serde_json::{Value, json};

use crate::{
    Error, KubeClient,
    client::{self, JSON, LIMIT, ObjectChange},
};

impl KubeClient {
    /// Creates a pod. The manifest must have this name and namespace.
    ///
    /// # Errors
    /// The API server did not confirm within ten seconds: it rejects the pod, or it is unknown whether the pod was created.
    pub async fn create_pod(&self, name: &PodName, manifest: Value) -> Result<(), Error> {
        let path = name.api_path();
        let collection = path.rsplit_once('/').map_or(path.as_str(), |(collection, _)| collection);
        self.change_object(format!("create pod {name}"), collection, ObjectChange::Create(manifest), LIMIT)
            .await
    }

    /// Deletes a pod immediately, without a grace period.
    ///
    /// # Errors
    /// The API server did not apply the change within ten seconds.
    pub async fn delete_pod_now(&self, name: &PodName) -> Result<(), Error> {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
        let change = ObjectChange::Delete(options);
        self.change_object(format!("delete pod {name}"), &name.api_path(), change, LIMIT).await
    }

    /// Returns a container's output, standard output and standard error, at most `most` bytes.
    ///
    /// # Errors
    /// No response within `limit`, or not the log.
    pub async fn read_pod_log(
        &self,
        name: &PodName,
        container: &str,
        most: u64,
        limit: Duration,
    ) -> Result<String, Error> {
        let doing = format!("read the log of pod {name}");
        let path = format!("{}/log?container={container}&limitBytes={most}", name.api_path());
        let request = client::make_request(&doing, (Method::GET, JSON, Vec::new()), &path)?;
        client::wait_for_answer(doing, self.kube.request_text(request), limit).await
    }
}
