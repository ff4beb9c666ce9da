//! `millrace list` and `millrace verify`: rows of all nodes.

use report::{CaptureState, PodState, tables};
use serde::Serialize;

use crate::cluster::{Cluster, NodeMessage};

/// Pods of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodList {
    /// Name and version of this form.
    pub schema: &'static str,
    /// Pods of some nodes are missing.
    pub partial: bool,
    /// Worst first, then by name.
    pub pods: Vec<PodRow>,
    /// Nodes whose agent did not answer, and nodes with pods of the mesh that run no agent.
    pub unanswered: Vec<NodeMessage>,
    /// Parts of nodes that answered which are not known: while there are any, no pod in the list does not mean that there is none.
    pub unknown: Vec<NodeMessage>,
}

/// A pod, and on which node it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodRow {
    /// The pod's node.
    pub node: String,
    /// The pod as the agent on that node reports it.
    #[serde(flatten)]
    pub pod: PodState,
}

/// Differences of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Name and version of this form.
    pub schema: &'static str,
    /// Everything was observed and is as desired.
    pub equal: bool,
    /// Some nodes are missing.
    pub partial: bool,
    /// Every node that answered.
    pub nodes: Vec<NodeDifferences>,
    /// Nodes whose agent did not answer, and nodes with pods of the mesh that run no agent.
    pub unanswered: Vec<NodeMessage>,
}

/// Differences of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeDifferences {
    /// The node.
    pub node: String,
    /// Differences from the desired state.
    pub differences: Vec<String>,
    /// Parts that could not be observed.
    pub unknown: Vec<String>,
}

impl VerifyReport {
    /// 0: everything is as desired; 1: differences; 2: none were found, and not everything was observed.
    pub fn status(&self) -> u8 {
        match self.nodes.iter().any(|node| !node.differences.is_empty()) {
            true => 1,
            false if self.equal => 0,
            false => 2,
        }
    }
}

impl PodList {
    /// 0: listed, and with `bypassing` there is none; 1: with `bypassing` there are some; 2: pods of some nodes are missing, or none
    /// is listed and not everything is known.
    pub fn status(&self, bypassing: bool) -> u8 {
        match self.pods.is_empty() {
            false if bypassing => 1,
            false if !self.partial => 0,
            true if !self.partial && self.unknown.is_empty() => 0,
            _ => 2,
        }
    }
}

/// Pods of nodes that answered: those in a state, if one is meant.
pub fn pod_list(cluster: &Cluster, state: Option<CaptureState>) -> PodList {
    let is_meant = |pod: &&PodState| state.is_none_or(|state| state == pod.capture);
    let rows = cluster.state_reports().flat_map(|(node, state)| {
        let row = |pod: &PodState| PodRow { node: node.to_owned(), pod: pod.clone() };
        state.pods.iter().filter(is_meant).map(row)
    });
    let mut pods: Vec<PodRow> = rows.collect();
    pods.sort_by(|a, b| {
        let key = |row: &PodRow| tables::capture_rank(row.pod.capture);
        key(a).cmp(&key(b)).then_with(|| {
            (&a.pod.namespace, &a.pod.name, &a.node).cmp(&(&b.pod.namespace, &b.pod.name, &b.node))
        })
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

/// Differences of every node that answered.
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
