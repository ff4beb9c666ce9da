//! Fate of a packet: the parts of mangle, policy rules and routes that decide it.

use std::net::IpAddr;

use model::{Family, IfName, TableId};
use node_plan::{PathRoute, RouteTo};
use rules::{AddressSide, CtStates, Match, MatchValue, Rule, Table, Target, TransportProtocol};

use crate::world::{Netns, Ns, World};

/// End of a packet's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// At a socket of the ztunnel with this number.
    Captured(u8),
    /// Dropped or rejected.
    Held,
    /// The path without our rules: for a member's packet this is a bypass.
    Direct,
}

/// A TCP packet that the node forwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) from_pod: bool,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) established: bool,
    pub(crate) connmark: u32,
}

struct Walk<'a> {
    world: &'a World,
    packet: Packet,
    input: &'a str,
    mark: u32,
    connmark: u32,
}

enum Verdict {
    Continue,
    Stop,
}

pub(crate) fn fate(world: &World, packet: Packet) -> Fate {
    let input = if packet.from_pod { "cali1" } else { "eth0" };
    match way(world, &world.node, packet, input, packet.connmark) {
        Some(RouteTo::Blackhole | RouteTo::Unreachable) => Fate::Held,
        Some(RouteTo::Via(_, link)) => match world.node.links.get(link).and_then(|link| link.peer.as_ref()) {
            Some((Ns::Pod(number), far)) => arrives(world, packet, *number, far),
            _ => Fate::Direct,
        },
        Some(RouteTo::Local(_) | RouteTo::Other(_)) | None => Fate::Direct,
    }
}

/// Path in a ztunnel's namespace. A packet that no socket accepts is forwarded, and leaves the namespace.
fn arrives(world: &World, packet: Packet, number: u8, link: &str) -> Fate {
    let pod = &world.pods[&number];
    let filter = pod.sysctls.get(&format!("net/ipv4/conf/{link}/rp_filter"));
    let strict = Family::from_ip(packet.src) == Family::V4 && filter.is_some_and(|value| value == "1");
    if !pod.links[link].up || (strict && link != "eth0") {
        return Fate::Held;
    }
    match way(world, pod, packet, link, 0) {
        Some(RouteTo::Local(_)) => Fate::Captured(number),
        _ => Fate::Direct,
    }
}

/// The packet's route, unless it is in the main table.
fn way<'a>(world: &World, ns: &'a Netns, packet: Packet, input: &str, connmark: u32) -> Option<&'a RouteTo> {
    let family = Family::from_ip(packet.src);
    let mut walk = Walk { world, packet, input, mark: 0, connmark };
    let _ = walk.chain(ns, family, "PREROUTING");
    let mut rules: Vec<_> = ns.rules.iter().filter(|rule| rule.family == family).collect();
    rules.sort_by_key(|rule| rule.priority);
    let matching =
        rules.iter().filter(|rule| rule.mark.is_none_or(|mark| walk.mark & mark.mask == mark.value));
    for rule in matching {
        if rule.table == TableId::MAIN {
            return None;
        }
        if let Some(route) = lookup(ns, rule.table, packet.dst) {
            return Some(&route.to);
        }
    }
    None
}

fn lookup(ns: &Netns, table: TableId, dst: IpAddr) -> Option<&PathRoute> {
    let length = |route: &PathRoute| route.dst.map_or(0, |dst| dst.prefix_len());
    let fits = |route: &&PathRoute| {
        route.table == table
            && route.family == Family::from_ip(dst)
            && route.dst.is_none_or(|net| net.contains(&dst))
    };
    let routes = ns.routes.iter().map(|(route, _)| route).filter(fits);
    routes.min_by_key(|route| (std::cmp::Reverse(length(route)), route.metric))
}

impl Walk<'_> {
    /// Evaluates a chain of mangle; rules that we could not have written are foreign, and have no effect here.
    fn chain(&mut self, ns: &Netns, family: Family, chain: &str) -> Verdict {
        let Some(table) = ns.firewall[&family].saved.tables.get(&Table::Mangle) else {
            return Verdict::Continue;
        };
        for rule in table.chain_rules(chain).filter_map(|rule| rule.rule.as_ref()) {
            if !self.matches(rule) {
                continue;
            }
            match &rule.target {
                Target::Return => return Verdict::Continue,
                Target::Accept | Target::Drop => return Verdict::Stop,
                Target::Jump(next) => {
                    if let Verdict::Stop = self.chain(ns, family, &next.0) {
                        return Verdict::Stop;
                    }
                }
                Target::Goto(next) => return self.chain(ns, family, &next.0),
                Target::SetMark(mark) => self.mark = self.mark & !mark.mask | mark.value,
                Target::SetConnMark(mark) => self.connmark = self.connmark & !mark.mask | mark.value,
                Target::RestoreMark(mask) => self.mark = self.mark & !mask | self.connmark & mask,
                Target::Tproxy { mark, .. } => {
                    self.mark = self.mark & !mark.mask | mark.value;
                    return Verdict::Stop;
                }
                _ => {}
            }
        }
        Verdict::Continue
    }

    fn matches(&self, rule: &Rule) -> bool {
        let net = |is: &Option<MatchValue<model::IpNet>>, ip| {
            is.as_ref().is_none_or(|is| is.value.contains(&ip) != is.negated)
        };
        let link = |is: &MatchValue<IfName>| self.is_input(is.value.as_str()) != is.negated;
        net(&rule.source, self.packet.src)
            && net(&rule.dest, self.packet.dst)
            && rule.input.as_ref().is_none_or(link)
            && rule.output.is_none()
            && rule.proto.as_ref().is_none_or(|is| (is.value == TransportProtocol::Tcp) != is.negated)
            && rule.matches.iter().all(|condition| self.meets(condition))
    }

    fn is_input(&self, pattern: &str) -> bool {
        let begin = pattern.strip_suffix('+');
        begin.map_or(self.input == pattern, |begin| self.input.starts_with(begin))
    }

    fn meets(&self, condition: &Match) -> bool {
        match condition {
            Match::Mark(is) => (self.mark & is.value.mask == is.value.value) != is.negated,
            Match::ConnMark(is) => (self.connmark & is.value.mask == is.value.value) != is.negated,
            Match::CtState(CtStates::New) => !self.packet.established,
            Match::CtState(CtStates::RelatedEstablished) => self.packet.established,
            Match::Set { side, negated, .. } => {
                let ip = if *side == AddressSide::Source { self.packet.src } else { self.packet.dst };
                let set = self.world.sets.get(&Family::from_ip(ip));
                set.is_some_and(|set| set.contains_key(&ip)) != *negated
            }
            _ => false,
        }
    }
}
