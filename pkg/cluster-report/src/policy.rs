//! Evaluation of NetworkPolicies for HBONE and probes of mesh pods.
//!
//! ztunnel sends traffic between mesh pods as HBONE, to TCP port 15008 of the destination pod. A policy that lists the
//! application's ports without this one blocks all of it, although its author may not expect so.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use model::{IpNet, LabelRequirement, ObjectMeta};
use serde::{Deserialize, Serialize};

use crate::objects::Pod;

/// Port on which ztunnel accepts connections of other ztunnels and gateways.
pub const HBONE: u16 = 15008;

/// Default source of the kubelet's probes of a captured pod, in Istio and in the agent (docs/networks.md).
const PROBE_SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 7, 127));
/// Source of probes of a pod whose first address is IPv6.
const PROBE_SOURCE_V6: IpAddr =
    IpAddr::V6(Ipv6Addr::new(0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff));

/// Port of DNS, which is not sent to peers in the mesh.
const DNS: u16 = 53;

/// A NetworkPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NetworkPolicy {
    /// Namespace and name.
    pub metadata: ObjectMeta,
    /// Specification of the policy.
    pub spec: PolicySpec,
}

/// Specification of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicySpec {
    /// Pods of its namespace that it selects.
    pub pod_selector: Selector,
    /// Types: `Ingress`, `Egress`; empty: ingress, and egress if it has egress rules.
    pub policy_types: Vec<String>,
    /// Rules that allow ingress.
    pub ingress: Vec<PolicyRule>,
    /// Rules that allow egress.
    pub egress: Vec<PolicyRule>,
}

/// A rule that allows connections: ingress or egress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PolicyRule {
    /// Sources or destinations; empty: any.
    #[serde(alias = "from", alias = "to")]
    pub peers: Vec<Peer>,
    /// Ports; empty: all.
    pub ports: Vec<PolicyPort>,
}

/// A peer of allowed connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Peer {
    /// Pod selector; `None`: all pods of the namespaces.
    pub pod_selector: Option<Selector>,
    /// Namespace selector; `None`: the policy's own namespace.
    pub namespace_selector: Option<Selector>,
    /// Addresses.
    pub ip_block: Option<IpBlock>,
}

/// A block of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IpBlock {
    /// Prefix.
    pub cidr: String,
    /// Excluded prefixes within it.
    pub except: Vec<String>,
}

/// Ports of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyPort {
    /// Protocol; `None`: TCP.
    pub protocol: Option<String>,
    /// Port; `None`: all.
    pub port: Option<PortName>,
    /// Last port of a range that begins with `port`.
    pub end_port: Option<u16>,
}

/// A port by number, or by the name that a container assigns to it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum PortName {
    /// Number of the port.
    Number(u16),
    /// Name of the port.
    Name(String),
}

/// A label selector; an empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Selector {
    /// Labels with their values.
    pub match_labels: BTreeMap<String, String>,
    /// Requirements, all of which must hold.
    pub match_expressions: Vec<LabelRequirement>,
}

/// Effect on HBONE of the policies that select a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocked {
    /// No effect: every peer that may connect to any port may connect to the port of HBONE.
    No,
    /// Some peers may connect to other ports, but not to the port of HBONE.
    SomePeers,
    /// All ingress is blocked, with or without the mesh.
    Everything,
    /// Other ports are allowed, but the port of HBONE for no peer.
    Hbone,
}

impl Selector {
    /// Whether the selector matches an object with these labels. A requirement with an unknown operator matches nothing.
    pub fn matches_labels(&self, labels: &BTreeMap<String, String>) -> bool {
        let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        self.match_labels.iter().all(equal)
            && self.match_expressions.iter().all(|term| term.is_met_by(labels) == Some(true))
    }
}

impl NetworkPolicy {
    /// Whether the policy restricts ingress to this pod.
    pub fn isolates_pod(&self, pod: &Pod) -> bool {
        let types = &self.spec.policy_types;
        self.selects_pod(pod) && (types.is_empty() || types.iter().any(|kind| kind == "Ingress"))
    }

    /// Whether the policy restricts egress of this pod.
    fn isolates_outbound(&self, pod: &Pod) -> bool {
        let types = &self.spec.policy_types;
        let by_rules = types.is_empty() && !self.spec.egress.is_empty();
        self.selects_pod(pod) && (by_rules || types.iter().any(|kind| kind == "Egress"))
    }

    fn selects_pod(&self, pod: &Pod) -> bool {
        self.metadata.namespace == pod.metadata.namespace
            && self.spec.pod_selector.matches_labels(&pod.metadata.labels)
    }
}

impl PolicyRule {
    fn opens_port(&self, number: u16, pod: &Pod) -> bool {
        self.ports.is_empty() || self.ports.iter().any(|port| port.includes_port(number, pod))
    }

    /// Whether the rule applies to connections that may be HBONE: not to DNS alone, and not to address blocks, which are for peers
    /// outside the mesh.
    fn concerns_peers(&self) -> bool {
        let is_dns = |port: &PolicyPort| port.port == Some(PortName::Number(DNS));
        let is_address = |peer: &Peer| peer.ip_block.is_some();
        (self.ports.is_empty() || !self.ports.iter().all(is_dns))
            && (self.peers.is_empty() || !self.peers.iter().all(is_address))
    }

    fn admits_address(&self, address: IpAddr) -> bool {
        let mut blocks = self.peers.iter().filter_map(|peer| peer.ip_block.as_ref());
        self.peers.is_empty() || blocks.any(|block| block.contains_address(address))
    }

    /// Whether every peer of `other` is a peer of this rule too. Compared by text: implications between selectors are not detected.
    fn includes_peers(&self, other: &PolicyRule) -> bool {
        self.peers.is_empty()
            || (!other.peers.is_empty() && other.peers.iter().all(|peer| self.peers.contains(peer)))
    }
}

impl IpBlock {
    fn contains_address(&self, address: IpAddr) -> bool {
        let is_in = |cidr: &String| cidr.parse::<IpNet>().is_ok_and(|network| network.contains(&address));
        is_in(&self.cidr) && !self.except.iter().any(is_in)
    }
}

impl PolicyPort {
    fn includes_port(&self, number: u16, pod: &Pod) -> bool {
        let fits = match (&self.port, self.end_port) {
            (None, _) => true,
            (Some(PortName::Number(first)), None) => *first == number,
            (Some(PortName::Number(first)), Some(last)) => (*first..=last).contains(&number),
            (Some(PortName::Name(name)), _) => {
                let mut ports = pod.spec.containers.iter().flat_map(|container| &container.ports);
                ports
                    .any(|port| port.name == *name && port.container_port == number && is_tcp(&port.protocol))
            }
        };
        fits && self.is_tcp()
    }

    fn is_tcp(&self) -> bool {
        self.protocol.as_deref().is_none_or(is_tcp)
    }
}

/// Whether a port's protocol is TCP, which is the default.
pub(crate) fn is_tcp(protocol: &str) -> bool {
    ["", "TCP"].contains(&protocol)
}

/// Returns the effect of policies on HBONE to this pod, and those of the policies that select it. The peers of different rules are
/// assumed to be different unless they are written alike.
pub fn policy_effect<'a>(
    pod: &Pod,
    policies: impl IntoIterator<Item = &'a NetworkPolicy>,
) -> (Blocked, Vec<&'a NetworkPolicy>) {
    let selecting: Vec<&NetworkPolicy> =
        policies.into_iter().filter(|policy| policy.isolates_pod(pod)).collect();
    let rules = selecting.iter().flat_map(|policy| &policy.spec.ingress);
    (if selecting.is_empty() { Blocked::No } else { rules_effect(rules, pod) }, selecting)
}

/// Returns the effect of policies on HBONE from this pod, and the policies that select it for egress.
pub(crate) fn outbound_effect<'a>(
    pod: &Pod,
    policies: impl IntoIterator<Item = &'a NetworkPolicy>,
) -> (Blocked, Vec<&'a NetworkPolicy>) {
    let selecting: Vec<&NetworkPolicy> =
        policies.into_iter().filter(|policy| policy.isolates_outbound(pod)).collect();
    let rules = selecting.iter().flat_map(|policy| &policy.spec.egress);
    let rules = rules.filter(|rule| rule.concerns_peers() || rule.opens_port(HBONE, &Pod::default()));
    // Named ports are those of the peers.
    (if selecting.is_empty() { Blocked::No } else { rules_effect(rules, &Pod::default()) }, selecting)
}

/// Returns the effect of rules for one direction on HBONE. `pod` resolves port names.
fn rules_effect<'a>(rules: impl Iterator<Item = &'a PolicyRule>, pod: &Pod) -> Blocked {
    let (opening, others): (Vec<&PolicyRule>, Vec<&PolicyRule>) =
        rules.partition(|rule| rule.opens_port(HBONE, pod));
    // A rule for UDP alone does not concern the mesh.
    let matters = |rule: &&PolicyRule| rule.ports.is_empty() || rule.ports.iter().any(PolicyPort::is_tcp);
    let mut others = others.into_iter().filter(matters);
    if opening.is_empty() {
        if others.next().is_some() { Blocked::Hbone } else { Blocked::Everything }
    } else if others.any(|rule| !opening.iter().any(|opening| opening.includes_peers(rule))) {
        Blocked::SomePeers
    } else {
        Blocked::No
    }
}

/// Returns the source of the probes of a captured pod if no agent reports another.
pub(crate) fn default_probe_source(pod: &Pod) -> IpAddr {
    if pod.status.pod_ip.contains(':') { PROBE_SOURCE_V6 } else { PROBE_SOURCE }
}

/// Whether the policies that select a pod block its probes on one of their ports once it is captured: these then come from this
/// address, to which some networks apply policies, though not to the node's addresses.
pub(crate) fn blocks_probes(pod: &Pod, selecting: &[&NetworkPolicy], source: IpAddr) -> bool {
    let opens = |port: u16| {
        let mut rules = selecting.iter().flat_map(|policy| &policy.spec.ingress);
        rules.any(|rule| rule.admits_address(source) && rule.opens_port(port, pod))
    };
    !selecting.is_empty() && pod.probed_ports().any(|port| !opens(port))
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "json!(..) stands in the calls")]
mod tests;
