//! The rule set of a pod with an `istio-proxy` sidecar: what goes through the proxy, in which direction, and what
//! must not. The facts are Istio's (docs/sidecar-rules.md lists each rule with its reason).
//!
//! Where Istio puts rules into built-in chains, here each built-in chain gets one jump and the rules stand in
//! chains of our own, in the order in which a packet met them before. So a second run finds what is ours, and a
//! cleanup removes all of it. Without options the result is Istio's to the letter.

mod dns;
mod inbound;
mod outbound;
mod trace;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use model::{Family, IfName, IpNet, Mark, Port, TableId};

use crate::ir::{
    Chain, Hook, HookJump, JumpPlace, LocalRoute, Match, Rule, RuleSet, Table, Target, host_net,
};
use crate::{parse::SavedTables, plan};

/// Inbound TCP.
pub const INBOUND: Chain = Chain::named("ISTIO_INBOUND");
/// Redirects to the outbound listener.
pub const REDIRECT: Chain = Chain::named("ISTIO_REDIRECT");
/// Redirects to the inbound listener.
pub const IN_REDIRECT: Chain = Chain::named("ISTIO_IN_REDIRECT");
/// Outbound connections (nat), marks of outbound packets (mangle).
pub const OUTPUT: Chain = Chain::named("ISTIO_OUTPUT");
/// Outbound DNS over UDP (nat), its connection-tracking zones (raw).
pub const OUTPUT_DNS: Chain = Chain::named("ISTIO_OUTPUT_DNS");
/// TPROXY: packets of connections that the proxy already has.
pub const DIVERT: Chain = Chain::named("ISTIO_DIVERT");
/// TPROXY: packets that open a connection.
pub const TPROXY: Chain = Chain::named("ISTIO_TPROXY");
/// First stop of arriving packets (mangle), answers of DNS servers (raw).
pub const PRERT: Chain = Chain::named("ISTIO_PRERT");

/// The port on which the sidecar answers captured DNS.
pub const DNS_PORT: Port = Port(15053);
const DNS: Port = Port(53);

/// A selection of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSelection {
    /// Every port (`*`).
    All,
    /// These; an empty list is none.
    List(Vec<Port>),
}

impl PortSelection {
    /// No port.
    pub const NONE: PortSelection = PortSelection::List(Vec::new());

    /// True for an empty list.
    #[must_use]
    pub fn is_none(&self) -> bool {
        matches!(self, PortSelection::List(list) if list.is_empty())
    }
}

/// The text is no selection of ports or networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("allowed: {0}")]
pub struct InvalidSelection(pub &'static str);

impl FromStr for PortSelection {
    type Err = InvalidSelection;

    /// `*`, nothing, or a comma-separated list; each element is trimmed and must be a plain decimal, so that a
    /// trailing comma is an error.
    fn from_str(text: &str) -> Result<PortSelection, InvalidSelection> {
        let invalid = InvalidSelection("'*', nothing, or a comma-separated list of ports from 0 to 65535");
        match text.trim() {
            "" => Ok(PortSelection::NONE),
            "*" => Ok(PortSelection::All),
            list => list
                .split(',')
                .map(|port| port_number(port.trim()).ok_or(invalid))
                .collect::<Result<_, _>>()
                .map(PortSelection::List),
        }
    }
}

fn port_number(text: &str) -> Option<Port> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok().map(Port)).flatten()
}

/// A selection of networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkSelection {
    /// Every address (`*`).
    All,
    /// These, of both families; an empty list is none.
    List(Vec<IpNet>),
}

impl FromStr for NetworkSelection {
    type Err = InvalidSelection;

    /// `*`, nothing, or a comma-separated list of networks with their length; host bits may be set.
    fn from_str(text: &str) -> Result<NetworkSelection, InvalidSelection> {
        let invalid = InvalidSelection(
            "'*', nothing, or a comma-separated list of networks as 10.0.0.0/8, without blanks",
        );
        match text {
            "" => Ok(NetworkSelection::List(Vec::new())),
            "*" => Ok(NetworkSelection::All),
            list => list
                .split(',')
                .map(|net| net.parse().map_err(|_| invalid))
                .collect::<Result<_, _>>()
                .map(NetworkSelection::List),
        }
    }
}

/// How inbound connections reach the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboundMode {
    /// NAT: the application sees the proxy's address.
    Redirect,
    /// TPROXY: the source address is kept.
    Tproxy {
        /// Packet mark of connections that belong to the proxy.
        mark: Mark,
        /// Routing table that delivers marked packets locally.
        table: TableId,
    },
}

/// Which local processes' traffic is captured, by group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerGroups {
    /// All but these.
    Except(Vec<u32>),
    /// Only these, at most 64.
    Only(Vec<u32>),
}

/// DNS capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsCapture {
    /// DNS goes its own way.
    Off,
    /// Everything to port 53 goes to the proxy.
    All,
    /// Only what goes to these servers.
    Servers(Vec<IpAddr>),
}

/// What to redirect. Ports, ids and marks are Istio's defaults in [`SidecarConfig::default`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidecarConfig {
    /// The proxy's outbound listener.
    pub outbound_port: Port,
    /// The proxy's inbound listener.
    pub inbound_port: Port,
    /// The HBONE port, never redirected.
    pub tunnel_port: Port,
    /// Users whose traffic is the proxy's own.
    pub proxy_uids: Vec<u32>,
    /// Groups whose traffic is the proxy's own.
    pub proxy_gids: Vec<u32>,
    /// REDIRECT or TPROXY.
    pub inbound_mode: InboundMode,
    /// Inbound ports to capture.
    pub include_inbound: PortSelection,
    /// Inbound ports to leave alone; looked at only when all are captured.
    pub exclude_inbound: PortSelection,
    /// Outbound networks to capture.
    pub include_networks: NetworkSelection,
    /// Outbound networks to leave alone.
    pub exclude_networks: Vec<IpNet>,
    /// Outbound ports to capture whatever the network.
    pub include_outbound: PortSelection,
    /// Outbound ports to leave alone.
    pub exclude_outbound: PortSelection,
    /// Groups whose outbound traffic is captured.
    pub owner_groups: OwnerGroups,
    /// Interfaces whose traffic is left alone.
    pub exclude_interfaces: Vec<IfName>,
    /// Interfaces behind which virtual machines live; what comes from there is treated as outbound.
    pub kubevirt_interfaces: Vec<IfName>,
    /// DNS capture.
    pub dns: DnsCapture,
    /// Discard packets that belong to no connection.
    pub drop_invalid: bool,
    /// Add NFLOG rules in front of the decisive ones.
    pub trace: bool,
}

impl Default for SidecarConfig {
    fn default() -> SidecarConfig {
        SidecarConfig {
            outbound_port: Port(15001),
            inbound_port: Port(15006),
            tunnel_port: Port(15008),
            proxy_uids: vec![1337],
            proxy_gids: vec![1337],
            inbound_mode: InboundMode::Redirect,
            include_inbound: PortSelection::NONE,
            exclude_inbound: PortSelection::NONE,
            include_networks: NetworkSelection::List(Vec::new()),
            exclude_networks: Vec::new(),
            include_outbound: PortSelection::NONE,
            exclude_outbound: PortSelection::NONE,
            owner_groups: OwnerGroups::Except(Vec::new()),
            exclude_interfaces: Vec::new(),
            kubevirt_interfaces: Vec::new(),
            dns: DnsCapture::Off,
            drop_invalid: false,
            trace: false,
        }
    }
}

impl SidecarConfig {
    /// The policy route that TPROXY needs; none when nothing is captured by TPROXY.
    #[must_use]
    pub fn local_route(&self) -> Option<LocalRoute> {
        match self.inbound_mode {
            InboundMode::Tproxy { mark, table } if !self.include_inbound.is_none() => {
                Some(LocalRoute { mark, table })
            }
            _ => None,
        }
    }

    /// The table that inbound capture lives in.
    fn inbound_table(&self) -> Table {
        match self.inbound_mode {
            InboundMode::Redirect => Table::Nat,
            InboundMode::Tproxy { .. } => Table::Mangle,
        }
    }

    /// The DNS servers of `family` whose traffic is captured: none at all, any, or these.
    fn dns_destinations(&self, family: Family) -> Vec<Option<IpNet>> {
        match &self.dns {
            DnsCapture::Off => Vec::new(),
            DnsCapture::All => vec![None],
            DnsCapture::Servers(servers) => {
                servers.iter().filter(|ip| Family::of(**ip) == family).map(|ip| Some(host_net(*ip))).collect()
            }
        }
    }
}

/// The address that Envoy uses as source for connections to its own application: `127.0.0.6`, `::6`.
#[must_use]
pub fn passthrough_source(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::new(127, 0, 0, 6)),
        Family::V6 => IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6)),
    }
}

/// `127.0.0.1/32`, `::1/128`: what counts as "to the pod's own loopback".
fn localhost(family: Family) -> IpNet {
    match family {
        Family::V4 => host_net(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        Family::V6 => host_net(IpAddr::V6(Ipv6Addr::LOCALHOST)),
    }
}

/// The whole rule set of one family.
#[must_use]
pub fn rule_set(config: &SidecarConfig, family: Family) -> RuleSet {
    let mut rules = RuleSet::default();
    redirect_targets(config, &mut rules);
    inbound::capture(config, family, &mut rules);
    outbound::capture(config, family, &mut rules);
    dns::capture(config, family, &mut rules);
    rules.tables.retain(|_, table| !table.chains.is_empty());
    rules
}

/// The input of a restore that makes the whole rule set of one family in a blank namespace.
#[must_use]
pub fn restore_text(config: &SidecarConfig, family: Family) -> String {
    plan::apply(&rule_set(config, family), &SavedTables::default()).restore_text()
}

/// The two chains that redirect; both exist always, as operators expect them.
fn redirect_targets(config: &SidecarConfig, rules: &mut RuleSet) {
    let nat = rules.table(Table::Nat);
    nat.push(&REDIRECT, Rule::new(Target::Redirect(config.outbound_port)).tcp());
    nat.push(&IN_REDIRECT, Rule::new(Target::Redirect(config.inbound_port)).tcp());
}

/// A user or a group whose traffic is the proxy's own.
#[derive(Clone, Copy)]
enum SocketOwner {
    User(u32),
    Group(u32),
}

impl SocketOwner {
    fn is(self) -> Match {
        match self {
            SocketOwner::User(id) => Match::Uid(crate::ir::MatchValue::eq(id)),
            SocketOwner::Group(id) => Match::Gid(crate::ir::MatchValue::eq(id)),
        }
    }

    fn is_not(self) -> Match {
        match self {
            SocketOwner::User(id) => Match::Uid(crate::ir::MatchValue::ne(id)),
            SocketOwner::Group(id) => Match::Gid(crate::ir::MatchValue::ne(id)),
        }
    }
}

impl SidecarConfig {
    fn users(&self) -> impl Iterator<Item = SocketOwner> {
        self.proxy_uids.iter().copied().map(SocketOwner::User)
    }

    fn groups(&self) -> impl Iterator<Item = SocketOwner> {
        self.proxy_gids.iter().copied().map(SocketOwner::Group)
    }

    fn owners(&self) -> impl Iterator<Item = SocketOwner> {
        self.users().chain(self.groups())
    }

    /// Rules that let go of traffic by owner group; `rule` carries the other conditions.
    fn owner_group_returns(&self, rule: &Rule) -> Vec<Rule> {
        match &self.owner_groups {
            OwnerGroups::Except(groups) => {
                groups.iter().map(|gid| rule.clone().when(SocketOwner::Group(*gid).is())).collect()
            }
            OwnerGroups::Only(groups) => {
                let none_of = |rule: Rule, gid: &u32| rule.when(SocketOwner::Group(*gid).is_not());
                vec![groups.iter().fold(rule.clone(), none_of)]
            }
        }
    }
}

/// The one jump of a built-in chain.
fn jump(rules: &mut RuleSet, table: Table, hook: Hook, rule: Rule, place: JumpPlace) {
    rules.table(table).jumps.push(HookJump { hook, rule, place });
}
