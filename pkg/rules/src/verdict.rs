//! Verdict of a rule set on a new connection, evaluated rule by rule as in the kernel: for one that the host opens in
//! `nat` OUTPUT, for one that arrives in `mangle` and `nat` PREROUTING.

use std::net::{IpAddr, SocketAddr};

use model::{IfName, IpNet, Mark, Port};

use crate::ir::{
    Chain, Hook, Match, MatchValue, Rule, RuleSet, Table, TableRules, Target, TransportProtocol,
};

/// Maximum depth of nested jumps; older kernels allow 16.
const DEPTH: usize = 16;

/// The first packet of a connection, which has no mark yet, and whose addresses are in no set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstPacket {
    /// Source address. `None`: a process of the host, whose own addresses no rule of ours matches.
    pub source: Option<IpAddr>,
    /// Destination.
    pub dest: SocketAddr,
    /// Transport protocol of the packet.
    pub protocol: TransportProtocol,
    /// The interface on which the packet leaves or arrives.
    pub interface: IfName,
    /// User of the process that created the socket; unused for a packet that arrives.
    pub uid: u32,
    /// Group of that process; unused for a packet that arrives.
    pub gid: u32,
    /// Mark of the packet.
    pub mark: u32,
}

/// Verdict on a first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketVerdict {
    /// Redirected to this port of the host itself.
    Redirected(Port),
    /// Redirected to this port of the host itself, with unchanged destination.
    Tproxied(Port),
    /// Dropped.
    Dropped,
    /// The packet continues unchanged.
    Untouched,
}

/// Outcome of a chain: a verdict, or `None` if the packet returns to the calling chain.
type ChainOutcome = Option<PacketVerdict>;

impl RuleSet {
    /// Returns the verdict on a packet. For packets of the host only `nat` is evaluated: no rule set of ours drops
    /// them.
    pub fn verdict_on(&self, packet: &FirstPacket) -> PacketVerdict {
        let (hook, tables) = match packet.source {
            None => (Hook::Output, &[Table::Nat][..]),
            Some(_) => (Hook::Prerouting, &[Table::Mangle, Table::Nat][..]),
        };
        let verdicts = tables.iter().filter_map(|table| {
            let table = self.tables.get(table)?;
            let jumps = table.jumps.iter().filter(|jump| jump.hook == hook).map(|jump| &jump.rule);
            walk_rules(table, jumps, packet, DEPTH)
        });
        let mut decided = verdicts.filter(|verdict| *verdict != PacketVerdict::Untouched);
        decided.next().unwrap_or(PacketVerdict::Untouched)
    }
}

fn walk_rules<'a>(
    table: &'a TableRules,
    rules: impl IntoIterator<Item = &'a Rule>,
    packet: &FirstPacket,
    depth: usize,
) -> ChainOutcome {
    let depth = depth.checked_sub(1)?;
    let enter = |chain: &Chain| walk_rules(table, table.chain_rules(chain), packet, depth);
    for rule in rules.into_iter().filter(|rule| rule_matches(rule, packet)) {
        match &rule.target {
            Target::Return => return None,
            Target::Drop => return Some(PacketVerdict::Dropped),
            Target::Redirect(port) => return Some(PacketVerdict::Redirected(*port)),
            Target::Goto(chain) => return enter(chain),
            Target::Jump(chain) => {
                if let Some(verdict) = enter(chain) {
                    return Some(verdict);
                }
            }
            Target::Tproxy { port, .. } => return Some(PacketVerdict::Tproxied(*port)),
            // No rule set of a pod has `Dnat`.
            Target::Accept | Target::Dnat { .. } | Target::Snat(_) => {
                return Some(PacketVerdict::Untouched);
            }
            Target::SetMark(_)
            | Target::SaveMark
            | Target::RestoreMark(_)
            | Target::SetConnMark(_)
            | Target::CtZone(_)
            | Target::Nflog { .. } => {}
        }
    }
    None
}

fn rule_matches(rule: &Rule, packet: &FirstPacket) -> bool {
    let is_to = |net: &IpNet| net.contains(&packet.dest.ip());
    let arrives = packet.source.is_some();
    condition_holds(rule.source.as_ref(), |net| packet.source.is_some_and(|source| net.contains(&source)))
        && condition_holds(rule.dest.as_ref(), is_to)
        && condition_holds(rule.input.as_ref(), |name| arrives && name.matches(packet.interface.as_str()))
        && condition_holds(rule.output.as_ref(), |name| !arrives && name.matches(packet.interface.as_str()))
        && condition_holds(rule.proto.as_ref(), |protocol| *protocol == packet.protocol)
        && rule.matches.iter().all(|condition| is_met(condition, packet))
}

fn is_met(condition: &Match, packet: &FirstPacket) -> bool {
    let port = Port(packet.dest.port());
    match condition {
        Match::SourcePort(value) => condition_holds(Some(value), |_| false),
        Match::DestPort(value) => condition_holds(Some(value), |desired| *desired == port),
        Match::DestPortRange(range) => (range.first()..=range.last()).contains(&port),
        Match::DestPorts(value) => condition_holds(Some(value), |ports| ports.contains(&port)),
        Match::Uid(value) => condition_holds(Some(value), |uid| *uid == packet.uid),
        Match::Gid(value) => condition_holds(Some(value), |gid| *gid == packet.gid),
        Match::SocketExists { negated } => packet.source.is_some() == *negated,
        Match::Mark(value) => condition_holds(Some(value), |mark| has_mark(packet.mark, *mark)),
        Match::ConnMark(value) => condition_holds(Some(value), |mark| has_mark(0, *mark)),
        Match::CtState(state) => *state == crate::CtStates::New,
        Match::Set { negated, .. } => *negated,
    }
}

fn condition_holds<T>(condition: Option<&MatchValue<T>>, is: impl FnOnce(&T) -> bool) -> bool {
    condition.is_none_or(|condition| is(&condition.value) != condition.negated)
}

fn has_mark(found: u32, mark: Mark) -> bool {
    found & mark.mask == mark.value
}

#[cfg(test)]
mod tests {
    use model::Family;

    use super::*;
    use crate::{
        inpod::{InPodRulesConfig, PodOptions},
        sidecar::{
            DnsCapture, InboundMode, NetworkSelection, OwnerGroups, PortSelection, SidecarConfig, rule_set,
        },
    };

    fn to(dest: &str, protocol: TransportProtocol) -> FirstPacket {
        let interface = IfName::known("eth0");
        FirstPacket {
            source: None,
            dest: dest.parse().unwrap(),
            protocol,
            interface,
            uid: 0,
            gid: 0,
            mark: 0,
        }
    }

    fn arriving(source: &str, dest: &str) -> FirstPacket {
        FirstPacket { source: Some(source.parse().unwrap()), ..to(dest, TransportProtocol::Tcp) }
    }

    #[test]
    fn in_pod_rules_redirect_what_arrives_unless_it_is_a_tunnel_a_probe_or_an_exception() {
        use PacketVerdict::{Redirected, Untouched};
        let config = InPodRulesConfig::default();
        let inbound = Redirected(Port(15006));
        let mut options = PodOptions::default();
        options.exceptions.inbound_ports = vec![Port(9090)];
        for (source, dest, expected) in [
            ("192.0.2.1", "10.0.0.2:80", inbound),
            ("2001:db8::1", "[fd00::2]:80", inbound),
            ("192.0.2.1", "10.0.0.2:15008", Untouched),
            ("192.0.2.1", "10.0.0.2:9090", Untouched),
            ("169.254.7.127", "10.0.0.2:80", Untouched),
        ] {
            let packet = arriving(source, dest);
            let rules = crate::inpod::pod_rules(&config, &options, Family::from_ip(packet.dest.ip()));
            assert_eq!(rules.verdict_on(&packet), expected, "{source} {dest}");
        }
        options.bypass_inbound = true;
        let rules = crate::inpod::pod_rules(&config, &options, Family::V4);
        assert_eq!(rules.verdict_on(&arriving("192.0.2.1", "10.0.0.2:80")), Untouched);
    }

    #[test]
    fn rules_of_a_sidecar_redirect_what_arrives_or_hand_it_to_a_transparent_socket() {
        use PacketVerdict::{Redirected, Tproxied, Untouched};
        let mark = Mark { value: 1337, mask: u32::MAX };
        for (inbound_mode, captured) in [
            (InboundMode::Redirect, Redirected(Port(15006))),
            (InboundMode::Tproxy { mark, table: model::TableId(133) }, Tproxied(Port(15006))),
        ] {
            let config = SidecarConfig {
                inbound_mode,
                include_inbound: PortSelection::All,
                exclude_inbound: PortSelection::List(vec![Port(15020)]),
                exclude_interfaces: vec![IfName::known("net+")],
                drop_invalid: true,
                ..SidecarConfig::default()
            };
            let rules = rule_set(&config, Family::V4);
            let packet = arriving("192.0.2.1", "10.0.0.2:80");
            assert_eq!(rules.verdict_on(&packet), captured, "{config:?}");
            for excluded in [
                arriving("192.0.2.1", "10.0.0.2:15020"),
                arriving("192.0.2.1", "10.0.0.2:15008"),
                FirstPacket { interface: IfName::known("net1"), ..packet },
            ] {
                assert_eq!(rules.verdict_on(&excluded), Untouched, "{excluded:?}");
            }
        }
    }

    #[test]
    fn in_pod_rules_redirect_what_has_no_mark_of_the_proxy() {
        use PacketVerdict::{Redirected, Untouched};
        let config = InPodRulesConfig::default();
        let with = PodOptions { dns: true, ..PodOptions::default() };
        let (tcp, udp) = (TransportProtocol::Tcp, TransportProtocol::Udp);
        let (outbound, dns) = (Redirected(Port(15001)), Redirected(Port(15053)));
        for (options, dest, protocol, expected) in [
            (&with, "192.0.2.1:80", tcp, outbound),
            (&with, "[2001:db8::1]:80", tcp, outbound),
            (&with, "192.0.2.1:53", tcp, dns),
            (&with, "192.0.2.1:53", udp, dns),
            (&with, "192.0.2.1:54", udp, Untouched),
            (&PodOptions::default(), "192.0.2.1:53", udp, Untouched),
            (&PodOptions::default(), "192.0.2.1:53", tcp, outbound),
            (&with, "169.254.7.127:80", tcp, Untouched),
        ] {
            let packet = to(dest, protocol);
            let rules = crate::inpod::pod_rules(&config, options, Family::from_ip(packet.dest.ip()));
            assert_eq!(rules.verdict_on(&packet), expected, "{dest} {protocol:?}");
            let by_proxy = FirstPacket { mark: 0xf539, ..packet };
            assert_eq!(rules.verdict_on(&by_proxy), Untouched, "{dest} {protocol:?}");
        }
    }

    #[test]
    fn rules_of_a_sidecar_exempt_the_proxy_and_what_is_excluded() {
        use PacketVerdict::{Redirected, Untouched};
        let config = SidecarConfig {
            include_networks: NetworkSelection::All,
            exclude_networks: vec!["192.0.2.0/25".parse().unwrap()],
            exclude_outbound: PortSelection::List(vec![Port(80)]),
            owner_groups: OwnerGroups::Except(vec![7]),
            exclude_interfaces: vec![IfName::known("net+")],
            dns: DnsCapture::All,
            trace: true,
            ..SidecarConfig::default()
        };
        let rules = rule_set(&config, Family::V4);
        let captured = to("192.0.2.200:443", TransportProtocol::Tcp);
        let verdict = |packet| rules.verdict_on(&packet);
        assert_eq!(verdict(captured.clone()), Redirected(Port(15001)));
        assert_eq!(verdict(to("192.0.2.200:53", TransportProtocol::Udp)), Redirected(Port(15053)));
        assert_eq!(verdict(to("192.0.2.200:54", TransportProtocol::Udp)), Untouched);
        for excluded in [
            to("192.0.2.1:443", TransportProtocol::Tcp),
            to("192.0.2.200:80", TransportProtocol::Tcp),
            FirstPacket { gid: 7, ..captured.clone() },
            FirstPacket { uid: 1337, ..captured.clone() },
            FirstPacket { interface: IfName::known("net1"), ..captured },
        ] {
            assert_eq!(verdict(excluded.clone()), Untouched, "{excluded:?}");
        }
        for exclude_outbound in [PortSelection::All, PortSelection::List(vec![Port(80), Port(53)])] {
            let rules = rule_set(&SidecarConfig { exclude_outbound, ..config.clone() }, Family::V4);
            for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
                assert_eq!(rules.verdict_on(&to("192.0.2.200:53", protocol)), Untouched, "{protocol:?}");
            }
        }
        assert_eq!(RuleSet::default().verdict_on(&to("192.0.2.1:1", TransportProtocol::Tcp)), Untouched);
    }
}
