//! Connections that are there when a pod is captured.

use conntrack::{LocalPorts, TcpTuple};
use rules::inpod::PodExceptions;
use sockdiag::TcpSocket;

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

/// Returns what says who opened a connection; `None` where no rule depends on it, or the kernel cannot be asked.
pub(crate) fn local_ports(desired: &PodRulesSpec<'_>) -> Option<LocalPorts> {
    let has_exceptions = desired.pod.bypass_inbound || desired.pod.exceptions != PodExceptions::default();
    has_exceptions.then(LocalPorts::of_this_netns)?.ok()
}

/// Whether the rules would redirect the connection of a socket if it were opened now. `ports`: as [`local_ports`] has them.
pub(crate) fn is_redirected(
    desired: &PodRulesSpec<'_>,
    ports: Option<&LocalPorts>,
    socket: &TcpSocket,
) -> bool {
    let (proxy, probes) = (desired.config.proxy, desired.config.probes);
    let remote = socket.remote.ip();
    let is_probe = remote == probes.v4 || remote == probes.v6;
    let is_excepted = ports.is_some_and(|ports| {
        let accepted = ports.was_accepted(socket);
        (accepted && desired.pod.bypass_inbound)
            || desired.pod.exceptions.excludes_connection(socket.local, socket.remote, accepted)
    });
    !socket.is_local() && socket.mark & proxy.mask != proxy.value && !is_probe && !is_excepted
}
