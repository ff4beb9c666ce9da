//! NetworkPolicies that keep HBONE from pods of the mesh.

use std::collections::{BTreeMap, BTreeSet};

use report::{CaptureState, RedirectionMode};

use super::lookup::{Lookup, shorten_list};
use crate::{
    finding::{Code, Finding, ObjectName},
    objects::{Pod, REDIRECTION},
    policy::{Blocked, NetworkPolicy, policy_effect},
};

/// Namespace and name.
type PolicyName<'a> = (&'a str, &'a str);

/// Pods that a message names.
const NAMED: usize = 3;

pub(super) fn findings(lookup: &Lookup<'_>) -> Vec<Finding> {
    let reached = reached_by_hbone(lookup);
    let is_reached = |pod: &&Pod| {
        let name = (pod.metadata.namespace.as_str(), pod.metadata.name.as_str());
        pod.is_live() && (reached.contains(&name) || is_annotated(lookup, pod))
    };
    findings_at(lookup.cluster.pods.iter().filter(is_reached), &lookup.cluster.policies, "of the mesh")
}

/// Policies that keep HBONE from these pods; `which` follows their number in a message.
pub(crate) fn findings_at<'a>(
    pods: impl Iterator<Item = &'a Pod>,
    all: &'a [NetworkPolicy],
    which: &str,
) -> Vec<Finding> {
    let mut policies: BTreeMap<&str, Vec<&NetworkPolicy>> = BTreeMap::new();
    for policy in all {
        policies.entry(&policy.metadata.namespace).or_default().push(policy);
    }
    let mut found: BTreeMap<(Blocked, Vec<PolicyName<'_>>), Vec<String>> = BTreeMap::new();
    for pod in pods {
        let Some(here) = policies.get(pod.metadata.namespace.as_str()) else { continue };
        let (blocked, selecting) = policy_effect(pod, here.iter().copied());
        if blocked != Blocked::No {
            let names = selecting
                .iter()
                .map(|policy| (policy.metadata.namespace.as_str(), policy.metadata.name.as_str()));
            found.entry((blocked, names.collect())).or_default().push(pod.qualified_name());
        }
    }
    found
        .iter()
        .filter_map(|((blocked, policies), pods)| policy_finding(*blocked, policies, pods, which))
        .collect()
}

/// Pods that ztunnel serves, or will.
fn reached_by_hbone<'a>(lookup: &Lookup<'a>) -> BTreeSet<(&'a str, &'a str)> {
    let pods = lookup.cluster.state_reports().flat_map(|(_, state)| &state.pods);
    let ambient = pods.filter(|pod| {
        matches!(pod.mode, Some(RedirectionMode::InPod | RedirectionMode::Node))
            && !matches!(pod.capture, CaptureState::Outside | CaptureState::Leaving)
    });
    ambient.map(|pod| (pod.namespace.as_str(), pod.name.as_str())).collect()
}

/// Of a node that did not answer, the annotation speaks.
fn is_annotated(lookup: &Lookup<'_>, pod: &Pod) -> bool {
    lookup.cluster.state_of(&pod.spec.node_name).is_none()
        && pod.metadata.annotations.get(REDIRECTION).is_some_and(|value| value == "enabled")
}

/// One for all pods that the same policies select.
fn policy_finding(
    blocked: Blocked,
    policies: &[PolicyName<'_>],
    pods: &[String],
    which: &str,
) -> Option<Finding> {
    let (code, what) = match blocked {
        Blocked::No => return None,
        Blocked::Hbone => (Code::PolicyBlocksHbone, "TCP port 15008 is open to no one, and other ports are"),
        Blocked::SomePeers => {
            (Code::PolicyBlocksSome, "some peers may connect to other ports, and not to TCP port 15008")
        }
        Blocked::Everything => (Code::PolicyBlocksAll, "nothing may connect"),
    };
    let (namespace, name) = policies.first()?;
    let others: Vec<&str> = policies.iter().skip(1).map(|(_, name)| *name).collect();
    let with =
        if others.is_empty() { String::new() } else { format!(" together with {}", others.join(", ")) };
    let noun = if pods.len() == 1 { "1 pod".to_owned() } else { format!("{} pods", pods.len()) };
    let message = format!("{what}{with}, at {noun} {which}: {}", shorten_list(pods, NAMED));
    Some(Finding::new(code, ObjectName::in_namespace("NetworkPolicy", namespace, name), message))
}
