//! Cases of node-level redirection: tested here by their printed text, and in the kernel in the workspace's integration tests,
//! which include this file.

use std::net::IpAddr;

use model::{Family, IfName};
use rules::{
    RuleSet,
    node::{
        NodeParameters, NodeRulesConfig, SLOTS, ZtunnelEndpoint, ZtunnelParameters, host_rules, ztunnel_rules,
    },
};

/// The set of captured pods in these cases; one for each family.
pub(crate) const SETS: [&str; 2] = ["ztunnel-pods-v4", "ztunnel-pods-v6"];

/// Desired rules of one family.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// Also the golden file's name, with the family.
    pub(crate) name: &'static str,
    pub(crate) family: Family,
    pub(crate) rules: RuleSet,
}

fn ip(family: Family, slot: usize) -> IpAddr {
    let ips = match family {
        Family::V4 => ["10.244.0.7", "10.244.0.8"],
        Family::V6 => ["fd00:10:244::7", "fd00:10:244::8"],
    };
    ips[slot].parse().unwrap()
}

fn slot(family: Family, index: usize) -> ZtunnelEndpoint {
    ZtunnelEndpoint { veth: IfName::new(["veth7a", "veth8b"][index]).unwrap(), ztunnel_ip: ip(family, index) }
}

/// A node with ztunnels in these slots; `dns` is the slot whose ztunnel answers DNS.
fn node(family: Family, present: [bool; SLOTS], dns: Option<usize>) -> RuleSet {
    let slots = [0, 1].map(|index| present[index].then(|| slot(family, index)));
    let set = SETS[usize::from(family == Family::V6)];
    host_rules(
        &NodeRulesConfig::default(),
        &NodeParameters { family, slots, set, dns: dns.map(|index| ip(family, index)), capture: true },
    )
}

fn proxy(family: Family, dns: bool) -> RuleSet {
    let uplink = IfName::new("eth0").unwrap();
    ztunnel_rules(
        &NodeRulesConfig::default(),
        &ZtunnelParameters { family, uplink: &uplink, ip: ip(family, 0), dns },
    )
}

/// All cases, each once per family.
pub(crate) fn all() -> Vec<Case> {
    let of = |family| {
        [
            ("host-empty", node(family, [false, false], None)),
            ("host-one", node(family, [true, false], None)),
            ("host-one-dns", node(family, [true, false], Some(0))),
            ("host-other", node(family, [false, true], None)),
            ("host-other-dns", node(family, [false, true], Some(1))),
            ("host-two", node(family, [true, true], None)),
            ("host-two-dns", node(family, [true, true], Some(1))),
            ("ztunnel", proxy(family, false)),
            ("ztunnel-dns", proxy(family, true)),
        ]
        .map(|(name, rules)| Case { name, family, rules })
    };
    Family::BOTH.into_iter().flat_map(of).collect()
}
