//! State of a cluster.

use std::collections::BTreeMap;

pub(crate) use enrolment::DATAPLANE_MODE;
use enrolment::{EnrolmentPolicy, PodDecision, decide};
use model::{DaemonSet, Namespace, Node};
use report::{RedirectionMode, StateReport};
use serde::Serialize;

use crate::{objects::Pod, policy::NetworkPolicy};

/// All objects and answers that were read.
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
    /// DaemonSets of agents.
    pub daemon_sets: Vec<DaemonSet>,
    /// Pods of agents.
    pub agents: Vec<Pod>,
    /// Answers of agents, by node.
    pub answers: BTreeMap<String, NodeAnswer>,
    /// Node to which nodes, agents and pods are restricted; `None`: all were read.
    pub only_node: Option<String>,
    /// Kinds of objects that could not be read.
    pub unread: Vec<UnreadObjects>,
}

/// Answer of a node's agent: its state document, or why there is no usable one.
pub type NodeAnswer = Result<StateReport, String>;

/// A kind of objects that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnreadObjects {
    /// Resource, such as `networkpolicies`.
    pub what: String,
    /// Error.
    pub why: String,
}

/// A message about a node, such as why it did not answer, or what is unknown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct NodeMessage {
    /// Name of the node.
    pub node: String,
    /// Text of the message.
    pub message: String,
}

impl Cluster {
    /// Returns the documents of the nodes that answered, by node.
    pub fn state_reports(&self) -> impl Iterator<Item = (&str, &StateReport)> {
        self.answers.iter().filter_map(|(node, answer)| Some((node.as_str(), answer.as_ref().ok()?)))
    }

    /// Returns the nodes whose agent did not answer, by name.
    pub fn unanswered_nodes(&self) -> Vec<NodeMessage> {
        let silent = self.answers.iter().filter_map(|(node, answer)| Some((node, answer.as_ref().err()?)));
        silent.map(|(node, why)| NodeMessage { node: node.clone(), message: why.clone() }).collect()
    }

    /// Whether objects of this kind could be read, so that a missing one does not exist.
    pub fn has_read(&self, kind: &str) -> bool {
        !self.unread.iter().any(|unread| unread.what == kind)
    }

    /// Returns a number of nodes; `None`: they could not be read.
    pub(crate) fn node_count(&self, count: usize) -> Option<usize> {
        self.has_read("nodes").then_some(count)
    }

    /// Removes pods, NetworkPolicies and labels of every other namespace. Agents and nodes are kept: the pods of this one depend on
    /// them.
    pub fn keep_namespace(&mut self, namespace: &str) {
        self.pods.retain(|pod| pod.metadata.namespace == namespace);
        self.policies.retain(|policy| policy.metadata.namespace == namespace);
        self.namespaces.retain(|found| found.metadata.name == namespace);
        for state in self.answers.values_mut().flatten() {
            state.pods.retain(|pod| pod.namespace == namespace);
        }
    }

    /// Returns the document of a node.
    pub(crate) fn node_state(&self, node: &str) -> Option<&StateReport> {
        self.answers.get(node)?.as_ref().ok()
    }
}

/// Returns the kind of proxy by which a pod is in the mesh, as decided by an agent with ambient mode and default settings from
/// labels, annotations and containers alone: `Sidecar`, or `InPod` for ambient mode of any capture mode; `None`: not in the mesh.
/// The decision of the node's agent, if there is one, takes precedence.
pub fn mesh_membership(pod: &Pod, namespace: Option<&Namespace>) -> Option<RedirectionMode> {
    let policy = EnrolmentPolicy { ambient: true, ..EnrolmentPolicy::default() };
    // The labels of an unread namespace are unknown; the pod's own are evaluated nevertheless.
    let unread = Namespace::default();
    match decide(&pod.to_decided(), namespace.or(Some(&unread)), &policy) {
        _ if !pod.is_live() => None,
        Ok(PodDecision::Ambient(_)) => Some(RedirectionMode::InPod),
        Ok(PodDecision::Sidecar(_)) | Err(_) => Some(RedirectionMode::Sidecar),
        Ok(PodDecision::Skip(_)) => None,
    }
}
