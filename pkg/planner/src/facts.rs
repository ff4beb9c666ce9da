//! What is known of this node's pods and of all namespaces: facts, as they come from the API server or a directory, and
//! the index that they make.

use std::collections::BTreeMap;

use model::{Container, Namespace, Pod, PodName};

use crate::enrolment::PROXY;

/// Something that a source has seen. A source tells facts about one object in the order in which they came to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// These are all pods of this node. Of two with one name the last counts.
    Pods(Vec<Pod>),
    /// A pod is new, or not as before.
    Pod(Box<Pod>),
    /// The pod with this UID is gone.
    PodGone {
        /// Its name, which a successor may have by now.
        name: PodName,
        /// The UID that it had.
        uid: String,
    },
    /// These are all namespaces.
    Namespaces(Vec<Namespace>),
    /// A namespace is new, or not as before.
    Namespace(Box<Namespace>),
    /// The namespace of this name is gone.
    NamespaceGone(String),
}

/// Everything that is known, without what nothing is decided on (see [`trim`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    pods: BTreeMap<PodName, Pod>,
    namespaces: BTreeMap<String, Namespace>,
    has_pods: bool,
    has_namespaces: bool,
}

impl Index {
    /// Takes in a fact. True if anything is different now that a decision could depend on.
    pub fn apply(&mut self, fact: Fact) -> bool {
        match fact {
            Fact::Pods(pods) => {
                let pods = pods.into_iter().map(named_pod).collect();
                reset(&mut self.pods, pods, &mut self.has_pods)
            }
            Fact::Pod(pod) => {
                let (name, pod) = named_pod(*pod);
                put(&mut self.pods, name, pod)
            }
            Fact::PodGone { name, uid } => {
                let is_that = self.pods.get(&name).is_some_and(|pod| pod.metadata.uid == uid);
                is_that && self.pods.remove(&name).is_some()
            }
            Fact::Namespaces(namespaces) => {
                let namespaces = namespaces.into_iter().map(named_namespace).collect();
                reset(&mut self.namespaces, namespaces, &mut self.has_namespaces)
            }
            Fact::Namespace(namespace) => {
                let (name, namespace) = named_namespace(*namespace);
                put(&mut self.namespaces, name, namespace)
            }
            Fact::NamespaceGone(name) => self.namespaces.remove(&name).is_some(),
        }
    }

    /// The pod of this name.
    #[must_use]
    pub fn pod(&self, name: &PodName) -> Option<&Pod> {
        self.pods.get(name)
    }

    /// All pods, by namespace and name.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    /// The namespace of this name.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<&Namespace> {
        self.namespaces.get(name)
    }

    /// All pods and all namespaces were told once. Before that, what is missing here may well exist.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.has_pods && self.has_namespaces
    }
}

fn reset<K: Ord, V: PartialEq>(known: &mut BTreeMap<K, V>, now: BTreeMap<K, V>, was_told: &mut bool) -> bool {
    let first = !std::mem::replace(was_told, true);
    let other = *known != now;
    *known = now;
    first || other
}

fn put<K: Ord, V: PartialEq>(known: &mut BTreeMap<K, V>, name: K, value: V) -> bool {
    let other = known.get(&name) != Some(&value);
    known.insert(name, value);
    other
}

fn named_pod(mut pod: Pod) -> (PodName, Pod) {
    trim(&mut pod);
    (pod.name(), pod)
}

fn named_namespace(mut namespace: Namespace) -> (String, Namespace) {
    trim_namespace(&mut namespace);
    (namespace.metadata.name.clone(), namespace)
}

/// By the value of this annotation, a container runtime knows a static pod.
const STATIC_POD: &str = "kubernetes.io/config.hash";

/// Every variable that something is decided on.
const VARIABLES: [&str; 5] =
    ["DISABLE_ENVOY", "ISTIO_META_DNS_CAPTURE", "ISTIO_DUAL_STACK", "INVALID_DROP", "INPOD_ENABLED"];

/// Removes what nothing is decided on: annotations that are not Istio's, variables, and arguments but the first two of
/// `istio-proxy`. No decision of this crate is another one for a trimmed pod. It is most of a pod's size, and changes of
/// it are none.
pub fn trim(pod: &mut Pod) {
    pod.metadata.resource_version = String::new();
    pod.metadata.annotations.retain(|key, _| key.contains("istio.io/") || key == STATIC_POD);
    let spec = &mut pod.spec;
    spec.containers.iter_mut().chain(&mut spec.init_containers).for_each(trim_container);
    spec.containers.shrink_to_fit();
    spec.init_containers.shrink_to_fit();
    let status = &mut pod.status;
    status.conditions.retain(|condition| condition.kind == "Ready");
    status.conditions.shrink_to_fit();
    status.container_statuses.shrink_to_fit();
    status.init_container_statuses.shrink_to_fit();
    status.pod_ips.shrink_to_fit();
}

/// The same for a namespace, of which only the labels count.
pub fn trim_namespace(namespace: &mut Namespace) {
    namespace.metadata.annotations = BTreeMap::new();
    namespace.metadata.resource_version = String::new();
}

fn trim_container(container: &mut Container) {
    container.args.truncate(if container.name == PROXY { 2 } else { 0 });
    container.args.shrink_to_fit();
    container.env.retain(|var| VARIABLES.contains(&var.name.as_str()));
    container.env.shrink_to_fit();
}
