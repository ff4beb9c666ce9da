//! Kubernetes objects of pods and namespaces as JSON, and a directory of them for `--pod-source=dir:`.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::ApiServer;
use crate::pod::{Pod, PodSandbox};

/// Name of the node in the manifests of pods.
pub const NODE_NAME: &str = "node-1";

/// Creation time of application pods.
pub(crate) const CREATED: &str = "2026-01-01T00:00:00Z";

/// A directory with one file for each object. Files appear, change and disappear atomically. Drop removes the directory.
#[derive(Debug)]
pub struct Manifests {
    files: TempDir,
    /// Counter of staged files: several threads may write at the same time.
    staged: AtomicUsize,
}

impl Manifests {
    /// Creates an empty directory.
    #[must_use]
    pub fn new() -> Self {
        let files = tempfile::Builder::new().prefix("manifests").tempdir().expect("cannot make a temp dir");
        fs::create_dir(files.path().join("objects")).expect("cannot make a directory");
        Self { files, staged: AtomicUsize::new(0) }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.files.path().join("objects")
    }

    /// Writes a namespace with these labels.
    pub fn put_namespace(&self, name: &str, labels: &[(&str, &str)]) {
        self.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata(name, labels)}));
    }

    /// As [`Manifests::put_namespace`], with annotations.
    pub fn put_annotated_namespace(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        annotations: &BTreeMap<&str, &str>,
    ) {
        let mut metadata = metadata(name, labels);
        metadata["annotations"] = json!(annotations);
        self.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    }

    /// Writes this node's object with these labels.
    pub fn put_node(&self, labels: &[(&str, &str)]) {
        self.put(&json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata(NODE_NAME, labels)}));
    }

    /// Writes a pod, such as [`PodSandbox::manifest`] returns.
    pub fn put_pod(&self, manifest: &Value) {
        self.put(manifest);
    }

    /// Removes a pod.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn remove_pod(&self, namespace: &str, name: &str) {
        self.remove("Pod", namespace, name);
    }

    /// Removes a namespace.
    ///
    /// # Panics
    /// If it does not exist.
    pub fn remove_namespace(&self, name: &str) {
        self.remove("Namespace", "", name);
    }

    fn put(&self, object: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        let path = self.file(&text(&object["kind"]), &text(&metadata["namespace"]), &text(&metadata["name"]));
        // Outside the directory, so that a watch of it receives one event for one change.
        let number = self.staged.fetch_add(1, Ordering::Relaxed);
        let new = self.files.path().join(format!("new-{number}"));
        fs::write(&new, serde_json::to_vec_pretty(object).unwrap()).expect("cannot write a manifest");
        fs::rename(&new, &path).expect("cannot rename a manifest");
    }

    fn remove(&self, kind: &str, namespace: &str, name: &str) {
        let path = self.file(kind, namespace, name);
        fs::remove_file(&path).unwrap_or_else(|e| panic!("no {}: {e}", path.display()));
    }

    fn file(&self, kind: &str, namespace: &str, name: &str) -> PathBuf {
        let parts = [kind, namespace, name].into_iter().filter(|part| !part.is_empty());
        Path::new(&self.path()).join(parts.collect::<Vec<_>>().join("_").to_lowercase() + ".json")
    }
}

impl Default for Manifests {
    fn default() -> Self {
        Self::new()
    }
}

impl Pod {
    /// The pod's API object while the pod runs with these addresses: ready, on [`NODE_NAME`].
    #[must_use]
    pub fn manifest(&self, ips: &[IpAddr]) -> Value {
        let mut manifest = ApiServer::pod(&self.namespace, &self.name);
        let metadata = &mut manifest["metadata"];
        metadata["uid"] = json!(self.uid);
        metadata["labels"] = json!(self.labels);
        metadata["annotations"] = json!(self.annotations);
        metadata["creationTimestamp"] = json!(CREATED);
        manifest["spec"]["nodeName"] = json!(NODE_NAME);
        manifest["spec"]["serviceAccountName"] = json!("default");
        manifest["status"] = status("app", ips, true, CREATED);
        manifest
    }
}

impl PodSandbox {
    /// [`Pod::manifest`] with this sandbox's addresses.
    #[must_use]
    pub fn manifest(&self) -> Value {
        self.pod.manifest(&self.ips())
    }
}

/// `status` of a running pod with one container.
pub(crate) fn status(container: &str, ips: &[IpAddr], ready: bool, since: &str) -> Value {
    let told = |kind: &str, holds: bool| json!({"type": kind, "status": if holds { "True" } else { "False" }, "lastTransitionTime": since});
    json!({
        "phase": "Running",
        "podIP": ips.first(),
        "podIPs": ips.iter().map(|ip| json!({"ip": ip})).collect::<Vec<_>>(),
        "startTime": since,
        "conditions": [
            told("Initialized", true), told("Ready", ready), told("ContainersReady", ready), told("PodScheduled", true),
        ],
        "containerStatuses": [{
            "name": container, "image": container, "imageID": "", "ready": ready, "started": true, "restartCount": 0,
            "state": {"running": {"startedAt": since}},
        }],
    })
}

fn metadata(name: &str, labels: &[(&str, &str)]) -> Value {
    let labels: serde_json::Map<_, _> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    json!({"name": name, "uid": format!("uid-of-{name}"), "labels": labels})
}
