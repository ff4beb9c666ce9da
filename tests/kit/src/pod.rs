//! Pods: as a container runtime knows them, and with their network.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use ring::digest;
use serde_json::Value;

use crate::netns::Netns;
use crate::runtime::{Call, ChainError, Runtime};

/// Identity of a pod, and the data that a runtime passes to plugins.
#[derive(Debug, Clone)]
pub struct Pod {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// Pod UID.
    pub uid: String,
    /// Id of the sandbox container, 64 hex digits.
    pub container_id: String,
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// All annotations.
    pub annotations: BTreeMap<String, String>,
    /// Further capability arguments, such as `portMappings`.
    pub capability_args: BTreeMap<String, Value>,
}

impl Pod {
    /// Creates a pod with a new UID and container ID, and the annotation that the kubelet adds to every pod.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: fresh_uuid(),
            container_id: fresh_hex(64),
            labels: BTreeMap::new(),
            annotations: BTreeMap::from([("kubernetes.io/config.source".to_owned(), "api".to_owned())]),
            capability_args: BTreeMap::new(),
        }
    }

    /// The sandbox of an API object: same names, UID, labels and annotations.
    #[must_use]
    pub fn from_object(object: &Value) -> Self {
        let metadata = &object["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap_or_else(|| panic!("the pod has no {key}"));
        let mut pod = Self::new(text("namespace"), text("name")).uid(text("uid"));
        for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
            pod = pod.label(key, value.as_str().expect("labels are strings"));
        }
        for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
            pod = pod.annotation(key, value.as_str().expect("annotations are strings"));
        }
        pod
    }

    /// Adds a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets the UID.
    #[must_use]
    pub fn uid(mut self, uid: &str) -> Self {
        uid.clone_into(&mut self.uid);
        self
    }
}

/// A pod's sandbox: its network namespace, set up by a chain. Drop runs DEL and removes the namespace.
#[derive(Debug)]
pub struct PodSandbox {
    /// The pod.
    pub pod: Pod,
    /// Network namespace of the pod.
    pub netns: Netns,
    /// Result of the chain's ADD.
    pub result: Value,
    /// Plugin calls of ADD.
    pub calls: Vec<Call>,
    runtime: Runtime,
    conflist: Value,
    deleted: bool,
}

impl PodSandbox {
    pub(crate) fn start(runtime: &Runtime, conflist: &Value, pod: Pod) -> Result<Self, Box<ChainError>> {
        let netns = Netns::named(format!("cni-{}", fresh_uuid()));
        let added = runtime.add(conflist, &pod, &path_for_runtime(&netns))?;
        // Containers start long after their network is set up; tests do not wait that long.
        for interface in added.result["interfaces"].as_array().into_iter().flatten() {
            let inside = interface["sandbox"].as_str().is_some_and(|sandbox| !sandbox.is_empty());
            let place = if inside { &netns } else { &**runtime.netns() };
            place.wait_until_running(interface["name"].as_str().expect("an interface has a name"));
        }
        Ok(Self {
            pod,
            netns,
            result: added.result,
            calls: added.calls,
            runtime: runtime.clone(),
            conflist: conflist.clone(),
            deleted: false,
        })
    }

    /// All addresses of the pod in the result.
    #[must_use]
    pub fn ips(&self) -> Vec<IpAddr> {
        let ips = self.result["ips"].as_array().into_iter().flatten();
        ips.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok()).collect()
    }

    /// The pod's address of a family.
    ///
    /// # Panics
    /// If it has none.
    #[must_use]
    pub fn ip(&self, v6: bool) -> IpAddr {
        self.ips().into_iter().find(|ip| ip.is_ipv6() == v6).expect("the pod has no address of this family")
    }

    /// `CNI_NETNS` of this pod.
    #[must_use]
    pub fn netns_path(&self) -> String {
        path_for_runtime(&self.netns)
    }

    /// Runs CHECK through the chain.
    pub fn check(&self) -> Result<Vec<Call>, Box<ChainError>> {
        self.runtime.check(&self.conflist, &self.pod, &self.netns_path(), &self.result)
    }

    /// Runs ADD through the chain once more, for the same namespace.
    pub fn add_again(&self) -> Result<crate::Added, Box<ChainError>> {
        self.runtime.add(&self.conflist, &self.pod, &self.netns_path())
    }

    /// Calls a single plugin of the chain once more, with the chain's result as `prevResult`.
    #[must_use]
    pub fn single(&self, command: &str, plugin: &str) -> Call {
        self.runtime.single(command, &self.conflist, plugin, &self.pod, &self.netns_path(), &self.result)
    }

    /// Runs DEL through the chain, with the result of ADD; drop then does not run it.
    pub fn delete(&mut self) -> Result<Vec<Call>, Box<ChainError>> {
        self.deleted = true;
        self.runtime.del(&self.conflist, &self.pod, &self.netns_path(), &self.result)
    }

    /// Runs the DEL that containerd repeats when it collects a dead sandbox: no namespace, no result.
    pub fn delete_again(&self) -> Result<Vec<Call>, Box<ChainError>> {
        self.runtime.del(&self.conflist, &self.pod, "", &Value::Null)
    }
}

impl Drop for PodSandbox {
    fn drop(&mut self) {
        if self.deleted {
            return;
        }
        if let Err(error) = self.delete() {
            // A second panic would abort and hide the first.
            assert!(std::thread::panicking(), "DEL of pod {} failed: {error}", self.pod.name);
            eprintln!("DEL of pod {} failed: {error}", self.pod.name);
        }
    }
}

/// Containerd passes `/var/run`, which is a symlink to `/run` on all current distributions.
fn path_for_runtime(netns: &Netns) -> String {
    format!("/var/run/netns/{}", netns.name())
}

/// A UUID (version 4 in form), unique in this sandbox and, most likely, anywhere.
pub(crate) fn fresh_uuid() -> String {
    let hex = fresh_hex(32);
    format!("{}-{}-4{}-a{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}

/// Hex digits of process ID and a counter: unique, and equal in every run in a PID namespace.
fn fresh_hex(digits: usize) -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let seed = format!("{}/{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
    let hash = digest::digest(&digest::SHA256, seed.as_bytes());
    hash.as_ref()
        .iter()
        .flat_map(|byte| format!("{byte:02x}").into_bytes())
        .map(char::from)
        .take(digits)
        .collect()
}
