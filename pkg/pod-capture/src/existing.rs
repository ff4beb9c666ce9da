//! Connections that exist when a pod is captured.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use conntrack::sockets::{TcpSocket, TcpSockets};
use conntrack::{LocalPorts, TcpTuple};
use hostnet::RtnetlinkHandle;
use model::{Family, IfName, Port};
use rules::inpod::InPodRulesConfig;

use crate::pod::PodRulesSpec;

/// Connections of a pod that bypass ztunnel until they close, because they were opened before its capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BypassingConnections {
    /// Number of these connections.
    pub count: usize,
    /// The first of them, at most [`BypassingConnections::LISTED`], each from the end that opened it.
    pub listed: Vec<TcpTuple>,
}

impl BypassingConnections {
    /// Maximum number of connections that are listed.
    pub const LISTED: usize = 20;
    pub(crate) const NONE: BypassingConnections = BypassingConnections { count: 0, listed: Vec::new() };

    /// Observes the current namespace. `None`: connection tracking cannot be queried.
    pub(crate) fn observe_netns() -> Option<BypassingConnections> {
        let found = conntrack::outside_connections().ok()?.into_iter();
        Some(BypassingConnections::from_tuples(found.map(|connection| connection.original).collect()))
    }

    fn from_tuples(mut all: Vec<TcpTuple>) -> BypassingConnections {
        let count = all.len();
        all.sort_unstable();
        all.truncate(BypassingConnections::LISTED);
        BypassingConnections { count, listed: all }
    }

    /// Returns connections that would bypass ztunnel if the pod were captured now.
    fn from_sockets(sockets: &TcpSockets, would_be: impl Fn(&TcpSocket) -> bool) -> BypassingConnections {
        let ports = LocalPorts::from_sockets(sockets);
        let original = |TcpSocket { local, remote, .. }: &TcpSocket, accepted| match accepted {
            true => TcpTuple { source: *remote, dest: *local },
            false => TcpTuple { source: *local, dest: *remote },
        };
        let found = sockets.connected.iter().filter(|socket| would_be(socket));
        let found = found.map(|socket| original(socket, ports.was_accepted(socket)));
        BypassingConnections::from_tuples(found.collect())
    }
}

/// Facts that a pod's exceptions depend on, and that a socket does not have.
pub(crate) struct ExceptionFacts {
    /// Local ports, by which the end that opened a connection is determined.
    ports: LocalPorts,
    /// Addresses of excepted interfaces: connections with one of them use that interface.
    excepted_ips: BTreeSet<IpAddr>,
}

impl ExceptionFacts {
    /// Observes the current namespace. `None` if no rule depends on these facts, or the kernel cannot be queried.
    pub(crate) fn observe_netns(desired: &PodRulesSpec<'_>) -> Option<ExceptionFacts> {
        let ports = desired.pod.has_exceptions().then(LocalPorts::observe_netns)?.ok()?;
        let interfaces = &desired.pod.exceptions.interfaces;
        let excepted_ips = if interfaces.is_empty() { Ok(BTreeSet::new()) } else { list_ips(interfaces) };
        Some(ExceptionFacts { ports, excepted_ips: excepted_ips.ok()? })
    }
}

/// Returns the addresses of the interfaces that these names match.
fn list_ips(interfaces: &[IfName]) -> Result<BTreeSet<IpAddr>, hostnet::Error> {
    let mut handle = RtnetlinkHandle::open_in_pod()?;
    let mut links = handle.list_links()?;
    links.retain(|link| interfaces.iter().any(|interface| interface.matches(&link.name)));
    let addresses = handle.list_addresses()?.into_iter();
    let of_these = addresses.filter(|address| links.iter().any(|link| link.index == address.index));
    Ok(of_these.map(|address| address.ip).collect())
}

/// Sockets of a pod that are relevant when it is captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoiningSockets {
    /// TCP connections that would be redirected if they were opened now.
    pub redirected: BypassingConnections,
    /// Ports that ztunnel opens in the network namespace of each captured pod, and on which the pod itself listens, in
    /// ascending order.
    pub taken_ports: Vec<Port>,
}

/// Returns the sockets of the thread's network namespace that are relevant when these rules are applied; without rules
/// in the pod, as with node-level capture, all connections that leave it. `None`: the kernel does not list them.
pub fn joining_sockets(desired: Option<&PodRulesSpec<'_>>) -> Option<JoiningSockets> {
    let sockets = TcpSockets::observe_netns().ok()?;
    let Some(desired) = desired else {
        let redirected = BypassingConnections::from_sockets(&sockets, |socket| !socket.is_local());
        return Some(JoiningSockets { redirected, taken_ports: Vec::new() });
    };
    let facts = ExceptionFacts::observe_netns(desired);
    let redirected =
        BypassingConnections::from_sockets(&sockets, |socket| is_redirected(desired, facts.as_ref(), socket));
    // A kernel that does not list UDP sockets lists TCP sockets, which matter more.
    let receivers = conntrack::sockets::udp_receivers().ok().flatten().unwrap_or_default();
    let taken_ports = taken_ports(desired.config, &sockets.listeners, &receivers);
    Some(JoiningSockets { redirected, taken_ports })
}

/// Returns whether a socket of the thread's network namespace receives the DNS queries that rules redirect. `None`: the
/// kernel does not list such sockets.
pub fn is_dns_received(config: &InPodRulesConfig) -> Option<bool> {
    let receivers = conntrack::sockets::udp_receivers().ok()??;
    Some(!taken_ports(config, &[], &receivers).is_empty())
}

/// Returns the taken ports. ztunnel listens on every address; for DNS, over TCP and UDP, only on loopback.
fn taken_ports(config: &InPodRulesConfig, listeners: &[SocketAddr], receivers: &[TcpSocket]) -> Vec<Port> {
    let anywhere = [config.outbound, config.inbound, config.tunnel];
    let is_taken = |end: &SocketAddr| {
        let is_loopback = end.ip().is_unspecified() || end.ip().is_loopback();
        is_loopback && end.port() == config.dns.0
    };
    let listeners = listeners.iter().filter(|end| anywhere.contains(&Port(end.port())) || is_taken(end));
    let receivers = receivers.iter().map(|socket| &socket.local);
    let taken = listeners.chain(receivers.filter(|end| is_taken(end)));
    taken.map(|end| Port(end.port())).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns whether the rules would redirect the connection of a socket if it were opened now.
pub(crate) fn is_redirected(
    desired: &PodRulesSpec<'_>,
    facts: Option<&ExceptionFacts>,
    socket: &TcpSocket,
) -> bool {
    let (proxy, probes) = (desired.config.proxy, desired.config.probes);
    let remote = socket.remote.ip();
    let is_probe = remote == probes.v4 || remote == probes.v6;
    let is_excepted = facts.is_some_and(|facts| {
        let accepted = facts.ports.was_accepted(socket);
        (accepted && desired.pod.bypass_inbound)
            || facts.excepted_ips.contains(&socket.local.ip())
            || desired.pod.exceptions.excludes_connection(socket.local, socket.remote, accepted)
    });
    let is_captured = desired.families.contains(&Family::from_ip(remote));
    is_captured && !socket.is_local() && socket.mark & proxy.mask != proxy.value && !is_probe && !is_excepted
}

#[cfg(test)]
mod tests {
    use conntrack::sockets::TcpState;

    use super::*;

    #[test]
    fn a_port_is_taken_where_ztunnel_would_listen() {
        let ends =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let taken = |tcp: &[&str], udp: &[&str]| -> Vec<u16> {
            let receivers = ends(udp).into_iter().map(|end| TcpSocket::new(end, end, TcpState::Closed));
            let receivers: Vec<TcpSocket> = receivers.collect();
            let taken = taken_ports(&InPodRulesConfig::default(), &ends(tcp), &receivers);
            taken.into_iter().map(|port| port.0).collect()
        };
        assert_eq!(taken(&["0.0.0.0:8080", "127.0.0.1:15000"], &["0.0.0.0:15001"]), [0; 0]);
        let all = ["10.0.0.7:15008", "[::]:15001", "[::1]:15006", "127.0.0.1:15001"];
        assert_eq!(taken(&all, &[]), [15001, 15006, 15008]);
        assert_eq!(taken(&["0.0.0.0:15053"], &[]), [15053]);
        assert_eq!(taken(&[], &["[::1]:15053"]), [15053]);
        assert_eq!(taken(&["10.0.0.7:15053"], &["[fd00::7]:15053"]), [0; 0], "its own are on loopback");
    }
}
