//! Agents: whether they exist, run, answer, and are healthy.

use std::collections::BTreeMap;

use model::DaemonSet;
use report::{Observer, StatePart, StateReport};

use super::lookup::{Lookup, shorten_list};
use crate::{
    finding::{Code, Finding, ObjectName},
    objects::Pod,
};

/// Maximum number of nodes listed in a message.
const NAMED: usize = 3;

pub(super) fn findings(lookup: &Lookup<'_>) -> Vec<Finding> {
    let cluster = lookup.cluster;
    let mut all = Vec::new();
    if cluster.agents.is_empty() && cluster.only_node.is_none() {
        all.push(Finding::new(Code::NoAgents, ObjectName::cluster(), "no pod has the agents' label"));
    }
    all.extend(rollout_findings(lookup));
    all.extend(version_finding(lookup));
    all.extend(cluster.agents.iter().filter(|pod| pod.metadata.deleted.is_none()).filter_map(not_ready));
    for (node, answer) in &cluster.answers {
        match answer {
            Err(why) => {
                let unwell = lookup.node(node).is_some_and(|node| !node.is_ready());
                let ready = if unwell { " (the node is not ready)" } else { "" };
                all.push(Finding::for_node(Code::AgentSilent, node, format!("{why}{ready}")));
            }
            Ok(state) => all.extend(agent_findings(node, state)),
        }
    }
    all
}

fn rollout_findings(lookup: &Lookup<'_>) -> Vec<Finding> {
    lookup.cluster.daemon_sets.iter().filter_map(rollout_finding).collect()
}

fn rollout_finding(set: &DaemonSet) -> Option<Finding> {
    let (metadata, status) = (&set.metadata, &set.status);
    let (desired, ready, new) =
        (status.desired_number_scheduled, status.number_ready, status.updated_number_scheduled);
    let message = if status.observed_generation < metadata.generation {
        "its last change has not been rolled out yet".to_owned()
    } else if ready < desired || new < desired {
        format!("{ready} of {desired} pods are ready, {new} are of the newest revision")
    } else {
        return None;
    };
    let object = ObjectName::in_namespace("DaemonSet", &metadata.namespace, &metadata.name);
    Some(Finding::new(Code::RolloutIncomplete, object, message))
}

fn version_finding(lookup: &Lookup<'_>) -> Option<Finding> {
    let mut by_version: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (node, state) in lookup.cluster.state_reports() {
        by_version.entry(&state.version).or_default().push(node.to_owned());
    }
    let mut versions: Vec<_> = by_version.into_iter().collect();
    versions.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
    let describe = |(version, nodes): &(&str, Vec<String>)| {
        format!("{version} on {} nodes ({})", nodes.len(), shorten_list(nodes, NAMED))
    };
    let all: Vec<String> = versions.iter().map(describe).collect();
    let message = all.join("; ");
    (all.len() > 1).then(|| Finding::new(Code::VersionsDiffer, ObjectName::cluster(), message))
}

fn not_ready(pod: &Pod) -> Option<Finding> {
    let node = &pod.spec.node_name;
    let place = if node.is_empty() { ", not scheduled".to_owned() } else { format!(" (node {node})") };
    let message = pod.phase_summary() + &place;
    let object = ObjectName::in_namespace("Pod", &pod.metadata.namespace, &pod.metadata.name);
    (!pod.status.is_ready()).then(|| Finding::new(Code::AgentNotReady, object, message).on_node(node))
}

fn agent_findings(node: &str, state: &StateReport) -> Vec<Finding> {
    let finding = |code, message| Finding::for_node(code, node, message);
    let unwell = state.health.iter().filter(|part| !part.healthy);
    let mut all: Vec<Finding> = unwell
        .map(|part| finding(Code::AgentUnhealthy, format!("{}: {}", part.component, part.message)))
        .collect();
    if state.observation.observer == Observer::Command {
        let message = "it does not answer: a command has observed the node in its place";
        all.push(finding(Code::AgentSilent, message.to_owned()));
    }
    if state.node.ambient_enabled && !state.node.synced {
        let message = "its agent has not read pods and namespaces completely since its start";
        all.push(finding(Code::NotSynced, message.to_owned()));
    }
    all.extend(state.observation.unobserved.iter().map(|unobserved| {
        let code =
            if unobserved.part == StatePart::UnrecordedPods { Code::NoRecords } else { Code::NotObserved };
        finding(code, format!("{}: {}", unobserved.description, unobserved.message))
    }));
    all
}
