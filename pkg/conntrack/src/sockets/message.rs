//! Requests: `struct inet_diag_req_v2`.

use std::net::{IpAddr, SocketAddr};

use netlink::{MessageFlags, NetlinkRequest};

use super::{TcpSocket, TcpState};

/// `SOCK_DIAG_BY_FAMILY`.
pub(crate) const BY_FAMILY: u16 = 20;
/// `SOCK_DESTROY`.
pub(crate) const DESTROY: u16 = 21;
pub(crate) const AF_INET: u8 = 2;
pub(crate) const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
/// `INET_DIAG_NOCOOKIE`, twice: any socket.
const NO_COOKIE: [u8; 8] = [0xff; 8];
/// Size of `struct inet_diag_sockid`: ports and addresses of both ends, interface, cookie.
pub(crate) const ID: usize = 48;

/// A request for sockets.
pub(crate) struct DiagRequest {
    family: u8,
    protocol: u8,
    states: u32,
    id: [u8; ID],
}

impl DiagRequest {
    /// Requests all sockets of a family that are in one of the states for which `is_asked_for` returns true.
    pub(crate) fn list(family: u8, is_asked_for: impl Fn(TcpState) -> bool) -> DiagRequest {
        let states = TcpState::ALL.into_iter().filter(|state| is_asked_for(*state));
        let states = states.fold(0, |mask, state| mask | 1 << state.number());
        DiagRequest { family, protocol: IPPROTO_TCP, states, id: [0; ID] }
    }

    /// Requests all UDP sockets of a family that are bound and have no peer.
    pub(crate) fn unconnected_udp(family: u8) -> DiagRequest {
        DiagRequest { protocol: IPPROTO_UDP, ..DiagRequest::list(family, |state| state == TcpState::Closed) }
    }

    /// Requests the socket with these ends, in any state. Without one, the kernel returns a listener at the port.
    pub(crate) fn for_connection(local: SocketAddr, remote: SocketAddr) -> DiagRequest {
        let mut id = [0; ID];
        let ports = [local, remote].into_iter().flat_map(|end| end.port().to_be_bytes());
        let addresses = [local, remote].into_iter().flat_map(|end| padded_address(end.ip()));
        let any = [0; 4].into_iter().chain(NO_COOKIE); // interface, and cookie
        id.iter_mut().zip(ports.chain(addresses).chain(any)).for_each(|(to, from)| *to = from);
        let family = if local.ip().to_canonical().is_ipv4() { AF_INET } else { AF_INET6 };
        DiagRequest { family, protocol: IPPROTO_TCP, states: u32::MAX, id }
    }

    /// Requests a socket that was listed, and no later one with the same addresses.
    pub(crate) fn for_socket(socket: &TcpSocket) -> DiagRequest {
        DiagRequest { family: socket.family, protocol: IPPROTO_TCP, states: u32::MAX, id: socket.id }
    }

    pub(crate) fn to_message(&self, kind: u16) -> NetlinkRequest {
        let mut bytes = vec![self.family, self.protocol, 0, 0];
        bytes.extend_from_slice(&self.states.to_ne_bytes());
        bytes.extend_from_slice(&self.id);
        NetlinkRequest::new(kind, MessageFlags::NONE, &bytes)
    }
}

fn padded_address(ip: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match ip.to_canonical() {
        IpAddr::V4(ip) => bytes.iter_mut().zip(ip.octets()).for_each(|(to, from)| *to = from),
        IpAddr::V6(ip) => bytes = ip.octets(),
    }
    bytes
}
