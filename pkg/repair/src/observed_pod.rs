//! What the API server shows of a pod, as far as repair needs it.

use std::collections::BTreeMap;

use kubeio::Versioned;
use model::{ObjectMeta, Pod, PodIp, PodName, PodSpec, PodStatus, PodUid};
use serde::{Deserialize, Deserializer, de::IgnoredAny};

/// A pod as it was observed: small, because every pod of the node is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedPod {
    /// Namespace and name.
    pub name: PodName,
    /// UID of the pod.
    pub uid: PodUid,
    /// Resource version of the pod: a change of the pod names the version that was observed.
    pub version: String,
    /// Whether the pod is being deleted.
    pub is_terminating: bool,
    /// Whether the pod's phase is `Succeeded` or `Failed`: no container of it starts again.
    pub is_finished: bool,
    /// A controller replaces it when it is gone.
    pub has_controller: bool,
    /// Keys of its labels.
    pub labels: Vec<String>,
    /// Keys of its annotations.
    pub annotations: Vec<String>,
    /// Init containers of the pod that have failed, or may have.
    pub init_containers: Vec<ObservedInitContainer>,
    /// The pod as far as rules depend on it, if it was injected and runs.
    pub running: Option<Box<Pod>>,
}

/// An init container's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedInitContainer {
    /// Name of the container.
    pub name: String,
    /// How it has ended, if it does not run and is not waiting for a restart.
    pub ended: Option<Termination>,
    /// How it ended the time before that.
    pub ended_before: Option<Termination>,
}

/// How a container has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Termination {
    /// Exit code of the container.
    pub exit_code: i32,
    /// Such as `Completed` or `Error`.
    #[serde(deserialize_with = "null_is_empty")]
    pub reason: String,
    /// Termination message of the container.
    #[serde(deserialize_with = "null_is_empty")]
    pub message: String,
}

/// The longest message that is kept; the kubelet cuts at this length, too.
const MAX_MESSAGE: usize = 4096;

impl Termination {
    /// Whether the container succeeded.
    pub(crate) fn is_success(&self) -> bool {
        self.exit_code == 0 || self.reason == "Completed"
    }
}

impl Versioned for ObservedPod {
    fn take_version(&mut self) -> String {
        self.version.clone() // it is needed afterwards
    }
}

impl<'de> Deserialize<'de> for ObservedPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PodObject::deserialize(deserializer).map(ObservedPod::from)
    }
}

fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The API's object.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PodObject {
    metadata: Metadata,
    spec: PodSpec,
    #[serde(deserialize_with = "null_is_empty")]
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    uid: PodUid,
    resource_version: String,
    deletion_timestamp: Option<IgnoredAny>,
    #[serde(deserialize_with = "null_is_empty")]
    owner_references: Vec<OwnerReference>,
    #[serde(deserialize_with = "null_is_empty")]
    labels: BTreeMap<String, IgnoredAny>,
    #[serde(deserialize_with = "null_is_empty")]
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OwnerReference {
    #[serde(deserialize_with = "null_is_empty")]
    controller: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    #[serde(deserialize_with = "null_is_empty")]
    phase: String,
    #[serde(rename = "podIP")]
    pod_ip: String,
    #[serde(rename = "podIPs", deserialize_with = "null_is_empty")]
    pod_ips: Vec<PodIp>,
    #[serde(deserialize_with = "null_is_empty")]
    init_container_statuses: Vec<InitContainerStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct InitContainerStatus {
    name: String,
    #[serde(deserialize_with = "null_is_empty")]
    state: ContainerState,
    #[serde(deserialize_with = "null_is_empty")]
    last_state: ContainerState,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    terminated: Option<Termination>,
}

impl From<PodObject> for ObservedPod {
    fn from(object: PodObject) -> ObservedPod {
        let PodObject { metadata: meta, spec, status } = object;
        let is_terminating = meta.deletion_timestamp.is_some();
        let is_running = status.phase == "Running" && !is_terminating;
        let is_finished = matches!(status.phase.as_str(), "Succeeded" | "Failed");
        let labels = meta.labels.into_keys().collect();
        let annotations: Vec<String> = meta.annotations.keys().cloned().collect();
        let name = PodName { namespace: meta.namespace, name: meta.name };
        let running = (is_running && meta.annotations.contains_key(planner::enrolment::STATUS)).then(|| {
            let metadata = ObjectMeta {
                name: name.name.clone(),
                namespace: name.namespace.clone(),
                uid: meta.uid.clone(),
                annotations: meta.annotations,
                ..ObjectMeta::default()
            };
            let status = PodStatus {
                phase: status.phase,
                pod_ip: status.pod_ip,
                pod_ips: status.pod_ips,
                ..PodStatus::default()
            };
            Box::new(Pod { metadata, spec, status })
        });
        let containers = status.init_container_statuses.into_iter().map(ObservedInitContainer::from);
        ObservedPod {
            name,
            uid: meta.uid,
            version: meta.resource_version,
            is_terminating,
            is_finished,
            has_controller: meta.owner_references.iter().any(|owner| owner.controller),
            labels,
            annotations,
            init_containers: containers
                .filter(|container| container.ended.is_some() || container.ended_before.is_some())
                .collect(),
            running,
        }
    }
}

impl From<InitContainerStatus> for ObservedInitContainer {
    fn from(status: InitContainerStatus) -> ObservedInitContainer {
        let cut = |ended: Termination| Termination {
            message: ended.message.chars().take(MAX_MESSAGE).collect(),
            ..ended
        };
        ObservedInitContainer {
            name: status.name,
            ended: status.state.terminated.map(cut),
            ended_before: status.last_state.terminated.map(cut),
        }
    }
}
