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
    let with_agent = agents_by_node(cluster);
    let mut mesh: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for pod in Lookup::new(cluster).mesh_pods() {
        let node = pod.spec.node_name.as_str();
        if !node.is_empty() && !with_agent.contains_key(node) {
            mesh.entry(node).or_default().push(pod.qualified_name());
        }
    }
    mesh.into_iter()
        .map(|(node, pods)| {
            let pods = shorten_list(&pods, NAMED);
            let message = format!("no agent runs here, and pods of the mesh do: {pods}");
            NodeMessage { node: node.to_owned(), message }
        })
        .collect()
}

fn agents_by_node(cluster: &Cluster) -> BTreeMap<&str, &Pod> {
    let agents = cluster.agents.iter().filter(|pod| !pod.spec.node_name.is_empty() && pod.is_live());
    agents.map(|pod| (pod.spec.node_name.as_str(), pod)).collect()
}

pub(super) fn findings(lookup: &Lookup<'_>) -> Vec<Finding> {
    let cluster = lookup.cluster;
    let with_agent = agents_by_node(cluster);
    let mut all: Vec<Finding> = Vec::new();
    if !cluster.agents.is_empty() || cluster.only_node.is_some() {
        all.extend(nodes_without_agent(lookup, &with_agent));
    }
    let agent = |node: &Node| with_agent.get(node.metadata.name.as_str());
    let is_ready = |node: &&Node| agent(node).is_some_and(|agent| agent.status.is_ready());
    all.extend(cluster.nodes.iter().filter(is_ready).filter_map(taint_finding));
    all.extend(cluster.state_reports().flat_map(|(node, state)| node_findings(node, state)));
    all
}

/// Returns findings about nodes with mesh pods, whether or not nodes can be read, and about others that should run an agent.
fn nodes_without_agent(lookup: &Lookup<'_>, with_agent: &BTreeMap<&str, &Pod>) -> Vec<Finding> {
    let cluster = lookup.cluster;
    let mut uncovered = uncovered_nodes(cluster);
    uncovered.retain(|one| !cluster.has_read("nodes") || lookup.node(&one.node).is_some());
    let has_mesh = |name: &str| uncovered.iter().any(|one| one.node == name);
    let others = cluster.nodes.iter().filter(|node| is_linux(node) && !node.spec.unschedulable);
    let others = others.map(|node| node.metadata.name.as_str());
    let others = others.filter(|name| !with_agent.contains_key(name) && !has_mesh(name));
    let others = others.map(|name| Finding::for_node(Code::NodeWithoutAgent, name, "no agent runs here"));
    let mut all: Vec<Finding> = others.collect();
    let found = uncovered.into_iter();
    all.extend(found.map(|one| Finding::for_node(Code::MeshWithoutAgent, &one.node, one.message)));
    all
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
