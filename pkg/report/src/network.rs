//! Our objects in the node's network. Each is printed in the notation of the kernel's own tools.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use model::PodUid;
use serde::{Deserialize, Serialize};

use crate::compare::{Comparison, OfFamily, StateDifference};

/// Our objects, by kind. Each has its network namespace in `netns`: `node`, `ztunnel 0`, `ztunnel 1` (the ztunnel of that slot).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkState {
    /// Members of the sets of enrolled addresses (node-level capture), or of probed addresses (in-pod capture).
    pub ipsets: Comparison<SetMember>,
    /// Policy rules.
    pub rules: Comparison<PolicyRuleState>,
    /// Routes in our tables.
    pub routes: Comparison<RouteState>,
    /// Virtual links.
    pub links: Comparison<LinkState>,
    /// Kernel settings that we change.
    pub sysctls: Comparison<SysctlState>,
    /// Rules in our chains, and rules in foreign chains that jump to them.
    pub firewall: Comparison<FirewallRule>,
    /// Foreign objects in the places that ours need.
    pub foreign: Vec<String>,
    /// With node-level capture: reasons why captured traffic bypasses ztunnel although our objects are in place.
    pub overruling: Vec<String>,
}

impl NetworkState {
    /// Returns the state in which nothing is desired, and nothing is observed.
    pub fn nothing_desired() -> NetworkState {
        NetworkState {
            ipsets: Comparison::compare_sets(Vec::new(), Vec::new()),
            rules: Comparison::compare_sets(Vec::new(), Vec::new()),
            routes: Comparison::compare_sets(Vec::new(), Vec::new()),
            links: Comparison::compare_sets(Vec::new(), Vec::new()),
            sysctls: Comparison::compare_sets(Vec::new(), Vec::new()),
            firewall: Comparison::compare_sets(Vec::new(), Vec::new()),
            ..NetworkState::default()
        }
    }

    /// Returns foreign objects that conflict with ours, each once.
    pub fn conflicts(&self) -> impl Iterator<Item = &str> {
        let foreign = self.foreign.iter().filter(|what| !self.overruling.contains(what));
        self.overruling.iter().chain(foreign).map(String::as_str)
    }

    /// Returns every difference, with its kind of object: `ipsets`, `rules`, `routes`, `links`, `sysctls`, `firewall`.
    pub fn differences(&self) -> impl Iterator<Item = (&'static str, &StateDifference)> {
        let all = [
            ("ipsets", &self.ipsets.differences),
            ("rules", &self.rules.differences),
            ("routes", &self.routes.differences),
            ("links", &self.links.differences),
            ("sysctls", &self.sysctls.differences),
            ("firewall", &self.firewall.differences),
        ];
        all.into_iter().flat_map(|(kind, found)| found.iter().map(move |difference| (kind, difference)))
    }
}

/// An address in a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SetMember {
    /// Name of the set.
    pub set: String,
    /// Address of the member.
    pub ip: IpAddr,
    /// UID of the address's pod, taken from the comment of the member.
    pub uid: Option<PodUid>,
}

impl Default for SetMember {
    /// Uses `0.0.0.0` for no address.
    fn default() -> SetMember {
        SetMember { set: String::new(), ip: Ipv4Addr::UNSPECIFIED.into(), uid: None }
    }
}

/// A policy rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRuleState {
    /// Network namespace of the rule.
    pub netns: String,
    /// IP family, 4 or 6.
    pub family: u8,
    /// Priority: of several matching rules, the one with the lowest number applies.
    pub priority: u32,
    /// Value that a packet's fwmark must have under `mask`; `None`: all packets match.
    pub mark: Option<u32>,
    /// Bits of the fwmark that are compared.
    pub mask: Option<u32>,
    /// Routing table that is looked up.
    pub table: u32,
}

/// A route.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteState {
    /// Network namespace of the route.
    pub netns: String,
    /// IP family, 4 or 6.
    pub family: u8,
    /// Number of the routing table.
    pub table: u32,
    /// Destination as `ip` prints it, or `default`.
    pub destination: String,
    /// Type: `unicast`, `local`, `blackhole`, `unreachable`, or another type as `ip` prints it.
    #[serde(rename = "type")]
    pub kind: String,
    /// Next hop.
    pub gateway: Option<IpAddr>,
    /// Name of the outgoing link.
    pub device: Option<String>,
    /// Metric: of two routes to one destination, the one with the lower metric applies.
    pub metric: u32,
}

/// A network link.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LinkState {
    /// Network namespace of the link.
    pub netns: String,
    /// Name of the link.
    pub name: String,
    /// Whether the link is up.
    pub up: bool,
    /// Whether the link is of the correct kind, and connects to the ztunnel of its slot.
    pub correct: bool,
    /// Addresses of the link, with prefix lengths.
    pub addresses: Vec<CidrAddress>,
}

/// An address with its prefix length, as `10.0.0.1/24`.
pub type CidrAddress = String;

/// A kernel setting (sysctl).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SysctlState {
    /// Network namespace of the setting.
    pub netns: String,
    /// Name of the setting below `/proc/sys`, with slashes.
    pub name: String,
    /// Value of the setting.
    pub value: String,
    /// Value before we changed it; `None`: we did not change it, or unknown.
    pub previous_value: Option<String>,
}

/// A firewall rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FirewallRule {
    /// Network namespace of the rule.
    pub netns: String,
    /// IP family, 4 or 6.
    pub family: u8,
    /// Table: `raw`, `mangle`, `nat` or `filter`.
    pub table: String,
    /// Chain of the rule.
    pub chain: String,
    /// Arguments of the rule after `-A CHAIN`; for observed rules, as `iptables-save` prints them.
    pub rule: String,
}

impl OfFamily for SetMember {
    fn family(&self) -> Option<u8> {
        Some(if self.ip.is_ipv4() { 4 } else { 6 })
    }
}

impl OfFamily for PolicyRuleState {
    fn family(&self) -> Option<u8> {
        Some(self.family)
    }
}

impl OfFamily for RouteState {
    fn family(&self) -> Option<u8> {
        Some(self.family)
    }
}

impl OfFamily for FirewallRule {
    fn family(&self) -> Option<u8> {
        Some(self.family)
    }
}

impl OfFamily for LinkState {}

impl OfFamily for SysctlState {}

impl fmt::Display for SetMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "add {} {}", self.set, self.ip)?;
        self.uid.as_ref().map_or(Ok(()), |uid| write!(f, " comment \"{uid}\""))
    }
}

/// Appends the network namespace, unless it is the node's.
fn write_place(f: &mut fmt::Formatter<'_>, place: &str) -> fmt::Result {
    if place == "node" { Ok(()) } else { write!(f, " [{place}]") }
}

impl fmt::Display for PolicyRuleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ip -{} rule priority {}", self.family, self.priority)?;
        if let Some(mark) = self.mark {
            write!(f, " fwmark {mark:#x}/{:#x}", self.mask.unwrap_or(u32::MAX))?;
        }
        write!(f, " lookup {}", self.table)?;
        write_place(f, &self.netns)
    }
}

impl fmt::Display for RouteState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ip -{} route ", self.family)?;
        if self.kind != "unicast" {
            write!(f, "{} ", self.kind)?;
        }
        f.write_str(&self.destination)?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        if let Some(device) = &self.device {
            write!(f, " dev {device}")?;
        }
        write!(f, " table {} metric {}", self.table, self.metric)?;
        write_place(f, &self.netns)
    }
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link {} {}", self.name, if self.up { "up" } else { "down" })?;
        if !self.correct {
            f.write_str(", wrong kind or peer")?;
        }
        if !self.addresses.is_empty() {
            write!(f, " with {}", self.addresses.join(", "))?;
        }
        write_place(f, &self.netns)
    }
}

impl fmt::Display for SysctlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.name, self.value)?;
        write_place(f, &self.netns)
    }
}

impl fmt::Display for FirewallRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tool = if self.family == 6 { "ip6tables" } else { "iptables" };
        write!(f, "{tool} -t {} -A {} {}", self.table, self.chain, self.rule)?;
        write_place(f, &self.netns)
    }
}
