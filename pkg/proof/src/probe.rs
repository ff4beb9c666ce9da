//! Sends a packet from the pod, or to it, and queries the kernel for its redirection. Acts on the pod's network
//! namespace, which is that of the calling thread.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd as _, OwnedFd},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime},
};

use conntrack::sockets::TcpSocket;
use conntrack::{ConntrackHandle, FlowKey, TcpTuple};
use hostnet::LinkIndex;
use model::Family;
use nix::sys::socket::{setsockopt, sockopt::Mark};
use rules::{FirstPacket, PacketVerdict, TransportProtocol};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto,
        sockopt::{self, Timeout},
    },
    process::{dumpable_behavior, set_dumpable_behavior},
    thread::{
        CapabilitySets, Gid, Uid, capabilities, set_capabilities, set_thread_res_gid, set_thread_res_uid,
    },
};

use crate::{
    ProxyIdentity,
    node_end::NodeSocket,
    packet,
    plan::{PlannedPath, foreign_address},
    verdict::Observation,
};

/// Locked while a thread acts as another user, which concerns the whole process.
static ACTING: Mutex<()> = Mutex::new(());
/// The default conntrack zone, and those that rules for DNS use.
const ZONES: [u16; 3] = [0, 1, 2];
/// First source port of packets, and number of such ports.
const FIRST_PORT: u16 = 33000;
const PORTS: u32 = 27000;
/// Time after which a packet that has not arrived counts as discarded.
const ARRIVAL: Duration = Duration::from_millis(50);

/// Sender of packets from one namespace, and to it.
pub(crate) struct Prober {
    conntrack: Result<ConntrackHandle, String>,
    node: Result<(NodeSocket, LinkIndex), String>,
    /// Mark of the proxy's sockets; `None`: they have none.
    mark: Option<model::Mark>,
    port: u16,
}

impl Prober {
    pub(crate) fn open(node: Result<NodeSocket, String>, proxy: ProxyIdentity) -> Prober {
        let node = node.and_then(|socket| socket.find_peer().map(|peer| (socket, peer)));
        let conntrack = ConntrackHandle::open().map_err(|error| error.to_string());
        // Another port at each proof, so that a conflict with an entry of an earlier proof, or of a connection, is
        // unlikely.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let port = u16::try_from(now.subsec_micros() % PORTS).unwrap_or_default();
        let mark = match proxy {
            ProxyIdentity::Mark(mark) => Some(mark),
            ProxyIdentity::Owner { .. } => None,
        };
        Prober { conntrack, node, mark, port: FIRST_PORT.saturating_add(port) }
    }

    /// Sends the packet of a path, and observes its fate.
    pub(crate) fn observe_path(&mut self, path: &PlannedPath, until: Instant) -> Observation {
        if Instant::now() >= until {
            return Observation::Failed("timed out".to_owned());
        }
        self.port = self.port.saturating_add(1);
        let observed = match path.packet.source {
            None => self.send_packet(path),
            Some(source) => self.deliver_packet(path, source),
        };
        observed.unwrap_or_else(|observed| observed)
    }

    /// Sends a packet that arrives at the pod.
    fn deliver_packet(&mut self, path: &PlannedPath, source: IpAddr) -> Result<Observation, Observation> {
        let dest = path.packet.dest;
        if let PacketVerdict::Tproxied(port) = path.expected {
            // The destination is unchanged. One that is not the pod's own is delivered in the pod only by TPROXY's
            // mark.
            let foreign = SocketAddr::new(foreign_address(Family::from_ip(dest.ip())), dest.port());
            if self.deliver_to(foreign, source)?.is_some() {
                return Ok(self.observe_tracked(path, SocketAddr::new(dest.ip(), port.0)));
            }
        }
        match self.deliver_to(dest, source)? {
            Some(to) => Ok(self.observe_tracked(path, to)),
            None if discards_broadcast(Family::from_ip(source)) => {
                let why =
                    "the pod discards packets for itself in broadcast frames (drop_unicast_in_l2_multicast)";
                Err(Observation::Failed(why.to_owned()))
            }
            None => Ok(Observation::Discarded),
        }
    }

    /// Returns where a packet arrived in the pod; `None`: nowhere.
    fn deliver_to(&mut self, dest: SocketAddr, source: IpAddr) -> Result<Option<SocketAddr>, Observation> {
        let conntrack = self.conntrack.as_mut().map_err(|why| Observation::Failed(why.clone()))?;
        let (node, peer) = self.node.as_ref().map_err(|why| Observation::Failed(why.clone()))?;
        let family = Family::from_ip(source);
        let source = SocketAddr::new(source, self.port);
        let receiver = open_receiver(source.ip())?;
        let keys = flow_keys(TcpTuple { source, dest }, TransportProtocol::Tcp);
        delete_flows(conntrack, &keys)?;
        node.send(*peer, family, &packet::arriving_packet(source, dest))
            .map_err(|errno| failed_step("send a packet to the pod", errno))?;
        let has_arrived = await_arrival(&receiver, source.port(), family)?;
        let to = find_and_forget(conntrack, keys)?;
        Ok(to.or(has_arrived.then_some(dest)))
    }

    fn send_packet(&mut self, path: &PlannedPath) -> Result<Observation, Observation> {
        let conntrack = self.conntrack.as_mut().map_err(|why| Observation::Failed(why.clone()))?;
        let packet = &path.packet;
        let socket = as_owner(path.sender, || open_socket(packet))?;
        let source = connect_socket(&socket, packet.dest)?;
        let source = SocketAddr::new(source, self.port);
        let keys = flow_keys(TcpTuple { source, dest: packet.dest }, packet.protocol);
        delete_flows(conntrack, &keys)?;
        let bytes = packet::sent_header(packet.protocol, source, packet.dest);
        rustix::net::send(&socket, &bytes, SendFlags::empty()).map_err(|errno| match errno {
            Errno::PERM => Observation::Refused,
            errno => failed_step("send a packet", errno),
        })?;
        let to = find_and_forget(conntrack, keys)?;
        Ok(to.map_or(Observation::Untracked, |to| self.observe_tracked(path, to)))
    }

    fn observe_tracked(&self, path: &PlannedPath, to: SocketAddr) -> Observation {
        let receivers = match path.expected {
            PacketVerdict::Redirected(port) | PacketVerdict::Tproxied(port) if port.0 == to.port() => {
                find_receivers(to, path.packet.protocol)
            }
            _ => None,
        };
        // A process without capabilities cannot mark its sockets.
        let is_foreign =
            |socket: &TcpSocket| self.mark.is_some_and(|mark| socket.mark & mark.mask != mark.value);
        match receivers {
            Some(receivers) if receivers.iter().any(is_foreign) => Observation::Intercepted(to),
            receivers => Observation::Tracked { to, listens: receivers.map(|found| !found.is_empty()) },
        }
    }
}

/// Returns the pod's own address, as the source of packets that it sends; `None`: it has no route, or no such address.
pub(crate) fn own_address(family: Family) -> Option<IpAddr> {
    let socket = UdpSocket::bind((family.unspecified_address(), 0)).ok()?;
    socket.connect((foreign_address(family), 1)).ok()?; // sends nothing
    socket.local_addr().ok().map(|own| own.ip())
}

/// Returns whether the pod discards our packets, which differ in this from all others to it. The setting for all
/// interfaces has no effect over IPv6.
fn discards_broadcast(family: Family) -> bool {
    let parameters: &[&str] = match family {
        Family::V4 => &["ipv4/conf/all", "ipv4/conf/eth0"],
        Family::V6 => &["ipv6/conf/eth0"],
    };
    let is_on = |parameter: &&str| {
        let value = hostnet::sysctl::read(&format!("net/{parameter}/drop_unicast_in_l2_multicast"));
        value.is_ok_and(|value| value.is_some_and(|value| value != "0"))
    };
    parameters.iter().any(is_on)
}

fn flow_keys(tuple: TcpTuple, protocol: TransportProtocol) -> [FlowKey; 3] {
    ZONES.map(|zone| FlowKey { tuple, protocol, zone })
}

/// Returns where a packet of this flow was redirected, and deletes its entries.
fn find_and_forget(
    conntrack: &mut ConntrackHandle,
    keys: [FlowKey; 3],
) -> Result<Option<SocketAddr>, Observation> {
    let mut to = None;
    for key in keys {
        let found = match conntrack.find(key) {
            Err(_) if key.zone != 0 => None, // a kernel without zones
            found => found.map_err(|error| Observation::Failed(error.to_string()))?,
        };
        to = to.or(found.map(|found| found.reply.source));
    }
    delete_flows(conntrack, &keys)?;
    Ok(to)
}

/// Opens a raw socket that receives a copy of each TCP packet from this address that is delivered in the pod.
fn open_receiver(source: IpAddr) -> Result<OwnedFd, Observation> {
    let family = if source.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::TCP))
        .map_err(|errno| failed_step("open a raw socket", errno))?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(ARRIVAL))
        .map_err(|errno| failed_step("limit the time of a raw socket", errno))?;
    connect_socket(&socket, SocketAddr::new(source, 0))?;
    Ok(socket)
}

/// Returns whether a packet from this port arrives in time.
fn await_arrival(receiver: &OwnedFd, source: u16, family: Family) -> Result<bool, Observation> {
    let until = Instant::now() + ARRIVAL;
    while Instant::now() < until {
        let mut bytes = [0; 128];
        match rustix::net::recv(receiver, &mut bytes, RecvFlags::empty()) {
            Ok((length, _)) => {
                let packet = bytes.get(..length).unwrap_or_default();
                if packet::received_source_port(packet, family) == Some(source) {
                    return Ok(true);
                }
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break,
            Err(errno) => return Err(failed_step("receive a packet", errno)),
        }
    }
    Ok(false)
}

fn delete_flows(conntrack: &mut ConntrackHandle, keys: &[FlowKey]) -> Result<(), Observation> {
    conntrack.delete(keys).map(drop).map_err(|error| Observation::Failed(error.to_string()))
}

/// Opens a raw socket, to whose packets the kernel adds the IP header.
fn open_socket(packet: &FirstPacket) -> Result<OwnedFd, Observation> {
    let family = if packet.dest.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let protocol = match packet.protocol {
        TransportProtocol::Tcp => ipproto::TCP,
        TransportProtocol::Udp => ipproto::UDP,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = match rustix::net::socket_with(family, SocketType::RAW, flags, Some(protocol)) {
        Ok(socket) => socket,
        Err(Errno::PERM) => return Err(Observation::Failed("the agent lacks CAP_NET_RAW".to_owned())),
        Err(Errno::AFNOSUPPORT) => return Err(Observation::Unroutable(Errno::AFNOSUPPORT.into())),
        Err(errno) => return Err(failed_step("open a raw socket", errno)),
    };
    match packet.dest.ip() {
        IpAddr::V4(_) => sockopt::set_ip_ttl(&socket, 1),
        IpAddr::V6(_) => sockopt::set_ipv6_unicast_hops(&socket, Some(1)),
    }
    .map_err(|errno| failed_step("limit the hops of a packet", errno))?;
    if packet.mark != 0 {
        setsockopt(&socket.as_fd(), Mark, &packet.mark)
            .map_err(|errno| Observation::Failed(format!("cannot mark a packet: {errno}")))?;
    }
    Ok(socket)
}

/// Connects a socket, and returns the source address that the kernel selects.
fn connect_socket(socket: &OwnedFd, dest: SocketAddr) -> Result<IpAddr, Observation> {
    rustix::net::connect(socket, &SocketAddr::new(dest.ip(), 0))
        .map_err(|errno| Observation::Unroutable(errno.into()))?;
    let own =
        rustix::net::getsockname(socket).map_err(|errno| failed_step("read a source address", errno))?;
    let own = SocketAddr::try_from(own).map_err(|errno| failed_step("read a source address", errno))?;
    Ok(own.ip())
}

/// Runs `open` as a user and a group, with the capabilities of this process, on a thread that ends with it. A socket
/// belongs to the user who opened it.
fn as_owner<T: Send>(
    (uid, gid): (u32, u32),
    open: impl FnOnce() -> Result<T, Observation> + Send,
) -> Result<T, Observation> {
    if (uid, gid) == (0, 0) {
        return open();
    }
    // Serialized, so that one thread does not restore a value that another one has changed.
    let _acting = ACTING.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        let become_owner = move || {
            // Changing the user makes the `/proc` files of the whole process accessible to privileged users only.
            let dumpable = dumpable_behavior();
            let opened = become_owner(uid, gid)
                .map_err(|errno| failed_step("send as another user", errno))
                .and_then(|()| open());
            let _ = dumpable.and_then(set_dumpable_behavior); // refused if that was already so before
            opened
        };
        let spawned = thread::Builder::new().spawn_scoped(scope, become_owner);
        let thread =
            spawned.map_err(|error| Observation::Failed(format!("cannot start a thread: {error}")))?;
        let gone = |_| Observation::Failed("the thread that sends has panicked".to_owned());
        thread.join().map_err(gone)?
    })
}

/// Changes only the thread's effective IDs: so it may keep its capabilities, and no process of that user may signal or
/// trace it.
fn become_owner(uid: u32, gid: u32) -> Result<(), Errno> {
    let CapabilitySets { effective, permitted, inheritable } = capabilities(None)?;
    set_thread_res_gid(None, Gid::from_raw(gid), None)?;
    set_thread_res_uid(None, Uid::from_raw(uid), None)?;
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable })
}

/// Returns the sockets of the namespace that receive at this address: those of the address itself, which the kernel
/// prefers, or else those of any. `None`: unknown.
fn find_receivers(to: SocketAddr, protocol: TransportProtocol) -> Option<Vec<TcpSocket>> {
    let receivers = match protocol {
        TransportProtocol::Tcp => conntrack::sockets::tcp_listeners(),
        TransportProtocol::Udp => conntrack::sockets::udp_receivers(),
    };
    let mut found = receivers.ok().flatten()?;
    found.retain(|socket| is_receiver(socket.local, to));
    let is_own = |socket: &TcpSocket| socket.local.ip() == to.ip();
    if found.iter().any(is_own) {
        found.retain(is_own);
    }
    Some(found)
}

fn is_receiver(receiver: SocketAddr, to: SocketAddr) -> bool {
    let is_any = receiver.ip() == Ipv6Addr::UNSPECIFIED // usually of both families
        || (receiver.ip().is_unspecified() && to.is_ipv4());
    receiver.port() == to.port() && (is_any || receiver.ip() == to.ip())
}

fn failed_step(step: &str, errno: Errno) -> Observation {
    Observation::Failed(format!("cannot {step}: {}", io::Error::from(errno)))
}
