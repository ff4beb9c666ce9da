//! First packets of connections, and their results.

use std::{
    collections::BTreeMap,
    fmt,
    io::{ErrorKind, Read as _},
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

use kit::Netns;
use socket2::{Domain, Socket, Type};

use super::pod::{APP, Owner, PROXY, PodNetwork, ROOT};
use crate::fixtures::random::random;

/// Processes of the pod, by user and group: application, proxy, root, root in the proxy's group, the proxy in another
/// group, and two groups that settings name.
const OWNERS: [Owner; 7] = [APP, PROXY, ROOT, (0, 1337), (1337, 1000), (1000, 888), (1000, 2000)];
const PORTS: [u16; 12] = [53, 80, 443, 8080, 9000, 15001, 15006, 15008, 15020, 15053, 15090, 16001];
/// Destinations of the pod and of the virtual machine: outside, a service, a name server, a documentation network, a neighbour on
/// the second network, the pod by its addresses, and loopback.
const OUTBOUND: [[&str; 2]; 11] = [
    ["10.1.0.1", "fd00:1::1"],
    ["10.2.0.9", "fd00:2::9"],
    ["10.96.0.10", "fd00:96::a"],
    ["10.96.7.7", "fd00:96::77"],
    ["192.0.2.7", "2001:db8::7"],
    ["10.9.0.1", "fd00:9::1"],
    ["10.1.0.2", "fd00:1::2"],
    ["10.9.0.2", "fd00:9::2"],
    ["127.0.0.1", "::1"],
    ["127.0.0.6", "::6"],
    ["127.9.9.9", "::1"],
];
/// The pod's addresses for the external host and the virtual machine.
const INBOUND: [[&str; 2]; 3] =
    [["10.1.0.2", "fd00:1::2"], ["10.9.0.2", "fd00:9::2"], ["10.8.0.1", "fd00:8::1"]];
/// Source addresses of the proxy's inbound connections to the application.
const PASSTHROUGH: [&str; 2] = ["127.0.0.6", "::6"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    Pod,
    Outside,
    Machine,
}

/// First packet of a connection, or a datagram.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) origin: Origin,
    pub(crate) owner: Owner,
    pub(crate) is_tcp: bool,
    pub(crate) source: Option<IpAddr>,
    /// 0 means none.
    pub(crate) mark: u32,
    pub(crate) to: SocketAddr,
}

impl Packet {
    /// `count` packets, the same for the same seed.
    pub(crate) fn sample(count: usize, seed: u64) -> Vec<Self> {
        let mut state = seed;
        (0..count).map(|_| Self::random(&mut state)).collect()
    }

    fn random(state: &mut u64) -> Self {
        let mut below = |bound: usize| random(state, bound as u64) as usize;
        let origin = [Origin::Pod, Origin::Pod, Origin::Pod, Origin::Outside, Origin::Machine][below(5)];
        let destinations = match origin {
            Origin::Pod => &OUTBOUND[..],
            Origin::Outside => &INBOUND[..],
            Origin::Machine if below(2) == 0 => &INBOUND[..],
            Origin::Machine => &OUTBOUND[..8],
        };
        let family = below(2);
        let ip: IpAddr = destinations[below(destinations.len())][family].parse().unwrap();
        let is_own = OUTBOUND[6..].iter().any(|addresses| addresses[family].parse() == Ok(ip));
        let is_pod = origin == Origin::Pod;
        let is_tcp = below(4) != 0;
        // For UDP, rules concern only DNS.
        let port = if is_tcp || below(2) == 0 { PORTS[below(PORTS.len())] } else { 53 };
        Self {
            origin,
            owner: if is_pod { OWNERS[below(OWNERS.len())] } else { ROOT },
            is_tcp,
            source: (is_pod && is_own && below(4) == 0).then(|| PASSTHROUGH[family].parse().unwrap()),
            mark: if is_pod { [0, 0, 0, 0, 1337, 1338][below(6)] } else { 0 },
            to: SocketAddr::new(ip, port),
        }
    }
}

impl fmt::Display for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, owner: (uid, gid), to, mark, .. } = self;
        let protocol = if self.is_tcp { "TCP" } else { "UDP" };
        write!(f, "{protocol} from {origin:?} ({uid}:{gid}) to {to}")?;
        if let Some(source) = self.source {
            write!(f, ", source {source}")?;
        }
        if *mark != 0 { write!(f, ", mark {mark}") } else { Ok(()) }
    }
}

/// Result of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Text of the server that received it.
    Answered(String),
    /// An error, such as a closed port.
    Failed(ErrorKind),
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered(words) => f.write_str(words),
            Self::Failed(kind) => write!(f, "{kind}"),
        }
    }
}

/// Sends each packet, and returns the results in order.
pub(crate) fn send(pod: &PodNetwork, packets: &[Packet], patience: Duration) -> Vec<Fate> {
    let mut groups: BTreeMap<(Origin, Owner), Vec<(usize, &Packet)>> = BTreeMap::new();
    for (at, packet) in packets.iter().enumerate() {
        groups.entry((packet.origin, packet.owner)).or_default().push((at, packet));
    }
    let mut fates: Vec<(usize, Fate)> = thread::scope(|scope| {
        let senders: Vec<_> = groups
            .into_iter()
            .map(|((origin, owner), packets)| {
                scope.spawn(move || {
                    netns_of(pod, origin).enter();
                    kit::become_user(owner.0, owner.1);
                    packets.into_iter().map(|(at, packet)| (at, fate(packet, patience))).collect::<Vec<_>>()
                })
            })
            .collect();
        senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect()
    });
    fates.sort_by_key(|(at, _)| *at);
    fates.into_iter().map(|(_, fate)| fate).collect()
}

fn netns_of(pod: &PodNetwork, origin: Origin) -> &Netns {
    match origin {
        Origin::Pod => &pod.pod,
        Origin::Outside => &pod.outside,
        Origin::Machine => &pod.machine,
    }
}

fn fate(packet: &Packet, patience: Duration) -> Fate {
    ask(packet, patience).map_or_else(|error| Fate::Failed(alike(error.kind())), Fate::Answered)
}

/// A read that times out returns `WouldBlock`, a connection `TimedOut`.
fn alike(kind: ErrorKind) -> ErrorKind {
    if kind == ErrorKind::WouldBlock { ErrorKind::TimedOut } else { kind }
}

fn ask(packet: &Packet, patience: Duration) -> std::io::Result<String> {
    let kind = if packet.is_tcp { Type::STREAM } else { Type::DGRAM };
    let mut socket = Socket::new(Domain::for_address(packet.to), kind, None)?;
    if packet.mark != 0 {
        socket.set_mark(packet.mark)?;
    }
    if let Some(source) = packet.source {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.set_read_timeout(Some(patience))?;
    socket.connect_timeout(&packet.to.into(), patience)?;
    let mut words = String::new();
    if packet.is_tcp {
        socket.read_to_string(&mut words)?;
    } else {
        socket.send(b"?")?;
        let mut buffer = [0; 256];
        let length = socket.read(&mut buffer)?;
        words.push_str(&String::from_utf8_lossy(&buffer[..length]));
    }
    Ok(words)
}
