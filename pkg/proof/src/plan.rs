//! Selection of packets: packets that the desired rules redirect, and the same ones as sent by the proxy; and arriving
//! packets, which should reach the proxy or, if they are excluded, the application.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use model::{Family, IfName, Port};
use report::{ProofPath, ProofResult};
use rules::{FirstPacket, Match, PacketVerdict, RuleSet, TransportProtocol};

use crate::{InboundSpec, ProofSpec, ProxyIdentity};

/// Addresses for documentation, which no host has (RFC 5737, RFC 3849).
const V4: [Ipv4Addr; 4] = [
    Ipv4Addr::new(192, 0, 2, 1),
    Ipv4Addr::new(192, 0, 2, 254),
    Ipv4Addr::new(198, 51, 100, 1),
    Ipv4Addr::new(203, 0, 113, 1),
];
const V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0xffff, 0, 0, 0, 1),
];
/// Ports of services, which are tried before those in the rules.
const PORTS: [u16; 4] = [80, 443, 8080, 65000];
const DNS: u16 = 53;
/// Users and groups of an application.
const OWNERS: [(u32, u32); 3] = [(0, 0), (1000, 1000), (65534, 65534)];
/// Maximum number of ports and groups of the rules that are tried besides these.
const NAMED: usize = 16;
/// Interface of pods in every Kubernetes network.
pub(crate) const INTERFACE: IfName = IfName::known("eth0");

/// A packet to send, and its expected verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedPath {
    pub(crate) name: &'static str,
    /// The packet as the rules see it.
    pub(crate) packet: FirstPacket,
    /// User and group on the node that send it.
    pub(crate) sender: (u32, u32),
    pub(crate) expected: PacketVerdict,
}

impl PlannedPath {
    /// Returns the report row of the path.
    pub(crate) fn to_row(&self, result: ProofResult, message: String) -> ProofPath {
        ProofPath {
            name: self.name.to_owned(),
            family: Family::from_ip(self.packet.dest.ip()).number(),
            protocol: self.packet.protocol.as_str().to_owned(),
            destination: self.packet.dest.to_string(),
            result,
            message,
        }
    }
}

/// Returns a packet to this address, as a process of root sends it.
pub(crate) fn packet_to(dest: SocketAddr, protocol: TransportProtocol) -> FirstPacket {
    FirstPacket { source: None, dest, protocol, interface: INTERFACE, uid: 0, gid: 0, mark: 0 }
}

/// Returns an address for documentation, from which packets arrive.
pub(crate) fn foreign_address(family: Family) -> IpAddr {
    match family {
        Family::V4 => V4[0].into(),
        Family::V6 => V6[0].into(),
    }
}

/// Returns the paths in the order in which they are tested; those that cannot be tested already have their row.
/// `own_address`: returns the pod's address of a family, if any.
pub(crate) fn plan_paths(
    spec: &ProofSpec,
    own_address: impl Fn(Family) -> Option<IpAddr>,
) -> Vec<Result<PlannedPath, ProofPath>> {
    let plan_both = |(family, rules): &(Family, RuleSet)| {
        let mut paths = plan_family(*family, rules, spec.proxy);
        let own = own_address(*family);
        paths.extend(own.into_iter().flat_map(|own| plan_inbound(own, rules, spec.inbound)).map(Ok));
        paths
    };
    spec.rules.iter().flat_map(plan_both).collect()
}

/// Returns the paths of packets that arrive at the pod's own address.
fn plan_inbound(own: IpAddr, rules: &RuleSet, spec: InboundSpec) -> Vec<PlannedPath> {
    let family = Family::from_ip(own);
    let arriving = |source, port| {
        let packet = packet_to(SocketAddr::new(own, port), TransportProtocol::Tcp);
        FirstPacket { source: Some(source), ..packet }
    };
    let foreign = foreign_address(family);
    let ports = Candidates::from_rules(rules, family, true).ports.into_iter();
    let (passing, captured): (Vec<_>, Vec<_>) = ports
        .filter(|port| *port != spec.tunnel.0)
        .map(|port| arriving(foreign, port))
        .map(|packet| (rules.verdict_on(&packet), packet))
        .partition(|(verdict, _)| *verdict == PacketVerdict::Untouched);
    let first = |found: Vec<(PacketVerdict, FirstPacket)>| found.into_iter().next();
    let port = captured.first().map(|(_, packet)| packet.dest.port());
    let ambient = spec.probes.zip(port);
    let probe =
        ambient.map(|(probes, port)| (PacketVerdict::Untouched, arriving(probes.address_for(family), port)));
    // Rules exempt tunnels: the port itself is the proxy's.
    let tunnel = ambient.map(|_| (PacketVerdict::Redirected(spec.tunnel), arriving(foreign, spec.tunnel.0)));
    let paths = [
        ("inbound-tcp", first(captured)),
        ("inbound-tunnel", tunnel),
        ("inbound-probe", probe),
        ("inbound-excluded", first(passing)),
    ];
    let planned = |(name, found): (_, Option<_>)| {
        let (expected, packet) = found?;
        Some(PlannedPath { name, packet, sender: (0, 0), expected })
    };
    paths.into_iter().filter_map(planned).collect()
}

fn plan_family(family: Family, rules: &RuleSet, proxy: ProxyIdentity) -> Vec<Result<PlannedPath, ProofPath>> {
    let (tcp, udp) = (TransportProtocol::Tcp, TransportProtocol::Udp);
    let candidates = Candidates::from_rules(rules, family, proxy.has_users_of_node());
    let outbound = candidates.first_redirected(rules, tcp, &candidates.ports);
    let dns_udp = candidates.first_redirected(rules, udp, &[DNS]);
    let dns_tcp = candidates.first_redirected(rules, tcp, &[DNS]);
    // Without DNS capture it is an ordinary connection.
    let port = |found: &Option<RedirectedPacket>| found.as_ref().map(|found| found.1);
    let dns_tcp = dns_tcp.filter(|found| Some(found.1) != port(&outbound));
    let mut paths = Vec::new();
    if outbound.is_none() {
        paths.push(Err(untestable_path(family)));
    }
    for (name, as_proxy, found) in [
        ("application-tcp", "proxy-tcp", outbound),
        ("application-dns-udp", "proxy-dns-udp", dns_udp),
        ("application-dns-tcp", "proxy-dns-tcp", dns_tcp),
    ] {
        let Some((packet, port)) = found else { continue };
        let expected = PacketVerdict::Redirected(port);
        let path = PlannedPath { name, sender: (packet.uid, packet.gid), packet, expected };
        let own = proxy_path(as_proxy, &path, proxy, rules);
        paths.push(Ok(path));
        paths.extend(own);
    }
    paths
}

fn untestable_path(family: Family) -> ProofPath {
    ProofPath {
        name: "application-tcp".to_owned(),
        family: family.number(),
        protocol: TransportProtocol::Tcp.as_str().to_owned(),
        destination: String::new(),
        result: ProofResult::NotTestable,
        message: "the pod's annotations exclude every address for documentation, with every port, user and group that is tried"
            .to_owned(),
    }
}

/// Returns the path of this packet as sent by the proxy; `None` if the rules do not exempt it.
fn proxy_path(
    name: &'static str,
    of: &PlannedPath,
    proxy: ProxyIdentity,
    rules: &RuleSet,
) -> Option<Result<PlannedPath, ProofPath>> {
    let (packet, sender) = match proxy {
        ProxyIdentity::Mark(mark) => (FirstPacket { mark: mark.value, ..of.packet.clone() }, of.sender),
        ProxyIdentity::Owner { uid, gid, on_node: Some(sender) } => {
            (FirstPacket { uid, gid, ..of.packet.clone() }, sender)
        }
        ProxyIdentity::Owner { on_node: None, .. } => {
            let path = PlannedPath { name, ..of.clone() };
            let why = "the pod has a user namespace: the number of the proxy's user on the node is not known";
            return Some(Err(path.to_row(ProofResult::NotTestable, why.to_owned())));
        }
    };
    let expected = rules.verdict_on(&packet);
    let path = PlannedPath { name, packet, sender, expected };
    (expected == PacketVerdict::Untouched).then_some(Ok(path))
}

/// A packet that is redirected, with the target port.
type RedirectedPacket = (FirstPacket, Port);

/// Packets from which one that is not excluded is selected.
struct Candidates {
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
    owners: Vec<(u32, u32)>,
}

impl Candidates {
    fn from_rules(rules: &RuleSet, family: Family, of_node: bool) -> Candidates {
        let addresses = match family {
            Family::V4 => V4.map(IpAddr::from).to_vec(),
            Family::V6 => V6.map(IpAddr::from).to_vec(),
        };
        let (mut ports, mut groups) = (Vec::new(), Vec::new());
        let chains = rules.tables.values().flat_map(|table| &table.chains);
        for condition in chains.flat_map(|(_, rules)| rules).flat_map(|rule| &rule.matches) {
            match condition {
                Match::DestPort(port) if !port.negated && port.value.0 != DNS => ports.push(port.value.0),
                Match::DestPortRange(range) => ports.push(range.first().0),
                Match::Gid(group) if group.negated => groups.push((0, group.value)),
                _ => {}
            }
        }
        let ports = PORTS.into_iter().chain(ports.into_iter().take(NAMED)).collect();
        // A user of the pod's user namespace has another ID on the node.
        let owners = OWNERS.into_iter().chain(groups).take(if of_node { NAMED } else { 1 }).collect();
        Candidates { addresses, ports, owners }
    }

    /// Returns the first packet that the rules redirect.
    fn first_redirected(
        &self,
        rules: &RuleSet,
        protocol: TransportProtocol,
        ports: &[u16],
    ) -> Option<RedirectedPacket> {
        let packets = self.owners.iter().flat_map(|(uid, gid)| {
            self.addresses.iter().flat_map(move |ip| {
                ports.iter().map(move |port| {
                    let packet = packet_to(SocketAddr::new(*ip, *port), protocol);
                    FirstPacket { uid: *uid, gid: *gid, ..packet }
                })
            })
        });
        packets.into_iter().find_map(|packet| match rules.verdict_on(&packet) {
            PacketVerdict::Redirected(port) => Some((packet, port)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
