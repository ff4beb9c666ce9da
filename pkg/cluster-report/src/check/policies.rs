//! NetworkPolicies that block HBONE to or from mesh pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use model::IpNet;
use report::{CaptureState, RedirectionMode};

use super::lookup::{Lookup, shorten_list};
use crate::{
    finding::{Code, Finding, ObjectName},
    objects::{Pod, REDIRECTION},
    policy::{Blocked, NetworkPolicy, blocks_probes, default_probe_source, outbound_effect, policy_effect},
};

/// Namespace and name.
type PolicyName<'a> = (&'a str, &'a str);

/// A pod, and the source of its probes; `None`: probes are not checked.
type ProbedPod<'a> = (&'a Pod, Option<IpAddr>);

/// Effect of policies, and its description.
type Effect = (Code, &'static str);
const PROBES: Effect =
    (Code::PolicyBlocksProbes, "a probed port is not open to the address that probes of captured pods have");
const OUTBOUND: Effect = (
    Code::PolicyBlocksOutbound,
    "other TCP ports of peers may be connected to, and not TCP port 15008, which those in the mesh have instead",
);

/// Advice appended if the agent has another source of probes than the default.
const PROBES_HINT: &str = "Some networks apply policies to these probes (docs/networks.md#what-every-network-must-do): allow ingress from";

/// Maximum number of pods listed in a message.
const NAMED: usize = 3;

pub(super) fn findings(lookup: &Lookup<'_>) -> Vec<Finding> {
    let reached = reached_by_hbone(lookup);
    let is_reached = |pod: &&Pod| {
        let name = (pod.metadata.namespace.as_str(), pod.metadata.name.as_str());
        pod.is_live() && (reached.contains(&name) || is_annotated(lookup, pod))
    };
    let pods = lookup.cluster.pods.iter().filter(is_reached);
    // Probes of captured pods reveal by themselves whether this network applies policies to them.
    findings_at(pods.map(|pod| (pod, None)), &lookup.cluster.policies, "of the mesh")
}

/// Returns findings about policies that block HBONE or probes of these pods; `which` follows their number in a message.
pub(crate) fn findings_at<'a>(
    pods: impl Iterator<Item = ProbedPod<'a>>,
    all: &'a [NetworkPolicy],
    which: &str,
) -> Vec<Finding> {
    let mut policies: BTreeMap<&str, Vec<&NetworkPolicy>> = BTreeMap::new();
    for policy in all {
        policies.entry(&policy.metadata.namespace).or_default().push(policy);
    }
    let mut found: BTreeMap<(Effect, Vec<PolicyName<'_>>), Vec<ProbedPod<'_>>> = BTreeMap::new();
    for (pod, source) in pods {
        let Some(here) = policies.get(pod.metadata.namespace.as_str()) else { continue };
        let names = |policies: &[&'a NetworkPolicy]| -> Vec<PolicyName<'a>> {
            let name = |policy: &&'a NetworkPolicy| {
                (policy.metadata.namespace.as_str(), policy.metadata.name.as_str())
            };
            policies.iter().map(name).collect()
        };
        let (outbound, closing) = outbound_effect(pod, here.iter().copied());
        if matches!(outbound, Blocked::Hbone | Blocked::SomePeers) {
            found.entry((OUTBOUND, names(&closing))).or_default().push((pod, source));
        }
        let (blocked, selecting) = policy_effect(pod, here.iter().copied());
        let of_probes = source.filter(|source| blocks_probes(pod, &selecting, *source)).map(|_| PROBES);
        for effect in hbone_effect(blocked).into_iter().chain(of_probes) {
            found.entry((effect, names(&selecting))).or_default().push((pod, source));
        }
    }
    found
        .iter()
        .filter_map(|((effect, policies), pods)| policy_finding(*effect, policies, pods, which))
        .collect()
}

/// Returns the pods that ztunnel serves, or will serve.
fn reached_by_hbone<'a>(lookup: &Lookup<'a>) -> BTreeSet<(&'a str, &'a str)> {
    let pods = lookup.cluster.state_reports().flat_map(|(_, state)| &state.pods);
    let ambient = pods.filter(|pod| {
        matches!(pod.mode, Some(RedirectionMode::InPod | RedirectionMode::Node))
            && !matches!(pod.capture, CaptureState::Outside | CaptureState::Leaving)
    });
    ambient.map(|pod| (pod.namespace.as_str(), pod.name.as_str())).collect()
}

/// Whether a pod on a node that did not answer is annotated as captured.
fn is_annotated(lookup: &Lookup<'_>, pod: &Pod) -> bool {
    lookup.cluster.node_state(&pod.spec.node_name).is_none()
        && pod.metadata.annotations.get(REDIRECTION).is_some_and(|value| value == "enabled")
}

fn hbone_effect(blocked: Blocked) -> Option<Effect> {
    match blocked {
        Blocked::No => None,
        Blocked::Hbone => {
            Some((Code::PolicyBlocksHbone, "TCP port 15008 is open to no peer, and other ports are"))
        }
        Blocked::SomePeers => {
            Some((Code::PolicyBlocksSome, "some peers may connect to other ports, and not to TCP port 15008"))
        }
        Blocked::Everything => Some((Code::PolicyBlocksAll, "nothing may connect")),
    }
}

/// Returns one finding for all pods that the same policies select.
fn policy_finding(
    (code, what): Effect,
    policies: &[PolicyName<'_>],
    pods: &[ProbedPod<'_>],
    which: &str,
) -> Option<Finding> {
    let (namespace, name) = policies.first()?;
    let others: Vec<&str> = policies.iter().skip(1).map(|(_, name)| *name).collect();
    let with =
        if others.is_empty() { String::new() } else { format!(" together with {}", others.join(", ")) };
    let noun = report::format_count(pods.len(), "pod");
    let names: Vec<String> = pods.iter().map(|(pod, _)| pod.qualified_name()).collect();
    let message = format!("{what}{with}, at {noun} {which}: {}", shorten_list(&names, NAMED));
    let finding = Finding::new(code, ObjectName::in_namespace("NetworkPolicy", namespace, name), message);
    let other = pods.iter().filter(|(pod, source)| *source != Some(default_probe_source(pod)));
    let sources: BTreeSet<IpAddr> = other.filter_map(|(_, source)| *source).collect();
    if code != Code::PolicyBlocksProbes || sources.is_empty() {
        return Some(finding);
    }
    let sources: Vec<String> = sources.into_iter().map(|source| IpNet::from(source).to_string()).collect();
    let hint = format!("{PROBES_HINT} {}.", shorten_list(&sources, NAMED));
    Some(Finding { hint: report::link_docs(&hint), ..finding })
}
