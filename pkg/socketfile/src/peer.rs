//! Who is at the other end.

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// The user as whom the peer of a Unix socket connected, as our user namespace numbers it.
///
/// The process id that comes with it is 0 for a peer outside our PID namespace, which is the usual case in a container.
///
/// # Errors
/// The kernel's reason; it has none for a connected Unix socket.
pub fn peer_user(socket: &impl AsFd) -> io::Result<u32> {
    Ok(getsockopt(socket, PeerCredentials)?.uid())
}
