//! TCP sockets of a network namespace, as the kernel knows them (`NETLINK_SOCK_DIAG`): who is connected to whom, who listens,
//! whose a socket is, and the end of a connection; and where UDP sockets receive.
//!
//! Everything acts on the network namespace of the calling thread. Listing needs no capability; marks are shown, and sockets
//! closed, only with `CAP_NET_ADMIN` in the namespace.
//!
//! Sources: the kernel's `include/uapi/linux/inet_diag.h`, `net/ipv4/inet_diag.c` and `net/ipv4/tcp_diag.c`.

#[doc(hidden)]
pub mod fuzzing;
mod message;
mod socket;

use std::{collections::BTreeMap, fs, net::SocketAddr};

use message::{AF_INET, AF_INET6, BY_FAMILY, DESTROY, DiagRequest};
use netlink::{Errno, Error, ListBounds, NetlinkProtocol, Socket};

pub use socket::{TcpSocket, TcpState};

/// More sockets than fit are not read; one takes about 150 bytes.
const MAX_BYTES: usize = 16 << 20;

/// Where the kernel counts the sockets of a namespace, and what begins the number.
type SocketCount = (&'static str, &'static str);

const COUNTED_V4: SocketCount = ("/proc/thread-self/net/sockstat", "TCP: inuse ");
const COUNTED_V6: SocketCount = ("/proc/thread-self/net/sockstat6", "TCP6: inuse ");

/// No socket of the family is connected or listens, so that no connection is on the way either. To list none, the kernel walks
/// the sockets of all namespaces, which takes some milliseconds.
fn has_none((path, start): &SocketCount) -> bool {
    let is_zero =
        |line: &str| line.strip_prefix(start).is_some_and(|rest| rest.split(' ').next() == Some("0"));
    fs::read_to_string(path).is_ok_and(|text| text.lines().any(is_zero))
}

/// Sockets that are connected, or on the way, and those that listen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpSockets {
    /// Sockets with a peer, apart from those whose connection is over (`TIME_WAIT`).
    pub connected: Vec<TcpSocket>,
    /// Where the others listen.
    pub listeners: Vec<SocketAddr>,
    /// There are more, which were not read (more than 16 MiB of a family).
    pub is_truncated: bool,
}

impl TcpSockets {
    /// Returns the sockets of the calling thread's namespace, of both families. An IPv6 socket that is connected over IPv4 has
    /// IPv4 addresses.
    ///
    /// # Errors
    /// The kernel does not answer, such as one without `inet_diag`. One without IPv6 has no sockets of it.
    pub fn of_this_netns() -> Result<TcpSockets, Error> {
        let mut sockets = TcpSockets::default();
        for (family, counted) in [(AF_INET, &COUNTED_V4), (AF_INET6, &COUNTED_V6)] {
            if has_none(counted) {
                continue;
            }
            let request = DiagRequest::list(family, TcpState::is_live).to_message(BY_FAMILY);
            let socket = Socket::open(NetlinkProtocol::Sockets)?.with_bounds(ListBounds::POD);
            let (replies, rest) = match socket.dump_head(&request, MAX_BYTES) {
                Err(error) if family == AF_INET6 && error.errno() == Some(Errno::NOENT) => continue,
                listed => listed?,
            };
            sockets.is_truncated |= rest.is_none();
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
    /// namespace. Of a connection within it, the two sockets have different keys.
    pub fn by_addresses(&self) -> BTreeMap<(SocketAddr, SocketAddr), &TcpSocket> {
        self.connected.iter().map(|socket| ((socket.local, socket.remote), socket)).collect()
    }
}

/// Returns where TCP sockets of the calling thread's namespace listen, in both families; `None`: more than 16 MiB of them.
/// Unlike [`TcpSockets::of_this_netns`], the kernel lists no connection for it.
///
/// # Errors
/// As there.
pub fn tcp_listeners() -> Result<Option<Vec<SocketAddr>>, Error> {
    local_ends(|family| DiagRequest::list(family, |state| state == TcpState::Listen))
}

/// Returns where UDP sockets of the calling thread's namespace receive from everybody, in both families; `None`: more than
/// 16 MiB of them.
///
/// # Errors
/// The kernel does not answer, such as one without `udp_diag`.
pub fn udp_receivers() -> Result<Option<Vec<SocketAddr>>, Error> {
    local_ends(DiagRequest::unconnected_udp)
}

fn local_ends(request: impl Fn(u8) -> DiagRequest) -> Result<Option<Vec<SocketAddr>>, Error> {
    let mut found = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let socket = Socket::open(NetlinkProtocol::Sockets)?.with_bounds(ListBounds::POD);
        match socket.dump_head(&request(family).to_message(BY_FAMILY), MAX_BYTES) {
            Err(error) if family == AF_INET6 && error.errno() == Some(Errno::NOENT) => {}
            Err(error) => return Err(error),
            Ok((_, None)) => return Ok(None),
            Ok((replies, Some(_))) => {
                found.extend(replies.iter().filter_map(|reply| Some(TcpSocket::parse(&reply)?.local)));
            }
        }
    }
    Ok(Some(found))
}

/// The user who made the socket at `theirs`, which is connected to `ours`; `None`: no process holds it any more.
///
/// # Errors
/// The kernel does not answer, such as one without `inet_diag`.
pub fn user_of(theirs: SocketAddr, ours: SocketAddr) -> Result<Option<u32>, Error> {
    let mut socket = Socket::open(NetlinkProtocol::Sockets)?;
    let replies = socket.get(DiagRequest::for_connection(theirs, ours).to_message(BY_FAMILY))?;
    let found = replies.iter().find_map(|reply| TcpSocket::parse(&reply));
    Ok(found.filter(|socket| is_held(socket, theirs, ours)).map(|socket| socket.user))
}

/// Without a connection of these ends the kernel answers with a listener at the port. Of a socket without a process it says that
/// it is root's; its inode is 0 then.
fn is_held(socket: &TcpSocket, theirs: SocketAddr, ours: SocketAddr) -> bool {
    let is = |found: SocketAddr, asked: SocketAddr| {
        (found.ip(), found.port()) == (asked.ip().to_canonical(), asked.port())
    };
    socket.state.can_be_held() && is(socket.local, theirs) && is(socket.remote, ours) && socket.inode != 0
}

/// Closes a connection: its peer gets a reset, its process the error `ECONNABORTED`. False: it was gone.
///
/// # Errors
/// The kernel refuses, such as one without `CONFIG_INET_DIAG_DESTROY` (`EOPNOTSUPP`).
pub fn destroy_socket(handle: &mut Socket, socket: &TcpSocket) -> Result<bool, Error> {
    match handle.request(DiagRequest::for_socket(socket).to_message(DESTROY)) {
        Err(error) if error.errno() == Some(Errno::NOENT) => Ok(false),
        done => done.map(|()| true),
    }
}

/// A handle for [`destroy_socket`], on the calling thread's namespace.
///
/// # Errors
/// The kernel does not give one.
pub fn open_handle() -> Result<Socket, Error> {
    Socket::open(NetlinkProtocol::Sockets)
}

#[cfg(test)]
mod tests;
