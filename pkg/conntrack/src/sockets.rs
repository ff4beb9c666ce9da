//! Sockets of a network namespace, as reported by the kernel (`NETLINK_SOCK_DIAG`): connected and listening TCP
//! sockets, the user of a socket, closing a connection; and receiving UDP sockets.
//!
//! Everything acts on the network namespace of the calling thread. Listing needs no capability; marks are reported, and
//! sockets can be closed, only with `CAP_NET_ADMIN` in the namespace.
//!
//! Sources: the kernel's `include/uapi/linux/inet_diag.h`, `net/ipv4/inet_diag.c` and `net/ipv4/tcp_diag.c`.

#[doc(hidden)]
pub mod fuzzing;
mod message;
mod socket;

use std::{collections::BTreeMap, fs, net::SocketAddr};

use message::{AF_INET, AF_INET6, BY_FAMILY, DESTROY, DiagRequest};
use netlink::{Errno, Error, ListBounds, NetlinkProtocol, ReplyMessages, Socket, allow_missing};

pub use socket::{TcpSocket, TcpState};

/// Maximum number of bytes of sockets that are read; one has about 150 bytes.
const MAX_BYTES: usize = 16 << 20;

/// File in which the kernel counts the sockets of a namespace, and the prefix of the number.
type SocketCount = (&'static str, &'static str);

const COUNTED_V4: SocketCount = ("/proc/thread-self/net/sockstat", "TCP: inuse ");
const COUNTED_V6: SocketCount = ("/proc/thread-self/net/sockstat6", "TCP6: inuse ");

/// Returns whether no socket of the family is connected or listens, so that no connection is being opened, either. To
/// list none, the kernel walks the sockets of all namespaces, which takes some milliseconds.
fn has_none((path, start): &SocketCount) -> bool {
    let is_zero =
        |line: &str| line.strip_prefix(start).is_some_and(|rest| rest.split(' ').next() == Some("0"));
    fs::read_to_string(path).is_ok_and(|text| text.lines().any(is_zero))
}

/// Connected sockets, including those being opened, and listening ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpSockets {
    /// Sockets with a peer, except those whose connection has ended (`TIME_WAIT`).
    pub connected: Vec<TcpSocket>,
    /// Addresses of listening sockets.
    pub listeners: Vec<SocketAddr>,
    /// Whether there are more, which were not read (more than 16 MiB of a family).
    pub is_truncated: bool,
}

impl TcpSockets {
    /// Returns the sockets of the calling thread's namespace, of both families. An IPv6 socket that is connected over
    /// IPv4 has IPv4 addresses.
    ///
    /// # Errors
    /// The kernel does not reply, for example without `inet_diag`. A kernel without IPv6 has no IPv6 sockets.
    pub fn observe_netns() -> Result<TcpSockets, Error> {
        let mut sockets = TcpSockets::default();
        for (family, counted) in [(AF_INET, &COUNTED_V4), (AF_INET6, &COUNTED_V6)] {
            if has_none(counted) {
                continue;
            }
            let (replies, is_all) = list_family(family, &DiagRequest::list(family, TcpState::is_live))?;
            sockets.is_truncated |= !is_all;
            for socket in replies.iter().filter_map(|reply| TcpSocket::parse(&reply)) {
                match socket.state {
                    TcpState::Listen => sockets.listeners.push(socket.local),
                    _ => sockets.connected.push(socket),
                }
            }
        }
        Ok(sockets)
    }

    /// Returns the connected sockets by local and remote address, which distinguish a connection from all others of the
    /// namespace. The two sockets of a connection within the namespace have different keys.
    pub fn by_addresses(&self) -> BTreeMap<(SocketAddr, SocketAddr), &TcpSocket> {
        self.connected.iter().map(|socket| ((socket.local, socket.remote), socket)).collect()
    }
}

/// Returns the listening TCP sockets of the calling thread's namespace, of both families; `None`: more than 16 MiB of
/// them. Unlike [`TcpSockets::observe_netns`], this lists no connections.
///
/// # Errors
/// As [`TcpSockets::observe_netns`].
pub fn tcp_listeners() -> Result<Option<Vec<TcpSocket>>, Error> {
    list_sockets(|family| DiagRequest::list(family, |state| state == TcpState::Listen))
}

/// Returns the UDP sockets of the calling thread's namespace without a peer, of both families; `None`: more than 16 MiB
/// of them.
///
/// # Errors
/// The kernel does not reply, for example without `udp_diag`.
pub fn udp_receivers() -> Result<Option<Vec<TcpSocket>>, Error> {
    list_sockets(DiagRequest::unconnected_udp)
}

fn list_sockets(request: impl Fn(u8) -> DiagRequest) -> Result<Option<Vec<TcpSocket>>, Error> {
    let mut found = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let (replies, is_all) = list_family(family, &request(family))?;
        if !is_all {
            return Ok(None);
        }
        found.extend(replies.iter().filter_map(|reply| TcpSocket::parse(&reply)));
    }
    Ok(Some(found))
}

/// Returns the beginning of a list of sockets of a family, and whether it is the complete list.
fn list_family(family: u8, request: &DiagRequest) -> Result<(ReplyMessages, bool), Error> {
    let socket = Socket::open(NetlinkProtocol::Sockets)?.with_bounds(ListBounds::POD);
    match socket.dump_head(&request.to_message(BY_FAMILY), MAX_BYTES) {
        // A kernel without IPv6 has no such sockets.
        Err(error) if family == AF_INET6 && error.errno() == Some(Errno::NOENT) => {
            Ok((ReplyMessages::default(), true))
        }
        listed => listed.map(|(replies, rest)| (replies, rest.is_some())),
    }
}

/// Returns the user who created the socket at `theirs`, which is connected to `ours`; `None`: no process holds it any
/// longer.
///
/// # Errors
/// The kernel does not reply, for example without `inet_diag`.
pub fn connection_user(theirs: SocketAddr, ours: SocketAddr) -> Result<Option<u32>, Error> {
    let mut socket = Socket::open(NetlinkProtocol::Sockets)?;
    let replies = socket.get(DiagRequest::for_connection(theirs, ours).to_message(BY_FAMILY))?;
    let found = replies.iter().find_map(|reply| TcpSocket::parse(&reply));
    Ok(found.filter(|socket| is_held(socket, theirs, ours)).map(|socket| socket.user))
}

/// Returns whether a process holds the connection's socket. Without such a connection the kernel returns a listener at
/// the port. A socket without a process is reported as root's, with inode 0.
fn is_held(socket: &TcpSocket, theirs: SocketAddr, ours: SocketAddr) -> bool {
    let is = |found: SocketAddr, asked: SocketAddr| {
        (found.ip(), found.port()) == (asked.ip().to_canonical(), asked.port())
    };
    socket.state.can_be_held() && is(socket.local, theirs) && is(socket.remote, ours) && socket.inode != 0
}

/// Closes a connection: its peer gets a reset, its process the error `ECONNABORTED`. Returns false if it no longer
/// exists.
///
/// # Errors
/// The kernel refuses, for example without `CONFIG_INET_DIAG_DESTROY` (`EOPNOTSUPP`).
pub fn destroy_socket(handle: &mut Socket, socket: &TcpSocket) -> Result<bool, Error> {
    let request = DiagRequest::for_socket(socket).to_message(DESTROY);
    Ok(allow_missing(handle.request(request), Errno::NOENT)?.is_some())
}

#[cfg(test)]
mod tests;
