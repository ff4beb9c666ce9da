//! Whether ztunnel listens in a pod's network namespace.

use std::io;

use conntrack::sockets::TcpSocket;
use netns::Netns;
use rules::inpod::InPodRulesConfig;

use crate::Error;

/// Returns whether ztunnel listens on its outbound port in a network namespace: its sockets have a mark, which a process
/// without capabilities cannot set.
///
/// # Errors
/// The namespace cannot be entered, or its sockets cannot be listed, as on a kernel without `inet_diag`.
pub fn has_listener(netns: &Netns, config: &InPodRulesConfig) -> Result<bool, Error> {
    let listed = netns.run_in(conntrack::sockets::tcp_listeners)?.map_err(io::Error::other);
    let listeners = listed.and_then(|all| all.ok_or_else(|| io::Error::other("there are too many")));
    let (port, mark) = (config.outbound.0, config.proxy);
    let is_its = |socket: &TcpSocket| socket.local.port() == port && socket.mark & mark.mask == mark.value;
    Ok(listeners.map_err(Error::Sockets)?.iter().any(is_its))
}
