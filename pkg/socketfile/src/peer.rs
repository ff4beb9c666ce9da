//! Peer credentials of Unix sockets.

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// Returns the UID as which the peer of a Unix socket connected, as mapped in our user namespace.
///
/// The process ID that comes with it is 0 for a peer outside our PID namespace, which is the usual case in a container.
///
/// # Errors
/// The kernel's error; none is possible for a connected Unix socket.
pub fn peer_user(socket: &impl AsFd) -> io::Result<u32> {
    Ok(getsockopt(socket, PeerCredentials)?.uid())
}
