//! Computes the missing requirements of each node from observed nodes and pods. Pure computation; state is added by
//! [`NodeIndex::observe`].

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use kube_api::{ListEvent, TaintChange};
use model::PodName;

use crate::{ObservedNode, PodRequirement, ReadinessConfig, ReadinessPod};

/// A watch event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeObservation {
    /// Event of the node watch.
    Nodes(ListEvent<ObservedNode>),
    /// Event of the watch for the pods of a requirement, by its index in the configuration.
    Pods(usize, ListEvent<ReadinessPod>),
}

/// Whether pods may be scheduled to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeVerdict {
    /// Nodes or pods have not all been listed yet, or the node does not exist: its taint stays unchanged.
    Unknown,
    /// The node is ready, and so is a pod of each requirement.
    Pass,
    /// The node's condition `Ready` is not `True`.
    NotReady,
    /// The node has no ready pod of this requirement.
    Lacks(PodRequirement),
}

/// Ready pods of one requirement, by node.
#[derive(Debug)]
struct RequiredPods {
    requirement: PodRequirement,
    is_listed: bool,
    node_of: BTreeMap<PodName, String>,
    on: BTreeMap<String, usize>,
}

/// All observed state.
#[derive(Debug)]
pub struct NodeIndex {
    nodes: BTreeMap<String, ObservedNode>,
    are_nodes_listed: bool,
    required: Vec<RequiredPods>,
}

type NodeNames = BTreeSet<String>;

impl RequiredPods {
    fn new(requirement: PodRequirement) -> RequiredPods {
        RequiredPods { requirement, is_listed: false, node_of: BTreeMap::new(), on: BTreeMap::new() }
    }

    /// Applies an event; returns the affected nodes.
    fn observe_pods(&mut self, event: ListEvent<ReadinessPod>) -> NodeNames {
        match event {
            ListEvent::Reset(pods) => {
                self.is_listed = true;
                let before = mem::take(&mut self.on);
                self.node_of.clear();
                let now = pods.into_iter().flat_map(|pod| self.apply_pod(pod));
                now.collect::<NodeNames>().into_iter().chain(before.into_keys()).collect()
            }
            ListEvent::Applied(pod) => self.apply_pod(pod),
            ListEvent::Deleted(pod) => self.remove_pod(&pod.name),
        }
    }

    fn apply_pod(&mut self, pod: ReadinessPod) -> NodeNames {
        let mut concerned = self.remove_pod(&pod.name);
        if pod.is_ready && !pod.node.is_empty() {
            *self.on.entry(pod.node.clone()).or_default() += 1;
            concerned.insert(pod.node.clone());
            self.node_of.insert(pod.name, pod.node);
        }
        concerned
    }

    fn remove_pod(&mut self, name: &PodName) -> NodeNames {
        let Some(node) = self.node_of.remove(name) else { return NodeNames::new() };
        if let Some(count) = self.on.get_mut(&node) {
            *count -= 1;
            if *count == 0 {
                self.on.remove(&node);
            }
        }
        NodeNames::from([node])
    }
}

impl NodeIndex {
    /// Creates an index without observations.
    pub fn new(config: &ReadinessConfig) -> NodeIndex {
        let required = config.requirements.iter().cloned().map(RequiredPods::new).collect();
        NodeIndex { nodes: BTreeMap::new(), are_nodes_listed: false, required }
    }

    /// Applies an observation. Returns the nodes whose verdict or taint it may have changed: all of them when the last list has
    /// arrived.
    pub fn observe(&mut self, observation: NodeObservation) -> BTreeSet<String> {
        let was_complete = self.is_complete();
        let concerned = match observation {
            NodeObservation::Nodes(event) => self.observe_nodes(event),
            NodeObservation::Pods(number, event) => {
                self.required.get_mut(number).map(|pods| pods.observe_pods(event)).unwrap_or_default()
            }
        };
        if self.is_complete() && !was_complete { self.nodes.keys().cloned().collect() } else { concerned }
    }

    fn observe_nodes(&mut self, event: ListEvent<ObservedNode>) -> NodeNames {
        match event {
            ListEvent::Reset(nodes) => {
                self.are_nodes_listed = true;
                let before = mem::take(&mut self.nodes);
                self.nodes = nodes.into_iter().map(|node| (node.name.clone(), node)).collect();
                before.into_keys().chain(self.nodes.keys().cloned()).collect()
            }
            ListEvent::Applied(node) => {
                let concerned = NodeNames::from([node.name.clone()]);
                self.nodes.insert(node.name.clone(), node);
                concerned
            }
            ListEvent::Deleted(node) => {
                self.nodes.remove(&node.name);
                NodeNames::from([node.name])
            }
        }
    }

    /// Whether everything has been listed once.
    pub fn is_complete(&self) -> bool {
        self.are_nodes_listed && self.required.iter().all(|pods| pods.is_listed)
    }

    /// Whether pods may be scheduled to a node.
    pub fn verdict(&self, node: &str) -> NodeVerdict {
        let Some(node) = self.nodes.get(node).filter(|_| self.is_complete()) else {
            return NodeVerdict::Unknown;
        };
        if !node.is_ready {
            return NodeVerdict::NotReady;
        }
        let lacking = self.required.iter().find(|pods| !pods.on.contains_key(&node.name));
        lacking.map_or(NodeVerdict::Pass, |pods| NodeVerdict::Lacks(pods.requirement.clone()))
    }

    /// Returns the change that a node's taint needs; `None` if it needs none, or the change cannot be determined.
    pub fn needed_change(&self, node: &str) -> Option<TaintChange> {
        let is_tainted = self.nodes.get(node)?.is_tainted;
        match (self.verdict(node), is_tainted) {
            (NodeVerdict::Pass, true) => Some(TaintChange::Remove),
            (NodeVerdict::NotReady | NodeVerdict::Lacks(_), false) => Some(TaintChange::Add),
            _ => None,
        }
    }

    /// Returns the number of nodes, and of tainted nodes.
    pub fn node_counts(&self) -> (usize, usize) {
        (self.nodes.len(), self.nodes.values().filter(|node| node.is_tainted).count())
    }
}

#[cfg(test)]
mod tests;
