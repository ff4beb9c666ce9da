//! Direction of connections: the end that opened one, which the kernel does not report for an established connection.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
};

use crate::sockets::{TcpSocket, TcpSockets, TcpState};

use crate::{Error, held};

/// Default range from which `connect` takes local ports (`net.ipv4.ip_local_port_range`).
const EPHEMERAL: RangeInclusive<u16> = 32768..=60999;

/// Listening sockets and ephemeral ports of a namespace, which distinguish the ports of clients from those of servers.
#[derive(Clone, Debug)]
pub struct LocalPorts {
    listeners: BTreeSet<SocketAddr>,
    ephemeral: RangeInclusive<u16>,
}

impl LocalPorts {
    /// Creates the ports of a namespace with these sockets. `range`: content of its `net.ipv4.ip_local_port_range`.
    pub fn new(sockets: &TcpSockets, range: Option<&str>) -> LocalPorts {
        LocalPorts {
            listeners: sockets.listeners.iter().copied().collect(),
            ephemeral: range.and_then(parse_range).unwrap_or(EPHEMERAL),
        }
    }

    /// Reads the ports of the calling thread's namespace.
    ///
    /// # Errors
    /// The sockets cannot be listed.
    pub fn observe_netns() -> Result<LocalPorts, Error> {
        Ok(LocalPorts::from_sockets(&held::list_sockets()?))
    }

    /// Reads the ports of the calling thread's namespace, which has these sockets.
    pub fn from_sockets(sockets: &TcpSockets) -> LocalPorts {
        let range = hostnet::sysctl::read("net/ipv4/ip_local_port_range").ok().flatten();
        LocalPorts::new(sockets, range.as_deref())
    }

    /// Returns whether the peer opened the connection. Certain if a socket listens at the local end or the connection
    /// is just being opened; otherwise the end with an ephemeral port counts as the client, and the local one if both
    /// have one.
    pub fn was_accepted(&self, socket: &TcpSocket) -> bool {
        match socket.state {
            TcpState::SynReceived => true,
            TcpState::SynSent => false,
            _ => {
                let own = [socket.local.ip(), Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
                let at = |ip| SocketAddr::new(ip, socket.local.port());
                let has_listener = own.into_iter().any(|ip| self.listeners.contains(&at(ip)));
                let is_ephemeral = |end: SocketAddr| self.ephemeral.contains(&end.port());
                has_listener || (!is_ephemeral(socket.local) && is_ephemeral(socket.remote))
            }
        }
    }
}

fn parse_range(range: &str) -> Option<RangeInclusive<u16>> {
    let (low, high) = range.trim().split_once(char::is_whitespace)?;
    Some(low.parse().ok()?..=high.trim().parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(local: &str, remote: &str, state: TcpState) -> TcpSocket {
        TcpSocket::new(local.parse().unwrap(), remote.parse().unwrap(), state)
    }

    #[test]
    fn who_opened_a_connection_is_told_by_listeners_and_then_by_ports() {
        let listeners = ["0.0.0.0:8080", "10.0.0.2:40000", "[::]:9090"];
        let listeners = listeners.map(|text| text.parse().unwrap()).to_vec();
        let sockets = TcpSockets { listeners, ..TcpSockets::default() };
        let ports = LocalPorts::new(&sockets, Some("32768\t60999\n"));
        for (local, remote, accepted) in [
            ("10.0.0.2:8080", "10.0.0.1:40000", true),
            ("10.0.0.2:8080", "10.0.0.1:80", true),
            ("10.0.0.2:9090", "10.0.0.1:40000", true),
            ("[fd00::2]:9090", "[fd00::1]:40000", true),
            ("10.0.0.2:40000", "10.0.0.1:40001", true),
            ("10.0.0.3:40000", "10.0.0.1:40001", false),
            ("10.0.0.2:40001", "10.0.0.1:80", false),
            ("10.0.0.2:7070", "10.0.0.1:40000", true),
            ("10.0.0.2:7070", "10.0.0.1:80", false),
        ] {
            let established = socket(local, remote, TcpState::Established);
            assert_eq!(ports.was_accepted(&established), accepted, "{local} {remote}");
            assert!(ports.was_accepted(&socket(local, remote, TcpState::SynReceived)));
            assert!(!ports.was_accepted(&socket(local, remote, TcpState::SynSent)));
        }
    }

    /// As many as a process without any capability can open: a search of all listeners for each takes a minute.
    #[test]
    fn tens_of_thousands_of_sockets_and_listeners_take_no_time() {
        let end = |host: u8, port: u16| SocketAddr::from(([127, 0, 0, host], port));
        let listeners = (1..=u16::MAX).map(|port| end(1, port)).collect();
        let ports = LocalPorts::new(&TcpSockets { listeners, ..TcpSockets::default() }, None);
        let socket = |port| TcpSocket::new(end(2, port), end(3, port), TcpState::Established);
        // The best of several: this machine runs other tests, too.
        let took = (0..5).map(|_| {
            let began = std::time::Instant::now();
            assert!(!(1..=u16::MAX).any(|port| ports.was_accepted(&socket(port))));
            began.elapsed()
        });
        let best = took.min().unwrap();
        assert!(best < std::time::Duration::from_secs(2), "{best:?}");
    }

    #[test]
    fn a_range_that_cannot_be_read_is_the_kernels_default() {
        for (text, expected) in [
            (None, EPHEMERAL),
            (Some(""), EPHEMERAL),
            (Some("1024"), EPHEMERAL),
            (Some("1024\t99999"), EPHEMERAL),
            (Some("1024\t2048"), 1024..=2048),
        ] {
            assert_eq!(LocalPorts::new(&TcpSockets::default(), text).ephemeral, expected, "{text:?}");
        }
    }
}
