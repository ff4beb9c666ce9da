//! The relays of one thread, and the socket operations common to all stubs of ztunnel.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;
use socket2::{Domain, SockRef, Socket, Type};

use crate::poller::Poller;
use crate::relay::Relay;
use crate::tell;

/// DSCP CS1 on all packets of our sockets, which distinguishes them from a pod's own packets with the same address.
const TOS: u32 = 0x20;
/// First key of relays, which have two each; lower ones are for other sources.
pub(crate) const FIRST_KEY: u64 = 16;
/// Attempts to find a source port: only `connect` detects that address and port are in use for a destination.
const PORT_ATTEMPTS: usize = 50;

/// Addresses of a connection as the client intended it.
pub(crate) struct Meant {
    pub(crate) via: &'static str,
    pub(crate) src: SocketAddr,
    pub(crate) dst: SocketAddr,
    /// The pod in which it was accepted, for a stub that listens in pods.
    pub(crate) uid: Option<String>,
}

impl Meant {
    pub(crate) fn tell(&self, outcome: &io::Result<()>) {
        let error = outcome.as_ref().err().map(ToString::to_string);
        let mut line = json!({"via": self.via, "src": self.src, "dst": self.dst, "error": error});
        if let Some(uid) = &self.uid {
            line["uid"] = json!(uid);
        }
        tell(&line);
    }
}

/// All relays of a thread.
pub(crate) struct Relays {
    pub(crate) poller: Poller,
    limit: Duration,
    next_key: u64,
    relays: BTreeMap<u64, Relay>,
    connecting: BTreeMap<u64, Meant>,
    /// Connect deadlines, in order, as the timeout is the same for all.
    deadlines: VecDeque<(Instant, u64)>,
    buffer: Vec<u8>,
}

impl Relays {
    /// A connection that is not established within `limit` has failed.
    pub(crate) fn new(poller: Poller, limit: Duration) -> Self {
        Self {
            poller,
            limit,
            next_key: FIRST_KEY,
            relays: BTreeMap::new(),
            connecting: BTreeMap::new(),
            deadlines: VecDeque::new(),
            buffer: Vec::new(),
        }
    }

    /// Relays an accepted connection to the one that `connect` starts.
    pub(crate) fn begin(
        &mut self,
        near: TcpStream,
        meant: Meant,
        connect: impl FnOnce(&Meant) -> io::Result<TcpStream>,
    ) {
        let key = self.take_key();
        match self.relay(near, &meant, key, connect) {
            Ok(relay) => {
                self.relays.insert(key, relay);
                self.connecting.insert(key, meant);
                self.deadlines.push_back((Instant::now() + self.limit, key));
            }
            Err(error) => meant.tell(&Err(error)),
        }
    }

    /// Reserves a key for the poller that no relay has or will have.
    pub(crate) fn take_key(&mut self) -> u64 {
        self.next_key += 2;
        self.next_key - 2
    }

    fn relay(
        &self,
        near: TcpStream,
        meant: &Meant,
        key: u64,
        connect: impl FnOnce(&Meant) -> io::Result<TcpStream>,
    ) -> io::Result<Relay> {
        near.set_nonblocking(true)?;
        near.set_nodelay(true)?;
        let far = connect(meant).inspect_err(|_| reset(&near))?;
        Relay::new(near, far, key, &self.poller)
    }

    /// Handles an event on the source with this key.
    pub(crate) fn advance(&mut self, key: u64) {
        let key = key & !1;
        let Some(relay) = self.relays.get(&key) else { return };
        if self.connecting.contains_key(&key) {
            let outcome = relay.connected();
            self.settle(key, &outcome);
        }
        let Some(relay) = self.relays.get_mut(&key) else { return };
        match relay.pump(&self.poller, &mut self.buffer) {
            Ok(true) => {}
            Ok(false) => drop(self.relays.remove(&key)),
            Err(_) => self.abort(key),
        }
    }

    /// Time at which [`Relays::expire`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadlines.front().map(|(deadline, _)| *deadline)
    }

    /// Resets connections whose deadline has passed.
    pub(crate) fn expire(&mut self) {
        let now = Instant::now();
        while let Some((_, key)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now) {
            if self.connecting.contains_key(&key) {
                self.settle(key, &Err(ErrorKind::TimedOut.into()));
            }
        }
    }

    /// Whether no relay is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.relays.is_empty()
    }

    /// Resets all relays.
    pub(crate) fn abort_all(&mut self) {
        std::mem::take(&mut self.relays).into_values().for_each(Relay::abort);
    }

    /// Handles the established or failed connection of a relay.
    fn settle(&mut self, key: u64, outcome: &io::Result<()>) {
        if let Some(meant) = self.connecting.remove(&key) {
            meant.tell(outcome);
        }
        if outcome.is_err() {
            self.abort(key);
        }
    }

    fn abort(&mut self, key: u64) {
        if let Some(relay) = self.relays.remove(&key) {
            relay.abort();
        }
    }
}

/// Sets the stub's DSCP on all packets of a socket.
pub(crate) fn set_tos(socket: &Socket, v6: bool) -> io::Result<()> {
    socket.set_tos_v4(TOS)?;
    if v6 { socket.set_tclass_v6(TOS) } else { Ok(()) }
}

/// A socket for an onward connection.
pub(crate) fn onward(v6: bool) -> io::Result<Socket> {
    let socket = Socket::new(if v6 { Domain::IPV6 } else { Domain::IPV4 }, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    set_tos(&socket, v6)?;
    Ok(socket)
}

/// Binds to a source address that need not be local; port 0 means any.
pub(crate) fn bind_as(socket: &Socket, src: SocketAddr) -> io::Result<()> {
    socket.set_reuse_address(true)?;
    if src.is_ipv6() {
        socket.set_ip_transparent_v6(true)?;
        socket.set_freebind_v6(true)?;
    } else {
        socket.set_ip_transparent_v4(true)?;
        socket.set_freebind_v4(true)?;
    }
    socket.bind(&src.into())
}

/// Starts to connect a socket that `make` creates, with another one if its port is in use.
pub(crate) fn connect(
    dst: SocketAddr,
    mut make: impl FnMut() -> io::Result<Socket>,
) -> io::Result<TcpStream> {
    let mut attempts = PORT_ATTEMPTS;
    loop {
        attempts -= 1;
        let started = make().and_then(|socket| {
            begin_connect(&socket, dst)?;
            Ok(socket)
        });
        match started {
            Err(error) if is_taken(&error) && attempts > 0 => {}
            other => return other.map(TcpStream::from),
        }
    }
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable)
}

/// Starts to connect a non-blocking socket; an event reports the result.
pub(crate) fn begin_connect(socket: &Socket, dst: SocketAddr) -> io::Result<()> {
    match socket.connect(&dst.into()) {
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

/// Makes closing the socket send a reset, for a client whose connection cannot be established.
pub(crate) fn reset(near: &TcpStream) {
    let _ = SockRef::from(near).set_linger(Some(Duration::ZERO));
}

/// Converts an IPv4-mapped address of a dual-stack socket to IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
