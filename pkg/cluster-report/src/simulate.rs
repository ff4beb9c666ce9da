//! `millrace simulate`: effect of a change of labels or of the agents' settings on the pods of a cluster, as decided by their
//! nodes' agents, and the resulting problems.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use report::{
    LabelChange, MembershipEffect, NodeSimulation, RedirectionMode, SimulatedChange, SimulatedPod,
    SimulatedProblem, StateReason, exit_status,
};
use serde::Serialize;

use crate::{
    check::{Lookup, label_findings, policy_findings},
    cluster::{Cluster, NodeMessage, mesh_membership},
    finding::{Code, Finding, ObjectName, Severity, complete_findings},
    objects::Pod,
    policy::PortName,
    ztunnel_ports::declared_finding,
};

/// Maximum number of a pod's probes that are listed.
const LISTED_PROBES: usize = 20;

/// Response of a node's agent, or why there is none.
pub type NodeReply = Result<NodeSimulation, String>;

/// Output of `millrace simulate`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimulationReport {
    /// Name and version of the schema.
    pub schema: &'static str,
    /// Simulated change.
    pub change: SimulatedChange,
    /// Whether some nodes did not answer, or some objects could not be read.
    pub partial: bool,
    /// Pods affected by the change: first those that would join or leave, then by name.
    pub pods: Vec<SimulatedRow>,
    /// Problems after the change, sorted by code and object.
    pub findings: Vec<Finding>,
    /// Nodes whose agent did not answer.
    pub unanswered: Vec<NodeMessage>,
}

/// A pod, and its node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SimulatedRow {
    /// Node of the pod.
    pub node: String,
    /// Effect of the change on the pod.
    pub effect: MembershipEffect,
    /// Number of its probes whose source address would change.
    pub probes: usize,
    /// The first of these, at most 20.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listed_probes: Vec<SimulatedProbe>,
    /// Source address of these probes after the change; `None`: no probes change.
    pub probe_source: Option<IpAddr>,
    /// Pod as decided by the agent on that node.
    #[serde(flatten)]
    pub pod: SimulatedPod,
}

/// A probe that connects to a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SimulatedProbe {
    /// Name of its container.
    pub container: String,
    /// Kind: `startup`, `readiness` or `liveness`.
    pub kind: &'static str,
    /// Port to which it connects.
    pub port: PortName,
}

/// Formats such as `app liveness 8080`.
impl fmt::Display for SimulatedProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SimulatedProbe { container, kind, port } = self;
        match port {
            PortName::Number(number) => write!(f, "{container} {kind} {number}"),
            PortName::Name(name) => write!(f, "{container} {kind} {name}"),
        }
    }
}

impl SimulatedRow {
    fn new(node: &str, pod: SimulatedPod) -> SimulatedRow {
        let (node, effect, listed_probes) = (node.to_owned(), pod.effect(), Vec::new());
        SimulatedRow { node, effect, probes: 0, listed_probes, probe_source: None, pod }
    }
}

impl SimulationReport {
    /// Returns the exit status for scripts: 0 if all severities are below `least`; else 2 if something is unknown and nothing would
    /// be unhealthy, and 1 in every other case.
    pub fn status(&self, least: Severity) -> u8 {
        let unknown = self.pods.iter().any(|row| row.effect == MembershipEffect::Unknown);
        let worst = self.findings.iter().map(|finding| finding.severity).max();
        exit_status(worst.max(unknown.then_some(Severity::Unknown)), least)
    }

    /// Returns the number of pods with this effect.
    pub fn count_pods(&self, effect: MembershipEffect) -> usize {
        self.pods.iter().filter(|row| row.effect == effect).count()
    }

    /// Returns the number of open connections of pods that would join: of those that would be reset, or of the others.
    pub fn open_connections(&self, reset: bool) -> usize {
        let joining = self.pods.iter().filter(|row| row.effect == MembershipEffect::Joins);
        joining.filter(|row| row.pod.resets_connections == reset).filter_map(|row| row.pod.connections).sum()
    }
}

/// Combines the agents' responses, by node, with the problems after the change. `cluster` has the objects of the namespace, or of
/// all if settings change.
pub fn simulate_change(
    cluster: &Cluster,
    change: &SimulatedChange,
    replies: &BTreeMap<String, NodeReply>,
) -> SimulationReport {
    let changed = match change {
        SimulatedChange::Labels(change) => changed_cluster(cluster, change),
        SimulatedChange::Settings(_) => live_cluster(cluster),
    };
    let answered = replies.iter().filter_map(|(node, reply)| Some((node, reply.as_ref().ok()?)));
    let rows = answered.flat_map(|(node, simulation)| {
        simulation.pods.iter().map(|pod| SimulatedRow::new(node, pod.clone()))
    });
    let mut pods: Vec<SimulatedRow> = rows.collect();
    pods.extend(unknown_pods(&changed, replies));
    pods.sort_by_cached_key(|row| (row.effect, row.pod.namespace.clone(), row.pod.name.clone()));
    add_probes(&mut pods, &changed.pods, replies);
    let of_agents = replies.iter().flat_map(|(node, reply)| reply_findings(node, reply));
    let mut findings: Vec<Finding> = of_agents.collect();
    findings.extend(declared_ports(&changed, &pods));
    match change {
        SimulatedChange::Labels(_) => {
            findings.extend(label_findings(&Lookup::new(&changed)));
            findings.extend(pods_without_agent(&changed, replies));
        }
        SimulatedChange::Settings(_) => findings.extend(settings_findings(replies)),
    }
    let joining = pods.iter().filter(|row| row.effect == MembershipEffect::Joins);
    let sources: BTreeMap<(&str, &str), Option<IpAddr>> =
        joining.map(|row| ((&*row.pod.namespace, &*row.pod.name), policed_source(row, replies))).collect();
    let joining = changed.pods.iter().filter_map(|pod| {
        let name = (&*pod.metadata.namespace, &*pod.metadata.name);
        Some((pod, *sources.get(&name)?))
    });
    findings.extend(policy_findings(joining, &changed.policies, "that would join"));
    let findings = complete_findings(findings, &cluster.unread);
    let silent = replies.iter().filter_map(|(node, reply)| Some((node, reply.as_ref().err()?)));
    let unanswered: Vec<NodeMessage> =
        silent.map(|(node, why)| NodeMessage { node: node.clone(), message: why.clone() }).collect();
    SimulationReport {
        schema: "millrace.simulate/v1",
        change: change.clone(),
        partial: !unanswered.is_empty() || !cluster.unread.is_empty(),
        pods,
        findings,
        unanswered,
    }
}

/// Returns the objects affected by the change, with their new labels, and the policies.
fn changed_cluster(cluster: &Cluster, change: &LabelChange) -> Cluster {
    let is_concerned =
        |pod: &&Pod| change.concerns_pod(&pod.metadata.namespace, &pod.metadata.name) && pod.is_live();
    let mut pods: Vec<Pod> = cluster.pods.iter().filter(is_concerned).cloned().collect();
    let own = cluster.namespaces.iter().filter(|found| found.metadata.name == change.namespace);
    let mut namespaces: Vec<_> = own.cloned().collect();
    if change.pod.is_some() {
        pods.iter_mut().for_each(|pod| change.apply_to(&mut pod.metadata.labels));
    } else {
        namespaces.iter_mut().for_each(|namespace| change.apply_to(&mut namespace.metadata.labels));
    }
    let policies = cluster.policies.clone();
    Cluster { pods, namespaces, policies, ..Cluster::default() }
}

/// Returns all running pods, and the policies, with unchanged labels.
fn live_cluster(cluster: &Cluster) -> Cluster {
    let pods = cluster.pods.iter().filter(|pod| pod.is_live()).cloned().collect();
    Cluster { pods, policies: cluster.policies.clone(), ..Cluster::default() }
}

/// Returns mistakes and settings that are not simulated: each once, with the number of nodes that report it.
fn settings_findings(replies: &BTreeMap<String, NodeReply>) -> Vec<Finding> {
    let mut reports: BTreeMap<(Code, &str), Vec<&str>> = BTreeMap::new();
    for (node, reply) in replies {
        let Ok(simulation) = reply else { continue };
        let mistakes = simulation.mistakes.iter().map(|text| (Code::SettingsRefused, text.as_str()));
        let others = simulation.not_simulated.iter().map(|text| (Code::SettingNotSimulated, text.as_str()));
        mistakes.chain(others).for_each(|report| reports.entry(report).or_default().push(node));
    }
    let finding = |((code, text), nodes): ((Code, &str), Vec<&str>)| {
        Finding::new(code, ObjectName::cluster(), format!("{text} (nodes: {})", nodes.len()))
    };
    reports.into_iter().map(finding).collect()
}

/// Returns pods of nodes whose agents do not report them.
fn unknown_pods<'a>(
    changed: &'a Cluster,
    replies: &'a BTreeMap<String, NodeReply>,
) -> impl Iterator<Item = SimulatedRow> + 'a {
    let is_known =
        |node: &str| matches!(replies.get(node), Some(Ok(simulation)) if simulation.mistakes.is_empty());
    let is_unknown = move |pod: &&Pod| !pod.spec.node_name.is_empty() && !is_known(&pod.spec.node_name);
    changed.pods.iter().filter(is_unknown).map(|pod| {
        let why = match replies.get(&pod.spec.node_name) {
            Some(Ok(_)) => "an agent with these settings would not start",
            Some(Err(_)) => "the agent of its node did not answer",
            None => "no agent runs on its node",
        };
        let reason = StateReason { code: String::new(), message: why.to_owned() };
        let (namespace, name) = (pod.metadata.namespace.clone(), pod.metadata.name.clone());
        let pod_row = SimulatedPod { namespace, name, reason, undetermined: true, ..SimulatedPod::default() };
        SimulatedRow::new(&pod.spec.node_name, pod_row)
    })
}

/// Adds the probes of pods that would join: the kubelet's packets to them would get another source address.
fn add_probes(rows: &mut [SimulatedRow], pods: &[Pod], replies: &BTreeMap<String, NodeReply>) {
    let named = pods.iter().map(|pod| ((&*pod.metadata.namespace, &*pod.metadata.name), pod));
    let by_name: BTreeMap<(&str, &str), &Pod> = named.collect();
    for row in rows.iter_mut().filter(|row| row.effect == MembershipEffect::Joins) {
        let Some(pod) = by_name.get(&(&*row.pod.namespace, &*row.pod.name)) else { continue };
        let Some(Ok(simulation)) = replies.get(&row.node) else { continue };
        // The kubelet connects to the pod's first address.
        let (count, ip) = (pod.probe_targets().count(), pod.status.ips().first().copied());
        let is_source = |source: &&IpAddr| ip.is_some_and(|ip| ip.is_ipv4() == source.is_ipv4());
        if let Some(source) = simulation.probe_sources.iter().find(is_source).filter(|_| count > 0) {
            (row.probes, row.probe_source) = (count, Some(*source));
            let listed = pod.probe_targets().take(LISTED_PROBES).map(|(container, kind, target)| {
                SimulatedProbe { container: container.name.clone(), kind, port: target.port.clone() }
            });
            row.listed_probes = listed.collect();
        }
    }
}

/// Returns the source of a pod's probes if NetworkPolicies apply to it, which they do not to traffic from the pod's own node.
fn policed_source(row: &SimulatedRow, replies: &BTreeMap<String, NodeReply>) -> Option<IpAddr> {
    let is_of_node = |source: &IpAddr| matches!(replies.get(&row.node), Some(Ok(node)) if node.node_probe_sources.contains(source));
    row.probe_source.filter(|source| !is_of_node(source))
}

/// Returns findings from an agent's response, or about one that did not answer.
fn reply_findings(node: &str, reply: &NodeReply) -> Vec<Finding> {
    match reply {
        Err(why) => vec![Finding::for_node(Code::AgentSilent, node, why)],
        Ok(simulation) => simulation.problems().iter().filter_map(|one| to_finding(node, one)).collect(),
    }
}

fn to_finding(node: &str, problem: &SimulatedProblem<'_>) -> Option<Finding> {
    let code = Code::from_name(problem.code)?;
    let Some(pod) = problem.pod else { return Some(Finding::for_node(code, node, &problem.message)) };
    let object = ObjectName::in_namespace("Pod", &pod.namespace, &pod.name);
    Some(Finding::new(code, object, &problem.message).on_node(node))
}

/// Returns findings about declared ports of pods that would join, or may, and that no agent has examined.
fn declared_ports(changed: &Cluster, rows: &[SimulatedRow]) -> Vec<Finding> {
    let is_unseen = |row: &&SimulatedRow| match row.effect {
        MembershipEffect::Joins => {
            row.pod.after == Some(RedirectionMode::InPod) && row.pod.connections.is_none()
        }
        effect => effect == MembershipEffect::Unknown,
    };
    let unseen = rows.iter().filter(is_unseen);
    let unseen: BTreeMap<_, _> =
        unseen.map(|row| ((&*row.pod.namespace, &*row.pod.name), row.effect)).collect();
    let would_join = |pod: &&Pod| match unseen.get(&(&*pod.metadata.namespace, &*pod.metadata.name)) {
        Some(MembershipEffect::Joins) => true,
        Some(_) => mesh_membership(pod, changed.namespaces.first()) == Some(RedirectionMode::InPod),
        None => false,
    };
    changed.pods.iter().filter(would_join).filter_map(declared_finding).collect()
}

/// Returns findings about nodes without an agent whose pods would belong to ambient mode.
fn pods_without_agent(changed: &Cluster, replies: &BTreeMap<String, NodeReply>) -> Vec<Finding> {
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in &changed.pods {
        let node = pod.spec.node_name.as_str();
        let is_member = mesh_membership(pod, changed.namespaces.first()) == Some(RedirectionMode::InPod);
        if !node.is_empty() && !replies.contains_key(node) && is_member {
            *nodes.entry(node).or_default() += 1;
        }
    }
    let finding = |(node, count): (&str, usize)| {
        let message = format!("it runs no agent, and {count} of its pods would belong to ambient mode");
        Finding::for_node(Code::MeshWithoutAgent, node, message)
    };
    nodes.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests;
