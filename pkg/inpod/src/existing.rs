//! Connections that are there when a pod is captured.

use std::{collections::BTreeSet, net::IpAddr};

use conntrack::{LocalPorts, TcpTuple};
use hostnet::RtnetlinkHandle;
use model::{Family, IfName};
use sockdiag::{TcpSocket, TcpSockets};

use crate::pod::PodRulesSpec;

/// Connections of a captured pod that bypass ztunnel until they close, because they are older than its capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideConnections {
    /// How many there are.
    pub count: usize,
    /// The first of them, at most [`OutsideConnections::LISTED`], from whoever opened them.
    pub listed: Vec<TcpTuple>,
}

impl OutsideConnections {
    /// Maximum number of connections that are listed.
    pub const LISTED: usize = 20;
    pub(crate) const NONE: OutsideConnections = OutsideConnections { count: 0, listed: Vec::new() };

    /// Without tracking that can be asked there are none: none could be kept.
    pub(crate) fn of_this_netns() -> OutsideConnections {
        let Ok(mut found) = conntrack::outside_connections() else { return OutsideConnections::NONE };
        found.sort_by_key(|connection| connection.original);
        let listed = found.iter().take(OutsideConnections::LISTED).map(|connection| connection.original);
        OutsideConnections { count: found.len(), listed: listed.collect() }
    }
}

/// Facts about connections that a pod's exceptions depend on, and a socket does not have.
pub(crate) struct ExceptionFacts {
    /// Ports that tell who opened a connection.
    ports: LocalPorts,
    /// Addresses of excepted interfaces: connections with one of them use that interface.
    excepted_ips: BTreeSet<IpAddr>,
}

impl ExceptionFacts {
    /// `None` where no rule depends on them, or the kernel cannot be asked.
    pub(crate) fn of_this_netns(desired: &PodRulesSpec<'_>) -> Option<ExceptionFacts> {
        let ports = desired.pod.has_exceptions().then(LocalPorts::of_this_netns)?.ok()?;
        let interfaces = &desired.pod.exceptions.interfaces;
        let excepted_ips = if interfaces.is_empty() { Ok(BTreeSet::new()) } else { list_ips(interfaces) };
        Some(ExceptionFacts { ports, excepted_ips: excepted_ips.ok()? })
    }
}

/// The addresses of the interfaces that these names match.
fn list_ips(interfaces: &[IfName]) -> Result<BTreeSet<IpAddr>, hostnet::Error> {
    let mut handle = RtnetlinkHandle::open_in_pod()?;
    let mut links = handle.list_links()?;
    links.retain(|link| interfaces.iter().any(|interface| interface.matches(&link.name)));
    let addresses = handle.list_addresses()?.into_iter();
    let of_these = addresses.filter(|address| links.iter().any(|link| link.index == address.index));
    Ok(of_these.map(|address| address.ip).collect())
}

/// Returns the number of TCP connections of the thread's network namespace that the rules would redirect if they were opened now.
/// `None`: the kernel does not list them.
#[must_use]
pub fn count_redirected(desired: &PodRulesSpec<'_>) -> Option<usize> {
    let facts = ExceptionFacts::of_this_netns(desired);
    let sockets = TcpSockets::of_this_netns().ok()?.connected;
    Some(sockets.iter().filter(|socket| is_redirected(desired, facts.as_ref(), socket)).count())
}

/// Whether the rules would redirect the connection of a socket if it were opened now.
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
    let is_captured = desired.families.contains(&Family::of_ip(remote));
    is_captured && !socket.is_local() && socket.mark & proxy.mask != proxy.value && !is_probe && !is_excepted
}
