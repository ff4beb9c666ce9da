//! The verdict of a rule set on a connection that its host opens, as the kernel reaches it: `nat` OUTPUT, rule by rule.

use std::net::SocketAddr;

use model::{IfName, IpNet, Mark, Port};

use crate::ir::{
    Chain, Hook, Match, MatchValue, Rule, RuleSet, Table, TableRules, Target, TransportProtocol,
};

/// Chains that may be jumped to one inside the other; the kernel allows 16 in old versions.
const DEPTH: usize = 16;

/// The first packet of a connection that a process of the host opens. Its source address is one of the host's own, which no
/// rule of ours names; its connection has no mark yet, and its addresses are in no set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstPacket {
    /// Where it goes.
    pub dest: SocketAddr,
    /// Transport protocol of the packet.
    pub protocol: TransportProtocol,
    /// The interface by which it leaves.
    pub output: IfName,
    /// User of the process that made the socket.
    pub uid: u32,
    /// Group of that process.
    pub gid: u32,
    /// Mark of the packet.
    pub mark: u32,
}

/// The verdict on such a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketVerdict {
    /// To this port of the host itself.
    Redirected(Port),
    /// Discarded.
    Dropped,
    /// The packet leaves as it is.
    Untouched,
}

/// The outcome of a chain: a verdict, or `None` if the packet returns to where the chain was jumped to from.
type ChainOutcome = Option<PacketVerdict>;

impl RuleSet {
    /// Returns the verdict on a packet. Only `nat` is asked: no rule set of ours discards what a host sends.
    #[must_use]
    pub fn verdict_on(&self, packet: &FirstPacket) -> PacketVerdict {
        let Some(nat) = self.tables.get(&Table::Nat) else { return PacketVerdict::Untouched };
        let jumps = nat.jumps.iter().filter(|jump| jump.hook == Hook::Output).map(|jump| &jump.rule);
        walk(nat, jumps, packet, DEPTH).unwrap_or(PacketVerdict::Untouched)
    }
}

fn walk<'a>(
    table: &'a TableRules,
    rules: impl IntoIterator<Item = &'a Rule>,
    packet: &FirstPacket,
    depth: usize,
) -> ChainOutcome {
    let depth = depth.checked_sub(1)?;
    let enter = |chain: &Chain| walk(table, table.chain(chain), packet, depth);
    for rule in rules.into_iter().filter(|rule| fits(rule, packet)) {
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
            // No rule for packets that a host sends has `Dnat`.
            Target::Accept | Target::Dnat { .. } | Target::Snat(_) | Target::Tproxy { .. } => {
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

fn fits(rule: &Rule, packet: &FirstPacket) -> bool {
    let is_to = |net: &IpNet| net.contains(&packet.dest.ip());
    holds(rule.source.as_ref(), |_| false)
        && holds(rule.dest.as_ref(), is_to)
        && holds(rule.input.as_ref(), |_| false)
        && holds(rule.output.as_ref(), |name| is_interface(name, &packet.output))
        && holds(rule.proto.as_ref(), |protocol| *protocol == packet.protocol)
        && rule.matches.iter().all(|condition| is_met(condition, packet))
}

fn is_met(condition: &Match, packet: &FirstPacket) -> bool {
    let port = Port(packet.dest.port());
    match condition {
        Match::SourcePort(value) => holds(Some(value), |_| false),
        Match::DestPort(value) => holds(Some(value), |wanted| *wanted == port),
        Match::DestPortRange(range) => (range.first()..=range.last()).contains(&port),
        Match::DestPorts(value) => holds(Some(value), |ports| ports.contains(&port)),
        Match::Uid(value) => holds(Some(value), |uid| *uid == packet.uid),
        Match::Gid(value) => holds(Some(value), |gid| *gid == packet.gid),
        Match::SocketExists { negated } => !negated,
        Match::Mark(value) => holds(Some(value), |mark| has_mark(packet.mark, *mark)),
        Match::ConnMark(value) => holds(Some(value), |mark| has_mark(0, *mark)),
        Match::CtState(state) => *state == crate::CtStates::New,
        Match::Set { negated, .. } => *negated,
    }
}

fn holds<T>(condition: Option<&MatchValue<T>>, is: impl FnOnce(&T) -> bool) -> bool {
    condition.is_none_or(|condition| is(&condition.value) != condition.negated)
}

fn has_mark(found: u32, mark: Mark) -> bool {
    found & mark.mask == mark.value
}

/// A trailing `+` stands for every ending.
fn is_interface(wanted: &IfName, found: &IfName) -> bool {
    match wanted.as_str().strip_suffix('+') {
        Some(start) => found.as_str().starts_with(start),
        None => wanted == found,
    }
}

#[cfg(test)]
mod tests {
    use model::Family;

    use super::*;
    use crate::{
        inpod::{InPodRulesConfig, PodOptions},
        sidecar::{DnsCapture, NetworkSelection, OwnerGroups, PortSelection, SidecarConfig, rule_set},
    };

    fn to(dest: &str, protocol: TransportProtocol) -> FirstPacket {
        let output = IfName::known("eth0");
        FirstPacket { dest: dest.parse().unwrap(), protocol, output, uid: 0, gid: 0, mark: 0 }
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
            let rules = crate::inpod::pod(&config, options, Family::of_ip(packet.dest.ip()));
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
            FirstPacket { output: IfName::known("net1"), ..captured },
        ] {
            assert_eq!(verdict(excluded.clone()), Untouched, "{excluded:?}");
        }
        assert_eq!(RuleSet::default().verdict_on(&to("192.0.2.1:1", TransportProtocol::Tcp)), Untouched);
    }
}
