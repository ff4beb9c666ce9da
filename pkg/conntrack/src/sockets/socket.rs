//! Sockets in the kernel's replies: `struct inet_diag_msg` and attributes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink::ReceivedMessage;

use super::message::{AF_INET, AF_INET6, ID};

/// Size of `struct inet_diag_msg`.
const ANSWER: usize = 72;
/// `INET_DIAG_MARK`.
const MARK: u16 = 15;

/// State of a TCP socket, as the kernel numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are those of RFC 9293")]
pub enum TcpState {
    Established = 1,
    SynSent,
    SynReceived,
    FinWait1,
    FinWait2,
    TimeWait,
    Closed,
    CloseWait,
    LastAck,
    Listen,
    Closing,
}

impl TcpState {
    pub(crate) const ALL: [TcpState; 11] = [
        TcpState::Established,
        TcpState::SynSent,
        TcpState::SynReceived,
        TcpState::FinWait1,
        TcpState::FinWait2,
        TcpState::TimeWait,
        TcpState::Closed,
        TcpState::CloseWait,
        TcpState::LastAck,
        TcpState::Listen,
        TcpState::Closing,
    ];

    /// Returns whether data may still be sent or received in this state.
    pub(crate) fn is_live(self) -> bool {
        !matches!(self, TcpState::TimeWait | TcpState::Closed)
    }

    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    fn from_number(number: u8) -> Option<TcpState> {
        TcpState::ALL.into_iter().find(|state| state.number() == number)
    }

    /// Returns whether a process can hold a client's socket in this state after the server has accepted the connection.
    pub(crate) fn can_be_held(self) -> bool {
        matches!(self, TcpState::Established | TcpState::FinWait1 | TcpState::FinWait2)
    }
}

/// A socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// Local address, without a scope, even if link-local.
    pub local: SocketAddr,
    /// Remote address; port 0 for a listening socket.
    pub remote: SocketAddr,
    /// TCP state of the socket.
    pub state: TcpState,
    /// The user who created the socket.
    pub user: u32,
    /// Inode number in the file system of sockets; 0 if no process holds the socket.
    pub inode: u32,
    /// Mark of the socket (`SO_MARK`); 0 without the capability to read it.
    pub mark: u32,
    pub(crate) family: u8,
    pub(crate) id: [u8; ID],
}

impl TcpSocket {
    /// Creates a socket without user, inode or mark, which the kernel did not list: for tests of decisions about
    /// sockets.
    pub fn new(local: SocketAddr, remote: SocketAddr, state: TcpState) -> TcpSocket {
        TcpSocket { local, remote, state, user: 0, inode: 0, mark: 0, family: AF_INET, id: [0; ID] }
    }

    /// Parses a socket; `None`: the message is not about a TCP socket.
    pub(crate) fn parse(message: &ReceivedMessage<'_>) -> Option<TcpSocket> {
        let (answer, attributes) = message.split_header::<ANSWER>().ok()?;
        let [family, state, _, _, rest @ ..] = answer;
        let (id, rest) = rest.split_first_chunk::<ID>()?;
        let number = |at: usize| Some(u32::from_ne_bytes(*rest.get(at..)?.first_chunk()?));
        let port = |at: usize| Some(u16::from_be_bytes(*id.get(at..)?.first_chunk()?));
        let address = |at: usize| parse_address(*family, *id.get(at..)?.first_chunk()?);
        Some(TcpSocket {
            local: SocketAddr::new(address(4)?, port(0)?),
            remote: SocketAddr::new(address(20)?, port(2)?),
            state: TcpState::from_number(*state)?,
            // After expiry and both queues.
            user: number(12)?,
            inode: number(16)?,
            mark: attributes.find(MARK).and_then(|mark| mark.read_u32().ok()).unwrap_or_default(),
            family: *family,
            id: *id,
        })
    }

    /// Returns whether both ends are on the same host by their addresses.
    pub fn is_local(&self) -> bool {
        self.local.ip() == self.remote.ip() || self.remote.ip().is_loopback()
    }
}

fn parse_address(family: u8, bytes: [u8; 16]) -> Option<IpAddr> {
    match family {
        AF_INET => bytes.first_chunk::<4>().map(|octets| IpAddr::V4(Ipv4Addr::from(*octets))),
        AF_INET6 => Some(IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use netlink::MessageFlags;

    use super::*;

    fn message(state: u8, family: u8, addresses: [&[u8]; 2], extra: &[u8]) -> Vec<u8> {
        let mut bytes = vec![family, state, 0, 0, 0x9c, 0x40, 0x1f, 0x90];
        for address in addresses {
            bytes.extend_from_slice(address);
            bytes.resize(bytes.len() + 16 - address.len(), 0);
        }
        bytes.resize(52 + 12, 0);
        bytes.extend_from_slice(&1337_u32.to_ne_bytes());
        bytes.extend_from_slice(&99_u32.to_ne_bytes());
        bytes.extend_from_slice(extra);
        bytes
    }

    fn parsed(payload: &[u8]) -> Option<TcpSocket> {
        TcpSocket::parse(&ReceivedMessage { kind: 20, flags: MessageFlags::NONE, sequence: 0, payload })
    }

    #[test]
    fn a_socket_is_read_with_its_mark() {
        let mut mark = vec![8, 0, 15, 0];
        mark.extend_from_slice(&0x539_u32.to_ne_bytes());
        let socket = parsed(&message(1, AF_INET, [&[10, 0, 0, 1], &[10, 0, 0, 2]], &mark)).unwrap();
        assert_eq!(
            (socket.local, socket.remote),
            ("10.0.0.1:40000".parse().unwrap(), "10.0.0.2:8080".parse().unwrap())
        );
        assert_eq!(
            (socket.state, socket.user, socket.inode, socket.mark),
            (TcpState::Established, 1337, 99, 0x539)
        );
        assert!(!socket.is_local());
    }

    #[test]
    fn a_socket_of_ipv6_over_ipv4_has_addresses_of_ipv4() {
        let mapped = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last];
        let socket = parsed(&message(8, AF_INET6, [&mapped(1), &mapped(1)], &[])).unwrap();
        assert_eq!(
            (socket.local.ip(), socket.state, socket.mark),
            ("10.0.0.1".parse().unwrap(), TcpState::CloseWait, 0)
        );
        assert!(socket.is_local());
        let real = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(
            parsed(&message(1, AF_INET6, [&real, &real], &[])).unwrap().local.ip(),
            "fd00::7".parse::<IpAddr>().unwrap()
        );
    }

    #[test]
    fn what_is_no_tcp_socket_is_none() {
        let good = message(1, AF_INET, [&[10, 0, 0, 1], &[10, 0, 0, 2]], &[]);
        assert!(parsed(&good).is_some());
        assert_eq!(parsed(good.get(..71).unwrap()), None, "cut short");
        for (state, family) in [(0, AF_INET), (12, AF_INET), (255, AF_INET), (1, 1)] {
            assert_eq!(parsed(&message(state, family, [&[], &[]], &[])), None, "{state} {family}");
        }
    }
}
