//! Nodes: whether each runs an agent and can capture pods.

use std::collections::BTreeMap;

use model::Node;
use report::{PreflightCheck, StateReport};

use super::lookup::{Lookup, shorten_list};
use crate::{
    cluster::{Cluster, NodeMessage},
    finding::{Code, Finding, Severity},
    objects::{Pod, is_linux},
};

/// Taints of nodes whose agent is not ready: that of Istio up to 1.17 (`istio-cni-taint`), and that of istiod's untaint controller.
const TAINTS: [&str; 2] = ["NodeReadiness", "cni.istio.io/not-ready"];
/// Maximum number of a node's differences listed in a message.
const NAMED: usize = 2;

/// Returns the nodes with mesh pods, according to labels, and without an agent, each with the reason why its state is unknown.
pub fn uncovered_nodes(cluster: &Cluster) -> Vec<NodeMessage> {
    let (lookup, with_agent) = (Lookup::new(cluster), agents_by_node(cluster));
    let is_uncovered = |node: &&str| !node.is_empty() && !with_agent.contains_key(node);
    let uncovered = mesh_by_node(&lookup).into_iter().filter(|(node, _)| is_uncovered(node));
    uncovered
        .map(|(node, pods)| NodeMessage { node: node.to_owned(), message: uncovered_message(&pods) })
        .collect()
}

fn agents_by_node(cluster: &Cluster) -> BTreeMap<&str, &Pod> {
    let agents = cluster.agents.iter().filter(|pod| !pod.spec.node_name.is_empty() && pod.is_live());
    agents.map(|pod| (pod.spec.node_name.as_str(), pod)).collect()
}

fn mesh_by_node<'a>(lookup: &Lookup<'a>) -> BTreeMap<&'a str, Vec<String>> {
    let mut mesh: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for pod in lookup.mesh_pods() {
        mesh.entry(&pod.spec.node_name).or_default().push(pod.qualified_name());
    }
    mesh
}

fn uncovered_message(pods: &[String]) -> String {
    format!("no agent runs here, and pods of the mesh do: {}", shorten_list(pods, NAMED))
}

pub(super) fn findings(lookup: &Lookup<'_>) -> Vec<Finding> {
    let (with_agent, mesh) = (agents_by_node(lookup.cluster), mesh_by_node(lookup));
    let mut all: Vec<Finding> = Vec::new();
    if !lookup.cluster.agents.is_empty() || lookup.cluster.only_node.is_some() {
        let without =
            lookup.cluster.nodes.iter().filter(|node| !with_agent.contains_key(node.metadata.name.as_str()));
        all.extend(without.filter_map(|node| without_agent(node, &mesh)));
    }
    let agent = |node: &Node| with_agent.get(node.metadata.name.as_str());
    let is_ready = |node: &&Node| agent(node).is_some_and(|agent| agent.status.is_ready());
    let ready = lookup.cluster.nodes.iter().filter(is_ready);
    all.extend(ready.filter_map(taint_finding));
    all.extend(lookup.cluster.state_reports().flat_map(|(node, state)| node_findings(node, state)));
    all
}

fn without_agent(node: &Node, mesh: &BTreeMap<&str, Vec<String>>) -> Option<Finding> {
    let name = &node.metadata.name;
    match mesh.get(name.as_str()) {
        Some(pods) => Some(Finding::for_node(Code::MeshWithoutAgent, name, uncovered_message(pods))),
        None if is_linux(node) && !node.spec.unschedulable => {
            Some(Finding::for_node(Code::NodeWithoutAgent, name, "no agent runs here"))
        }
        None => None,
    }
}

fn taint_finding(node: &Node) -> Option<Finding> {
    let taint = node.spec.taints.iter().find(|taint| TAINTS.contains(&taint.key.as_str()))?;
    let name = &node.metadata.name;
    let message = format!("it has the taint {}:{}, and its agent is ready", taint.key, taint.effect);
    Some(Finding::for_node(Code::NodeTainted, name, message))
}

fn node_findings(node: &str, state: &StateReport) -> Vec<Finding> {
    let finding = |code, message| Finding::for_node(code, node, message);
    let drifted = state.installation.iter().filter(|file| !file.correct);
    let mut all: Vec<Finding> = drifted
        .map(|file| {
            finding(Code::InstallationDamaged, format!("{} {}: {}", file.kind, file.path, file.message))
        })
        .collect();
    all.extend(state.node.problem.iter().map(|why| finding(Code::NodeDegraded, why.clone())));
    all.extend(match state.preflight.as_slice() {
        [] => {
            let why = "its agent has not checked the node yet, or is of a version that does not";
            vec![unchecked_node(node, why)]
        }
        checks => preflight_findings(node, checks),
    });
    if state.node.ambient_enabled && state.node.synced {
        let names: Vec<String> = state.ztunnels.iter().map(|ztunnel| ztunnel.name.clone()).collect();
        let message = match names.as_slice() {
            [] => Some("no ztunnel runs here".to_owned()),
            _ if state.ztunnels.iter().any(|ztunnel| ztunnel.ready) => {
                report::missing_ztunnel(state).map(str::to_owned)
            }
            names => Some(format!("{} is not ready", names.join(", "))),
        };
        all.extend(message.map(|message| finding(Code::ZtunnelNotReady, message)));
    }
    let drift: Vec<String> =
        state.network.differences().map(|(kind, found)| format!("{kind}: {found}")).collect();
    if !drift.is_empty() {
        all.push(finding(Code::NodeDrift, shorten_list(&drift, NAMED)));
    }
    all.extend(state.network.conflicts().map(|what| finding(Code::ForeignObjects, what.to_owned())));
    all
}

/// Returns a finding about a node that was not checked, and why.
pub(crate) fn unchecked_node(node: &str, why: &str) -> Finding {
    Finding { severity: Severity::Unknown, ..Finding::for_node(Code::NodePreflight, node, why) }
}

/// Returns the findings of a node's own checks.
pub(crate) fn preflight_findings(node: &str, checks: &[PreflightCheck]) -> Vec<Finding> {
    let failed = checks.iter().filter_map(|check| {
        let message = format!("{} ({}). {}", check.message, check.code, check.consequence);
        let finding = Finding::for_node(Code::NodePreflight, node, message.trim_end_matches(". "));
        let (hint, link) = (report::sanitize_text(&check.advice), report::sanitize_text(&check.link));
        Some(Finding { severity: check.severity?, check: Some(check.code.clone()), hint, link, ..finding })
    });
    failed.collect()
}
