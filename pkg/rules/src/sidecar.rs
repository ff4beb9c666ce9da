//! Rule set of a pod with an `istio-proxy` sidecar: which traffic of which direction is redirected to the proxy, and
//! which must not be. The facts are Istio's (docs/sidecar-rules.md lists each rule with its reason).
//!
//! Where Istio has rules in built-in chains, here each built-in chain gets one jump, and the rules are in our own
//! chains, in the order in which packets traversed them before. So a second run finds all our rules, and a cleanup
//! removes them. Without options the result is exactly Istio's.

mod config;
mod dns;
mod inbound;
mod outbound;
mod selection;
mod trace;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{Family, IpNet, Port};

use crate::ir::{Chain, LocalRoute, Match, MatchValue, Rule, RuleSet, Table, Target};
use crate::{parse::SavedTables, plan::ChainSet};

pub use config::{DnsCapture, InboundMode, LoopbackNet, OwnerGroups, SidecarConfig};
pub use selection::{InvalidSelection, MAX_SINGLE_PORTS, NetworkSelection, PortSelection, port_matches};

/// Inbound TCP.
pub const INBOUND: Chain = Chain::named("ISTIO_INBOUND");
/// Redirection to the outbound listener.
pub const REDIRECT: Chain = Chain::named("ISTIO_REDIRECT");
/// Redirection to the inbound listener.
pub const IN_REDIRECT: Chain = Chain::named("ISTIO_IN_REDIRECT");
/// Outbound connections (nat), marks of outbound packets (mangle).
pub const OUTPUT: Chain = Chain::named("ISTIO_OUTPUT");
/// Outbound DNS over UDP (nat), its connection-tracking zones (raw).
pub const OUTPUT_DNS: Chain = Chain::named("ISTIO_OUTPUT_DNS");
/// TPROXY: packets of connections that the proxy already has.
pub const DIVERT: Chain = Chain::named("ISTIO_DIVERT");
/// TPROXY: packets that open a connection.
pub const TPROXY: Chain = Chain::named("ISTIO_TPROXY");
/// Arriving packets (mangle), replies of DNS servers (raw).
pub const PRERT: Chain = Chain::named("ISTIO_PRERT");

/// Port on which the sidecar answers captured DNS.
pub const DNS_PORT: Port = Port(15053);
const DNS: Port = Port(53);

impl SidecarConfig {
    /// Returns the policy route that TPROXY needs; `None` if nothing is captured by TPROXY.
    pub fn local_route(&self) -> Option<LocalRoute> {
        match self.inbound_mode {
            InboundMode::Tproxy { mark, table } if !self.include_inbound.is_none() => {
                Some(LocalRoute { mark, table })
            }
            _ => None,
        }
    }

    /// Returns the network that counts as the pod's own loopback.
    fn loopback_net(&self, family: Family) -> IpNet {
        match family {
            Family::V4 => self.loopback.net(),
            Family::V6 => IpNet::from(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        }
    }

    /// Returns whether any DNS is captured. A query to an excluded port is not, whatever its protocol.
    fn captures_dns(&self) -> bool {
        self.dns != DnsCapture::Off && !self.exclude_outbound.contains(DNS)
    }

    /// Returns the DNS servers of `family` whose traffic is captured: none, any (`None`), or these.
    fn dns_destinations(&self, family: Family) -> Vec<Option<IpNet>> {
        match &self.dns {
            _ if !self.captures_dns() => Vec::new(),
            DnsCapture::Off => Vec::new(),
            DnsCapture::All => vec![None],
            DnsCapture::Servers(servers) => servers
                .iter()
                .filter(|ip| Family::from_ip(**ip) == family)
                .map(|ip| Some(IpNet::from(*ip)))
                .collect(),
        }
    }
}

/// Returns the source address of Envoy's connections to its own application: `127.0.0.6`, `::6`.
pub fn passthrough_source(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::new(127, 0, 0, 6)),
        Family::V6 => IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6)),
    }
}

/// Returns the complete rule set of one family.
pub fn rule_set(config: &SidecarConfig, family: Family) -> RuleSet {
    let mut rules = RuleSet::default();
    redirect_targets(config, &mut rules);
    inbound::add_rules(config, family, &mut rules);
    outbound::add_rules(config, family, &mut rules);
    dns::add_rules(config, family, &mut rules);
    rules.tables.retain(|_, table| !table.chains.is_empty());
    rules
}

/// Returns the input of a restore that creates the complete rule set of one family in an empty namespace.
pub fn restore_text(config: &SidecarConfig, family: Family) -> String {
    ChainSet::SIDECAR.apply(&rule_set(config, family), &SavedTables::default()).restore_text()
}

/// Adds the two chains that redirect; both always exist, as operators expect.
fn redirect_targets(config: &SidecarConfig, rules: &mut RuleSet) {
    let nat = rules.table_mut(Table::Nat);
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
    fn to_match(self) -> Match {
        self.to_condition(MatchValue::eq)
    }

    fn to_negated_match(self) -> Match {
        self.to_condition(MatchValue::ne)
    }

    fn to_condition(self, compare: fn(u32) -> MatchValue<u32>) -> Match {
        match self {
            SocketOwner::User(id) => Match::Uid(compare(id)),
            SocketOwner::Group(id) => Match::Gid(compare(id)),
        }
    }
}

impl SidecarConfig {
    fn proxy_owners(&self) -> impl Iterator<Item = SocketOwner> {
        let users = self.proxy_uids.iter().copied().map(SocketOwner::User);
        users.chain(self.proxy_gids.iter().copied().map(SocketOwner::Group))
    }

    /// Returns rules that exempt traffic by owner group; `rule` has the other conditions.
    fn owner_group_returns(&self, rule: &Rule) -> Vec<Rule> {
        match &self.owner_groups {
            OwnerGroups::Except(groups) => {
                groups.iter().map(|gid| rule.clone().when(Match::Gid(MatchValue::eq(*gid)))).collect()
            }
            OwnerGroups::Only(groups) => {
                let none_of = |rule: Rule, gid: &u32| rule.when(Match::Gid(MatchValue::ne(*gid)));
                vec![groups.iter().fold(rule.clone(), none_of)]
            }
        }
    }
}
