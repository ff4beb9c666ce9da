//! Whether NetworkPolicies let HBONE and probes reach a pod of the mesh.
//!
//! ztunnel sends traffic between mesh pods as HBONE, to TCP port 15008 of the destination pod. A policy that lists the
//! application's ports and not this one blocks all of it, although it looks right to its author.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use model::{IpNet, LabelRequirement, ObjectMeta};
use serde::{Deserialize, Serialize};

use crate::objects::Pod;

/// The port that ztunnel listens on for other ztunnels and gateways.
pub const HBONE: u16 = 15008;

/// Source of the kubelet's probes of a captured pod, as Istio and the agent have it by default (docs/networks.md).
const PROBE_SOURCE: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 7, 127));
/// Source of probes of a pod whose first address is of IPv6.
const PROBE_SOURCE_V6: IpAddr =
    IpAddr::V6(Ipv6Addr::new(0xfd16, 0x9254, 0x7127, 0x1337, 0xffff, 0xffff, 0xffff, 0xffff));

/// The port of DNS, which is not asked of peers in the mesh.
const DNS: u16 = 53;

/// A NetworkPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NetworkPolicy {
    /// Name, namespace.
    pub metadata: ObjectMeta,
    /// The policy's specification.
    pub spec: PolicySpec,
}

/// The specification of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicySpec {
    /// Which pods of its namespace it is about.
    pub pod_selector: Selector,
    /// `Ingress`, `Egress`; empty: ingress, and egress if there are rules for it.
    pub policy_types: Vec<String>,
    /// Rules that allow ingress.
    pub ingress: Vec<PolicyRule>,
    /// Rules that allow egress.
    pub egress: Vec<PolicyRule>,
}

/// Connections that are allowed: into a pod, or out of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PolicyRule {
    /// From whom, or to whom; empty: anywhere.
    #[serde(alias = "from", alias = "to")]
    pub peers: Vec<Peer>,
    /// To which ports; empty: to all.
    pub ports: Vec<PolicyPort>,
}

/// From whom something may come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Peer {
    /// Pods; `None`: all of the namespaces.
    pub pod_selector: Option<Selector>,
    /// Namespaces; `None`: the policy's own.
    pub namespace_selector: Option<Selector>,
    /// Addresses.
    pub ip_block: Option<IpBlock>,
}

/// Addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IpBlock {
    /// A prefix.
    pub cidr: String,
    /// Prefixes in it that do not count.
    pub except: Vec<String>,
}

/// Ports of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyPort {
    /// `None`: TCP.
    pub protocol: Option<String>,
    /// `None`: all.
    pub port: Option<PortName>,
    /// The last one of a range that begins with `port`.
    pub end_port: Option<u16>,
}

/// A port by number, or by the name that a container gives it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum PortName {
    /// The port number.
    Number(u16),
    /// The port's name.
    Name(String),
}

/// A label selector. Without terms it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Selector {
    /// Labels with their values.
    pub match_labels: BTreeMap<String, String>,
    /// Terms, all of which must hold.
    pub match_expressions: Vec<LabelRequirement>,
}

/// The effect on HBONE of the policies that select a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocked {
    /// Nothing that matters: whoever may connect to any port may connect to the port of HBONE.
    No,
    /// Some peers may connect to other ports, and not to the port of HBONE.
    SomePeers,
    /// Nothing may come in at all, which also holds without the mesh.
    Everything,
    /// Other ports are open, and the port of HBONE is open to no one.
    Hbone,
}

impl Selector {
    /// Whether the selector matches an object with these labels. A term with an unknown operator matches nothing.
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

    /// Whether it is about connections that may be HBONE: not to DNS alone, and not to addresses, which are those of pods in no mesh.
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

    /// Whoever matches `other` matches this rule too. By their text: that one selector implies another is not seen.
    fn is_open_to_all_of(&self, other: &PolicyRule) -> bool {
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
        let is_tcp = |protocol: Option<&str>| matches!(protocol, None | Some("" | "TCP"));
        let fits = match (&self.port, self.end_port) {
            (None, _) => true,
            (Some(PortName::Number(first)), None) => *first == number,
            (Some(PortName::Number(first)), Some(last)) => (*first..=last).contains(&number),
            (Some(PortName::Name(name)), _) => pod.spec.containers.iter().any(|container| {
                container.ports.iter().any(|port| {
                    port.name == *name && port.container_port == number && is_tcp(Some(&port.protocol))
                })
            }),
        };
        fits && is_tcp(self.protocol.as_deref())
    }

    fn is_tcp(&self) -> bool {
        self.protocol.as_deref().is_none_or(|protocol| protocol == "TCP")
    }
}

/// Returns the effect of policies on HBONE to this pod, and those of the policies that select it. The peers of different
/// rules are taken to be different unless they are written alike.
pub fn policy_effect<'a>(
    pod: &Pod,
    policies: impl IntoIterator<Item = &'a NetworkPolicy>,
) -> (Blocked, Vec<&'a NetworkPolicy>) {
    let selecting: Vec<&NetworkPolicy> =
        policies.into_iter().filter(|policy| policy.isolates_pod(pod)).collect();
    let rules = || selecting.iter().flat_map(|policy| &policy.spec.ingress);
    (if selecting.is_empty() { Blocked::No } else { rules_effect(rules, pod) }, selecting)
}

/// Returns the effect of policies on HBONE from this pod, and those of the policies that select it for egress.
pub(crate) fn outbound_effect<'a>(
    pod: &Pod,
    policies: impl IntoIterator<Item = &'a NetworkPolicy>,
) -> (Blocked, Vec<&'a NetworkPolicy>) {
    let selecting: Vec<&NetworkPolicy> =
        policies.into_iter().filter(|policy| policy.isolates_outbound(pod)).collect();
    let rules = || {
        let all = selecting.iter().flat_map(|policy| &policy.spec.egress);
        all.filter(|rule| rule.concerns_peers() || rule.opens_port(HBONE, &Pod::default()))
    };
    // Names of ports are those of the peers.
    (if selecting.is_empty() { Blocked::No } else { rules_effect(rules, &Pod::default()) }, selecting)
}

/// The effect of rules for one direction on HBONE. `pod` gives ports their names.
fn rules_effect<'a, Rules: Iterator<Item = &'a PolicyRule>>(rules: impl Fn() -> Rules, pod: &Pod) -> Blocked {
    let opening: Vec<&PolicyRule> = rules().filter(|rule| rule.opens_port(HBONE, pod)).collect();
    // What is open for UDP alone does not go through the mesh.
    let matters = |rule: &&PolicyRule| rule.ports.is_empty() || rule.ports.iter().any(PolicyPort::is_tcp);
    let mut others = rules().filter(|rule| !rule.opens_port(HBONE, pod)).filter(matters);
    if opening.is_empty() {
        if others.next().is_some() { Blocked::Hbone } else { Blocked::Everything }
    } else if others.any(|rule| !opening.iter().any(|opening| opening.is_open_to_all_of(rule))) {
        Blocked::SomePeers
    } else {
        Blocked::No
    }
}

/// Returns the source of the probes of a captured pod where no agent says otherwise.
pub(crate) fn default_probe_source(pod: &Pod) -> IpAddr {
    if pod.status.pod_ip.contains(':') { PROBE_SOURCE_V6 } else { PROBE_SOURCE }
}

/// Whether the policies that select a pod keep its probes from one of their ports once it is captured: they come from this address
/// then, to which some networks apply policies, though not to the node's addresses.
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
