//! `millrace list` and `millrace verify`: rows of all nodes.

use report::{CaptureState, PodState, tables};
use serde::Serialize;

use crate::cluster::{Cluster, NodeMessage};

/// Pods of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodList {
    /// Name and version of the schema.
    pub schema: &'static str,
    /// Whether pods of some nodes are missing.
    pub partial: bool,
    /// Pods, worst first, then by name.
    pub pods: Vec<PodRow>,
    /// Nodes whose agent did not answer, and nodes with mesh pods that run no agent.
    pub unanswered: Vec<NodeMessage>,
    /// Unknown parts of nodes that answered: unless empty, an empty list of pods may be incomplete.
    pub unknown: Vec<NodeMessage>,
}

/// A pod, and its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodRow {
    /// Node of the pod.
    pub node: String,
    /// Pod as reported by the agent on that node.
    #[serde(flatten)]
    pub pod: PodState,
}

/// Differences of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Name and version of the schema.
    pub schema: &'static str,
    /// Whether everything was observed and matches the desired state.
    pub equal: bool,
    /// Whether some nodes are missing.
    pub partial: bool,
    /// All nodes that answered.
    pub nodes: Vec<NodeDifferences>,
    /// Nodes whose agent did not answer, and nodes with mesh pods that run no agent.
    pub unanswered: Vec<NodeMessage>,
}

/// Differences of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeDifferences {
    /// Name of the node.
    pub node: String,
    /// Differences from the desired state.
    pub differences: Vec<String>,
    /// Parts that could not be observed.
    pub unknown: Vec<String>,
}

impl VerifyReport {
    /// Returns the exit status: 0: everything matches the desired state; 1: differences; 2: none were found, but not everything was
    /// observed.
    pub fn status(&self) -> u8 {
        match self.nodes.iter().any(|node| !node.differences.is_empty()) {
            true => 1,
            false if self.equal => 0,
            false => 2,
        }
    }
}

impl PodList {
    /// Returns the exit status: 0: listed, and with `bypassing` the list is empty; 1: with `bypassing` it is not; 2: pods of some
    /// nodes are missing, or the list is empty and not everything is known.
    pub fn status(&self, bypassing: bool) -> u8 {
        match self.pods.is_empty() {
            false if bypassing => 1,
            false if !self.partial => 0,
            true if !self.partial && self.unknown.is_empty() => 0,
            _ => 2,
        }
    }
}

/// Returns the pods of nodes that answered: those in `state`, if given.
pub fn pod_list(cluster: &Cluster, state: Option<CaptureState>) -> PodList {
    let is_meant = |pod: &&PodState| state.is_none_or(|state| state == pod.capture);
    let rows = cluster.state_reports().flat_map(|(node, state)| {
        let row = |pod: &PodState| PodRow { node: node.to_owned(), pod: pod.clone() };
        state.pods.iter().filter(is_meant).map(row)
    });
    let mut pods: Vec<PodRow> = rows.collect();
    pods.sort_by_cached_key(|PodRow { node, pod }| {
        (tables::capture_rank(pod.capture), pod.namespace.clone(), pod.name.clone(), node.clone())
    });
    let unanswered = cluster.unanswered_nodes();
    let unknown = cluster.state_reports().flat_map(|(node, state)| {
        let doubts = tables::empty_list_doubts(state).into_iter();
        doubts.map(|message| NodeMessage { node: node.to_owned(), message })
    });
    let unknown = unknown.collect();
    let partial = !unanswered.is_empty()
        || !cluster.unread.is_empty()
        || cluster.answers.is_empty()
        || cluster.state_reports().any(|(_, state)| !state.knows_all_pods());
    PodList { schema: "millrace.pods/v1", partial, pods, unanswered, unknown }
}

/// Returns the differences of every node that answered.
pub fn verify_cluster(cluster: &Cluster) -> VerifyReport {
    let nodes = cluster.state_reports().map(|(node, state)| NodeDifferences {
        node: node.to_owned(),
        differences: tables::verification_findings(state),
        unknown: tables::not_known(state),
    });
    let nodes: Vec<NodeDifferences> = nodes.collect();
    let unanswered = cluster.unanswered_nodes();
    let partial = !unanswered.is_empty() || !cluster.unread.is_empty();
    let well = |node: &NodeDifferences| node.differences.is_empty() && node.unknown.is_empty();
    VerifyReport {
        schema: "millrace.verify/v1",
        equal: !partial && !nodes.is_empty() && nodes.iter().all(well),
        partial,
        nodes,
        unanswered,
    }
}
