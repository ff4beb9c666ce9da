//! Facts about this node's pods and all namespaces, from the API server or a directory, and the index built from them.

mod trim;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use model::{Namespace, Pod, PodName, PodUid};

use crate::{exceptions::RequestedExceptions, inpod::InPodAnnotations};

pub use trim::{trim_namespace, trim_pod, trim_to_sidecar};

/// An observation by a source. A source sends facts about one object in the order in which they occurred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Complete list of this node's pods. Of two with one name the last is used.
    Pods(Vec<Pod>),
    /// A new or changed pod.
    Pod(Box<Pod>),
    /// The pod with this UID was removed.
    PodGone {
        /// Name of the pod, which a successor may have by now.
        name: PodName,
        /// UID of the removed pod.
        uid: PodUid,
    },
    /// Complete list of namespaces.
    Namespaces(Vec<Namespace>),
    /// A new or changed namespace.
    Namespace(Box<Namespace>),
    /// The namespace of this name was removed.
    NamespaceGone(String),
    /// Objects that a list lacks, or shows in an older state, without confirmation. Lists are ignored for them until the next such
    /// fact: they stay as they are known.
    Unconfirmed(UnconfirmedObjects),
    /// The watch of a collection received something, or failed, with the error; it resumes by itself. While it fails, changes are
    /// unknown.
    Watched(WatchedCollection, Result<(), String>),
    /// Pods are no longer followed, so the list of pods is unknown.
    PodsUnknown,
}

model::word_enum! {
    /// Objects of the API server that are followed, with the name of the resource.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum WatchedCollection {
        /// Pods of this node.
        Pods = "pods",
        /// All namespaces.
        Namespaces = "namespaces",
    }
}

/// Known objects for which lists are ignored, because their contents are unconfirmed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnconfirmedObjects {
    /// Pods of this node.
    pub pods: BTreeSet<PodName>,
    /// Namespaces.
    pub namespaces: BTreeSet<String>,
}

/// Extent of the change caused by a fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FactChange {
    /// No change that a decision could depend on.
    Nothing,
    /// Change of these pods only.
    Pods(Vec<ChangedPod>),
    /// Possibly all pods: a namespace, the first list, or the set of unconfirmed objects changed.
    All,
}

/// A pod that is new, removed, or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedPod {
    /// Name of the pod.
    pub name: PodName,
    /// Pod that had this name before.
    pub before: Option<Pod>,
}

/// Index of all facts, without parts that no decision depends on (see [`trim_pod`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FactIndex {
    pods: BTreeMap<PodName, IndexEntry>,
    namespaces: BTreeMap<String, NamespaceEntry>,
    has_pods: bool,
    has_namespaces: bool,
    unconfirmed: UnconfirmedObjects,
}

/// A namespace, and what it requests for its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamespaceEntry {
    namespace: Namespace,
    exceptions: RequestedExceptions,
}

/// A pod, and values derived from it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IndexEntry {
    pod: Pod,
    asked: InPodAnnotations,
    ips: Vec<IpAddr>,
}

impl FactIndex {
    /// Records a fact. Returns whether anything changed that a decision could depend on.
    pub fn apply(&mut self, fact: Fact) -> bool {
        self.apply_fact(fact) != FactChange::Nothing
    }

    /// Records a fact, and returns the resulting change.
    pub fn apply_fact(&mut self, fact: Fact) -> FactChange {
        let all_differ = match fact {
            Fact::Pods(pods) => return self.apply_pod_list(pods),
            Fact::Pod(pod) => {
                let (name, entry) = named_pod(*pod);
                let differs = self.pods.get(&name) != Some(&entry);
                let before = self.pods.insert(name.clone(), entry).map(|entry| entry.pod);
                let changed = differs.then_some(ChangedPod { name, before });
                return FactChange::from_pods(Vec::from_iter(changed));
            }
            Fact::PodGone { name, uid } => {
                let is_that = self.pods.get(&name).is_some_and(|entry| entry.pod.metadata.uid == uid);
                let gone = if is_that { self.pods.remove_entry(&name) } else { None };
                let gone = gone.map(|(name, entry)| ChangedPod { name, before: Some(entry.pod) });
                return FactChange::from_pods(Vec::from_iter(gone));
            }
            Fact::Namespaces(namespaces) => {
                let listed = namespaces.into_iter().map(named_namespace).collect();
                let namespaces = keep_unconfirmed(listed, &self.namespaces, &self.unconfirmed.namespaces);
                let differs = self.namespaces != namespaces;
                self.namespaces = namespaces;
                !std::mem::replace(&mut self.has_namespaces, true) || differs
            }
            Fact::Namespace(namespace) => {
                let (name, namespace) = named_namespace(*namespace);
                let differs = self.namespaces.get(&name) != Some(&namespace);
                self.namespaces.insert(name, namespace);
                differs
            }
            Fact::NamespaceGone(name) => self.namespaces.remove(&name).is_some(),
            Fact::Unconfirmed(unconfirmed) => {
                std::mem::replace(&mut self.unconfirmed, unconfirmed.clone()) != unconfirmed
            }
            Fact::Watched(..) => false,
            Fact::PodsUnknown => {
                self.pods.clear();
                std::mem::take(&mut self.has_pods)
            }
        };
        if all_differ { FactChange::All } else { FactChange::Nothing }
    }

    fn apply_pod_list(&mut self, pods: Vec<Pod>) -> FactChange {
        let listed = pods.into_iter().map(named_pod).collect();
        let pods = keep_unconfirmed(listed, &self.pods, &self.unconfirmed.pods);
        let mut before = std::mem::take(&mut self.pods);
        let mut changed = Vec::new();
        for (name, entry) in &pods {
            let known = before.remove(name);
            if known.as_ref() != Some(entry) {
                changed.push(ChangedPod { name: name.clone(), before: known.map(|entry| entry.pod) });
            }
        }
        let gone = before.into_iter().map(|(name, entry)| ChangedPod { name, before: Some(entry.pod) });
        changed.extend(gone);
        self.pods = pods;
        if std::mem::replace(&mut self.has_pods, true) {
            FactChange::from_pods(changed)
        } else {
            FactChange::All
        }
    }

    /// Returns the pod of this name.
    pub fn pod(&self, name: &PodName) -> Option<&Pod> {
        self.pods.get(name).map(|entry| &entry.pod)
    }

    /// Returns all pods, by namespace and name.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values().map(|entry| &entry.pod)
    }

    /// Returns the known ones of these pods, given by UID and name.
    pub fn pods_with(&self, uids: &BTreeMap<PodUid, PodName>) -> impl Iterator<Item = &Pod> {
        let pods = uids.iter().filter_map(|(uid, name)| Some((uid, self.pod(name)?)));
        pods.filter(|(uid, pod)| pod.metadata.uid == **uid).map(|(_, pod)| pod)
    }

    /// Returns all pods, each with the addresses in its status.
    pub fn pods_with_addresses(&self) -> impl Iterator<Item = (&Pod, &[IpAddr])> {
        self.pods.values().map(|entry| (&entry.pod, entry.ips.as_slice()))
    }

    /// Returns the requests of a pod's annotations, as parsed when the index recorded the pod.
    pub fn pod_annotations(&self, name: &PodName) -> Option<&InPodAnnotations> {
        self.pods.get(name).map(|entry| &entry.asked)
    }

    /// Returns the namespace of this name.
    pub fn namespace(&self, name: &str) -> Option<&Namespace> {
        self.namespaces.get(name).map(|entry| &entry.namespace)
    }

    /// Returns the names of all namespaces.
    pub fn namespace_names(&self) -> impl Iterator<Item = &str> {
        self.namespaces.keys().map(String::as_str)
    }

    /// Returns the requests of a namespace for its pods, as parsed when the index recorded the namespace.
    pub fn namespace_exceptions(&self, namespace: &str) -> Option<&RequestedExceptions> {
        self.namespaces.get(namespace).map(|entry| &entry.exceptions)
    }

    /// Returns the objects for which lists are ignored.
    pub fn unconfirmed_objects(&self) -> &UnconfirmedObjects {
        &self.unconfirmed
    }

    /// Whether a complete list of pods was received.
    pub fn has_pods(&self) -> bool {
        self.has_pods
    }

    /// Whether complete lists of pods and namespaces were received. Before that, an object missing here may well exist.
    pub fn is_synced(&self) -> bool {
        self.has_pods && self.has_namespaces
    }
}

impl FactChange {
    fn from_pods(changed: Vec<ChangedPod>) -> FactChange {
        if changed.is_empty() { FactChange::Nothing } else { FactChange::Pods(changed) }
    }
}

/// Returns a list in which the unconfirmed objects are as they are known.
fn keep_unconfirmed<K: Ord + Clone, V: Clone>(
    mut listed: BTreeMap<K, V>,
    known: &BTreeMap<K, V>,
    unconfirmed: &BTreeSet<K>,
) -> BTreeMap<K, V> {
    listed.extend(unconfirmed.iter().filter_map(|name| Some((name.clone(), known.get(name)?.clone()))));
    listed
}

fn named_pod(mut pod: Pod) -> (PodName, IndexEntry) {
    trim_pod(&mut pod);
    let (asked, ips) = (InPodAnnotations::read_from(&pod), pod.status.ips());
    (pod.name(), IndexEntry { pod, asked, ips })
}

fn named_namespace(mut namespace: Namespace) -> (String, NamespaceEntry) {
    trim_namespace(&mut namespace);
    let exceptions = RequestedExceptions::read_from(&namespace.metadata.annotations);
    (namespace.metadata.name.clone(), NamespaceEntry { namespace, exceptions })
}
