//! Sends a packet, and asks the kernel where it was led. Acts on the network namespace of the calling thread.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd as _, OwnedFd},
    sync::{Mutex, PoisonError},
    thread,
    time::{Instant, SystemTime},
};

use conntrack::{ConntrackHandle, FlowKey, TcpTuple, TrackedProtocol};
use nix::sys::socket::{setsockopt, sockopt::Mark};
use rules::{FirstPacket, PacketVerdict, TransportProtocol};
use rustix::{
    io::Errno,
    net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sockopt},
    process::{dumpable_behavior, set_dumpable_behavior},
    thread::{
        CapabilitySets, Gid, Uid, capabilities, set_capabilities, set_thread_res_gid, set_thread_res_uid,
    },
};

use crate::{packet, plan::PlannedPath, verdict::Observation};

/// Held while a thread acts as another user, which concerns the whole process.
static ACTING: Mutex<()> = Mutex::new(());
/// The default zone, and those that rules for DNS use.
const ZONES: [u16; 3] = [0, 1, 2];
/// The first port from which packets are sent, and how many there are.
const FIRST_PORT: u16 = 33000;
const PORTS: u32 = 27000;

/// Sends packets from one namespace.
pub(crate) struct Prober {
    conntrack: Result<ConntrackHandle, String>,
    port: u16,
}

impl Prober {
    pub(crate) fn open() -> Prober {
        let conntrack = ConntrackHandle::open().map_err(|error| error.to_string());
        // Another one at each proof, so that no entry of an earlier one, nor of a connection, is likely to be in the way.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let port = u16::try_from(now.subsec_micros() % PORTS).unwrap_or_default();
        Prober { conntrack, port: FIRST_PORT.saturating_add(port) }
    }

    /// Sends the packet of a path, and observes what becomes of it.
    pub(crate) fn observe(&mut self, path: &PlannedPath, until: Instant) -> Observation {
        if Instant::now() >= until {
            return Observation::Failed("the time for packets was over".to_owned());
        }
        self.port = self.port.saturating_add(1);
        self.send(path).unwrap_or_else(|observed| observed)
    }

    fn send(&mut self, path: &PlannedPath) -> Result<Observation, Observation> {
        let conntrack = self.conntrack.as_mut().map_err(|why| Observation::Failed(why.clone()))?;
        let packet = &path.packet;
        let socket = as_owner(path.sender, || open_socket(packet))?;
        let source = connect(&socket, packet.dest)?;
        let source = SocketAddr::new(source, self.port);
        let protocol = match packet.protocol {
            TransportProtocol::Tcp => TrackedProtocol::Tcp,
            TransportProtocol::Udp => TrackedProtocol::Udp,
        };
        let tuple = TcpTuple { source, dest: packet.dest };
        let keys = ZONES.map(|zone| FlowKey { tuple, protocol, zone });
        forget(conntrack, &keys)?;
        let bytes = packet::header(packet.protocol, source, packet.dest);
        match rustix::net::send(&socket, &bytes, SendFlags::empty()) {
            Ok(_) => {}
            Err(Errno::PERM) => return Err(Observation::Refused),
            Err(errno) => return Err(failed("send a packet", errno)),
        }
        let mut to = None;
        for key in keys {
            to = to.or(find(conntrack, key)?);
        }
        forget(conntrack, &keys)?;
        let Some(to) = to else { return Ok(Observation::Untracked) };
        let is_redirected = matches!(path.expected, PacketVerdict::Redirected(_)) && to != packet.dest;
        let listens = if is_redirected { listens_at(to, packet.protocol) } else { None };
        Ok(Observation::Tracked { to, listens })
    }
}

/// Where a packet of this flow was led.
fn find(conntrack: &mut ConntrackHandle, key: FlowKey) -> Result<Option<SocketAddr>, Observation> {
    match conntrack.find(key) {
        Ok(found) => Ok(found.map(|found| found.reply.source)),
        Err(_) if key.zone != 0 => Ok(None), // a kernel without zones
        Err(error) => Err(Observation::Failed(error.to_string())),
    }
}

fn forget(conntrack: &mut ConntrackHandle, keys: &[FlowKey]) -> Result<(), Observation> {
    conntrack.delete(keys).map(drop).map_err(|error| Observation::Failed(error.to_string()))
}

/// A raw socket, to whose packets the kernel adds the header of IP.
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
        Err(errno) => return Err(failed("open a raw socket", errno)),
    };
    match packet.dest.ip() {
        IpAddr::V4(_) => sockopt::set_ip_ttl(&socket, 1),
        IpAddr::V6(_) => sockopt::set_ipv6_unicast_hops(&socket, Some(1)),
    }
    .map_err(|errno| failed("limit the hops of a packet", errno))?;
    if packet.mark != 0 {
        setsockopt(&socket.as_fd(), Mark, &packet.mark)
            .map_err(|errno| Observation::Failed(format!("cannot mark a packet: {errno}")))?;
    }
    Ok(socket)
}

/// Returns the source address that the kernel chooses.
fn connect(socket: &OwnedFd, dest: SocketAddr) -> Result<IpAddr, Observation> {
    rustix::net::connect(socket, &SocketAddr::new(dest.ip(), 0))
        .map_err(|errno| Observation::Unroutable(errno.into()))?;
    let own = rustix::net::getsockname(socket).map_err(|errno| failed("read a source address", errno))?;
    let own = SocketAddr::try_from(own).map_err(|errno| failed("read a source address", errno))?;
    Ok(own.ip())
}

/// Runs `open` as a user and a group, with the capabilities of this process, on a thread that ends with it. A socket belongs
/// to whoever opened it.
fn as_owner<T: Send>(
    (uid, gid): (u32, u32),
    open: impl FnOnce() -> Result<T, Observation> + Send,
) -> Result<T, Observation> {
    if (uid, gid) == (0, 0) {
        return open();
    }
    // What one restores must not be what another is about to restore.
    let _acting = ACTING.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|scope| {
        let become_owner = move || {
            // Another user makes the whole process one whose `/proc` is for the privileged alone.
            let dumpable = dumpable_behavior();
            let opened = become_owner(uid, gid)
                .map_err(|errno| failed("send as another user", errno))
                .and_then(|()| open());
            let _ = dumpable.and_then(set_dumpable_behavior); // refused if it was such a one before
            opened
        };
        let spawned = thread::Builder::new().spawn_scoped(scope, become_owner);
        let thread =
            spawned.map_err(|error| Observation::Failed(format!("cannot start a thread: {error}")))?;
        let gone = |_| Observation::Failed("the thread that sends has panicked".to_owned());
        thread.join().map_err(gone)?
    })
}

/// Only the thread's effective ids change: so it may keep its capabilities, and no process of that user may signal or trace it.
fn become_owner(uid: u32, gid: u32) -> Result<(), Errno> {
    let CapabilitySets { effective, permitted, inheritable } = capabilities(None)?;
    set_thread_res_gid(None, Gid::from_raw(gid), None)?;
    set_thread_res_uid(None, Uid::from_raw(uid), None)?;
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable })
}

/// Whether a process of the namespace receives there; `None`: unknown.
fn listens_at(to: SocketAddr, protocol: TransportProtocol) -> Option<bool> {
    let receivers = match protocol {
        TransportProtocol::Tcp => sockdiag::tcp_listeners(),
        TransportProtocol::Udp => sockdiag::udp_receivers(),
    };
    Some(receivers.ok().flatten()?.iter().any(|receiver| receives(*receiver, to)))
}

fn receives(receiver: SocketAddr, to: SocketAddr) -> bool {
    let is_any = receiver.ip() == Ipv6Addr::UNSPECIFIED // of both families, as a rule
        || (receiver.ip().is_unspecified() && to.is_ipv4());
    receiver.port() == to.port() && (is_any || receiver.ip() == to.ip())
}

fn failed(step: &str, errno: Errno) -> Observation {
    Observation::Failed(format!("cannot {step}: {}", io::Error::from(errno)))
}
