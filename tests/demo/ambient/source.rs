//! Source of the agent's objects: a directory of manifests, or an API server.

use kit::{ApiServer, Manifests, NODE_NAME, Pod, PodSandbox};
use serde_json::{Value, json};

/// Namespaces and pods as the agent sees them.
pub(crate) enum Source {
    /// One file for each object.
    Directory(Manifests),
    /// A real API server.
    Api(&'static ApiServer),
}

impl Source {
    pub(crate) fn directory() -> Source {
        Source::Directory(Manifests::new())
    }

    pub(crate) fn create_namespace(&self, name: &str, labels: &[(&str, &str)]) {
        match self {
            Source::Directory(manifests) => manifests.put_namespace(name, labels),
            Source::Api(api) => {
                let labels: Value =
                    labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
                let object = json!({"metadata": {"name": name, "labels": labels}});
                api.admin().create("/api/v1/namespaces", &object);
            }
        }
    }

    /// Removes the label of ambient mode from a namespace.
    pub(crate) fn take_out(&self, name: &str) {
        match self {
            Source::Directory(manifests) => manifests.put_namespace(name, &[]),
            Source::Api(api) => {
                let patch = json!({"metadata": {"labels": {"istio.io/dataplane-mode": null}}});
                api.admin().patch(&format!("/api/v1/namespaces/{name}"), &patch);
            }
        }
    }

    /// Creates a pod that is scheduled to this node and has no network yet.
    pub(crate) fn create_pod(&self, object: &mut Value) -> Pod {
        object["spec"]["nodeName"] = json!(NODE_NAME);
        match self {
            Source::Directory(manifests) => {
                let name = |key: &str| object["metadata"][key].as_str().unwrap().to_owned();
                object["metadata"]["uid"] = json!(Pod::new(&name("namespace"), &name("name")).uid);
                object["status"] = json!({"phase": "Pending"});
                manifests.put_pod(object);
            }
            Source::Api(api) => *object = api.create_pod(object),
        }
        Pod::from_object(object)
    }

    /// Reports the pod as running, with the addresses of its sandbox.
    pub(crate) fn runs(&self, object: &mut Value, status: &Value) {
        object["status"] = status.clone();
        match self {
            Source::Directory(manifests) => manifests.put_pod(object),
            Source::Api(api) => drop(api.admin().patch_status(&path(object), status)),
        }
    }

    pub(crate) fn remove_pod(&self, object: &Value) {
        let name = |key: &str| object["metadata"][key].as_str().unwrap();
        match self {
            Source::Directory(manifests) => manifests.remove_pod(name("namespace"), name("name")),
            Source::Api(api) => drop(api.admin().delete(&path(object))),
        }
    }

    /// Value of `ambient.istio.io/redirection` of a pod; `None` with a directory, which the agent does not write to.
    pub(crate) fn redirection(&self, sandbox: &PodSandbox) -> Option<Value> {
        let Source::Api(api) = self else { return None };
        let pod = &sandbox.pod;
        let object = api.admin().get(&format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name));
        Some(object["metadata"]["annotations"]["ambient.istio.io/redirection"].clone())
    }
}

fn path(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!(
        "/api/v1/namespaces/{}/pods/{}",
        metadata["namespace"].as_str().unwrap(),
        metadata["name"].as_str().unwrap()
    )
}
