//! Whether ztunnel listens in a pod's network namespace.

use std::io;

use model::Port;
use netns::Netns;

use crate::Error;

/// Returns whether any socket listens on a TCP port in a network namespace.
///
/// # Errors
/// The namespace cannot be entered, or its sockets cannot be listed, as on a kernel without `inet_diag`.
pub fn has_listener(netns: &Netns, port: Port) -> Result<bool, Error> {
    let listed = netns.run_in(sockdiag::tcp_listeners)?.map_err(io::Error::other);
    let listeners = listed.and_then(|all| all.ok_or_else(|| io::Error::other("there are too many")));
    Ok(listeners.map_err(Error::Sockets)?.iter().any(|end| end.port() == port.0))
}
