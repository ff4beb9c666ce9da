//! What is known of a cluster.

use std::collections::BTreeMap;

pub(crate) use enrolment::DATAPLANE_MODE;
use enrolment::{EnrolmentPolicy, PodDecision, decide};
use model::{Namespace, Node};
use report::{RedirectionMode, StateReport};
use serde::Serialize;

use crate::{
    objects::{DaemonSet, Pod},
    policy::NetworkPolicy,
};

/// Everything that was read.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// All pods.
    pub pods: Vec<Pod>,
    /// All namespaces.
    pub namespaces: Vec<Namespace>,
    /// All nodes.
    pub nodes: Vec<Node>,
    /// All NetworkPolicies.
    pub policies: Vec<NetworkPolicy>,
    /// The agents' DaemonSets.
    pub daemon_sets: Vec<DaemonSet>,
    /// The agents' pods.
    pub agents: Vec<Pod>,
    /// The agents' answers, by node.
    pub answers: BTreeMap<String, NodeAnswer>,
    /// Kinds of objects that could not be read.
    pub unread: Vec<UnreadObjects>,
}

/// The answer of a node's agent: the document with its state, or why there is none that can be used.
pub type NodeAnswer = Result<StateReport, String>;

/// A kind of objects that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnreadObjects {
    /// Such as `networkpolicies`.
    pub what: String,
    /// Why.
    pub why: String,
}

/// Why a node did not answer, or what is not known of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NodeMessage {
    /// The node.
    pub node: String,
    /// Why, or what.
    pub message: String,
}

impl Cluster {
    /// Documents of the nodes that answered, by node.
    pub fn state_reports(&self) -> impl Iterator<Item = (&str, &StateReport)> {
        self.answers.iter().filter_map(|(node, answer)| Some((node.as_str(), answer.as_ref().ok()?)))
    }

    /// Nodes whose agent did not answer, by name.
    pub fn unanswered_nodes(&self) -> Vec<NodeMessage> {
        let silent = self.answers.iter().filter_map(|(node, answer)| Some((node, answer.as_ref().err()?)));
        silent.map(|(node, why)| NodeMessage { node: node.clone(), message: why.clone() }).collect()
    }

    /// Whether objects of this kind could be read, so that one that is not there does not exist.
    pub fn has_read(&self, kind: &str) -> bool {
        !self.unread.iter().any(|unread| unread.what == kind)
    }

    /// Leaves out pods, NetworkPolicies and labels of every other namespace. Agents and nodes stay: the pods of this one
    /// depend on them.
    pub fn keep_namespace(&mut self, namespace: &str) {
        self.pods.retain(|pod| pod.metadata.namespace == namespace);
        self.policies.retain(|policy| policy.metadata.namespace == namespace);
        self.namespaces.retain(|found| found.metadata.name == namespace);
        for state in self.answers.values_mut().flatten() {
            state.pods.retain(|pod| pod.namespace == namespace);
        }
    }

    /// The document of a node.
    pub(crate) fn state_of(&self, node: &str) -> Option<&StateReport> {
        self.answers.get(node)?.as_ref().ok()
    }
}

/// By which kind of proxy a pod takes part in the mesh, as an agent with ambient mode and without settings of its own decides it from
/// labels, annotations and containers alone: `Sidecar`, or `InPod` for ambient mode of any capture mode; `None`: it does not. The
/// node's agent knows better, where there is one.
pub fn mesh_membership(pod: &Pod, namespace: Option<&Namespace>) -> Option<RedirectionMode> {
    let policy = EnrolmentPolicy { ambient: true, ..EnrolmentPolicy::default() };
    // Of a namespace that could not be read, no label is known; the pod's own count nevertheless.
    let unread = Namespace::default();
    match decide(&pod.to_decided(), namespace.or(Some(&unread)), &policy) {
        _ if !pod.is_live() => None,
        Ok(PodDecision::Ambient(_)) => Some(RedirectionMode::InPod),
        Ok(PodDecision::Sidecar(_)) | Err(_) => Some(RedirectionMode::Sidecar),
        Ok(PodDecision::Skip(_)) => None,
    }
}
