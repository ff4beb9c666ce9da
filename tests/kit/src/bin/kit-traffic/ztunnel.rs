//! A stub of ztunnel: takes what TPROXY hands over and connects on, transparently, as the same source to the
//! same destination. Writes `{"ready": true}`, then for each connection what became of it:
//! `{"via": "outbound"|"inbound"|"hbone"|"dns", "src": .., "dst": .., "error": null|".."}`.
//!
//! One thread does the relaying; each DNS connection, of which there are few, has its own.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use socket2::{Domain, Socket, Type};

use crate::poller::Poller;
use crate::relay::Relay;
use crate::{Options, seen, tell};

const LISTENERS: [(&str, u16); 3] = [("outbound", 15001), ("inbound", 15006), ("hbone", 15008)];
const DNS: u16 = 15053;
/// DSCP CS1 on all that our sockets send, so that a packet with a pod's address can be told from the pod's own.
const TOS: u32 = 0x20;
/// Keys of relays start here, two for each; below are the listeners' indices.
const FIRST_KEY: u64 = 16;
/// Sources share ports, so that the kernel may pick one that is taken for this destination.
const PORT_ATTEMPTS: usize = 50;

/// A connection as it was meant.
struct Meant {
    via: &'static str,
    src: SocketAddr,
    dst: SocketAddr,
}

impl Meant {
    fn tell(&self, outcome: &io::Result<()>) {
        let error = outcome.as_ref().err().map(ToString::to_string);
        tell(&json!({"via": self.via, "src": self.src, "dst": self.dst, "error": error}));
    }
}

struct Stub {
    poller: Poller,
    listeners: Vec<TcpListener>,
    limit: Duration,
    next_key: u64,
    relays: BTreeMap<u64, Relay>,
    connecting: BTreeMap<u64, Meant>,
    /// When who must be connected; first things first, as all have the same time.
    deadlines: VecDeque<(Instant, u64)>,
    buffer: Vec<u8>,
}

pub(crate) fn run(options: &Options) -> io::Result<()> {
    crate::lift_file_limit();
    let name: String = options.get("--name").expect("--name");
    let poller = Poller::new()?;
    let mut listeners = Vec::new();
    for (index, (_, port)) in LISTENERS.iter().enumerate() {
        let listener = listen(*port)?;
        listener.set_nonblocking(true)?;
        poller.add(&listener, index as u64)?;
        listeners.push(listener);
    }
    if options.has("--dns") {
        serve_dns(&name)?;
    }
    tell(&json!({"ready": true}));
    let mut stub = Stub {
        poller,
        listeners,
        limit: options.timeout(),
        next_key: FIRST_KEY,
        relays: BTreeMap::new(),
        connecting: BTreeMap::new(),
        deadlines: VecDeque::new(),
        buffer: Vec::new(),
    };
    loop {
        stub.turn()?;
    }
}

impl Stub {
    fn turn(&mut self) -> io::Result<()> {
        let until = self.deadlines.front().map(|(deadline, _)| *deadline);
        for (key, _) in self.poller.wait(until)? {
            match usize::try_from(key) {
                Ok(index) if index < LISTENERS.len() => self.accept(index),
                _ => self.advance(key & !1),
            }
        }
        let now = Instant::now();
        while let Some((_, key)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now) {
            if self.connecting.contains_key(&key) {
                self.settle(key, &Err(ErrorKind::TimedOut.into()));
            }
        }
        Ok(())
    }

    fn accept(&mut self, index: usize) {
        // An error is that of one client, which is gone again, or means: no more for now.
        while let Ok((near, peer)) = self.listeners[index].accept() {
            let Ok(local) = near.local_addr() else { continue };
            let meant = Meant { via: LISTENERS[index].0, src: canonical(peer), dst: canonical(local) };
            let key = self.next_key;
            self.next_key += 2;
            match self.relay(near, &meant, key) {
                Ok(relay) => {
                    self.relays.insert(key, relay);
                    self.connecting.insert(key, meant);
                    self.deadlines.push_back((Instant::now() + self.limit, key));
                }
                Err(error) => meant.tell(&Err(error)),
            }
        }
    }

    fn relay(&self, near: TcpStream, meant: &Meant, key: u64) -> io::Result<Relay> {
        near.set_nonblocking(true)?;
        near.set_nodelay(true)?;
        let far = connect(meant).inspect_err(|_| reset(&near))?;
        Relay::new(near, far, key, &self.poller)
    }

    fn advance(&mut self, key: u64) {
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

    /// A connection is made, or never will be.
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

/// A transparent socket for both families.
fn transparent(kind: Type, port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV6, kind, None)?;
    socket.set_only_v6(false)?;
    socket.set_ip_transparent_v4(true)?;
    socket.set_ip_transparent_v6(true)?;
    socket.set_reuse_address(true)?;
    mark(&socket, true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    Ok(socket)
}

fn mark(socket: &Socket, v6: bool) -> io::Result<()> {
    socket.set_tos_v4(TOS)?;
    if v6 { socket.set_tclass_v6(TOS) } else { Ok(()) }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = transparent(Type::STREAM, port)?;
    socket.listen(1024)?;
    Ok(socket.into())
}

/// Starts to connect as the original source to the original destination.
fn connect(meant: &Meant) -> io::Result<TcpStream> {
    let mut attempts = PORT_ATTEMPTS;
    loop {
        let socket = onward(meant.src)?;
        attempts -= 1;
        match socket.connect(&meant.dst.into()) {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable && attempts > 0 => {}
            Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {
                return Err(error);
            }
            _ => return Ok(socket.into()),
        }
    }
}

fn onward(src: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(src), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_reuse_address(true)?;
    if src.is_ipv6() {
        socket.set_ip_transparent_v6(true)?;
        socket.set_freebind_v6(true)?;
    } else {
        socket.set_ip_transparent_v4(true)?;
        socket.set_freebind_v4(true)?;
    }
    mark(&socket, src.is_ipv6())?;
    socket.bind(&SocketAddr::new(src.ip(), 0).into())?;
    Ok(socket)
}

/// The client of a connection that cannot be made gets a reset when its socket is closed.
fn reset(near: &TcpStream) {
    let _ = socket2::SockRef::from(near).set_linger(Some(Duration::ZERO));
}

/// A dual-stack socket writes IPv4 addresses as IPv6.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Answers every question over UDP and TCP with the line that `kit-traffic serve` answers with.
fn serve_dns(name: &str) -> io::Result<()> {
    let socket: UdpSocket = transparent(Type::DGRAM, DNS)?.into();
    let listener = listen(DNS)?;
    let (for_udp, for_tcp) = (name.to_owned(), name.to_owned());
    thread::spawn(move || dns_udp(&socket, &for_udp));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            let name = for_tcp.clone();
            thread::spawn(move || dns_tcp(stream, &name));
        }
    });
    Ok(())
}

fn dns_udp(socket: &UdpSocket, name: &str) {
    let mut datagram = [0; 2048];
    let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, DNS));
    loop {
        let Ok((_, peer)) = socket.recv_from(&mut datagram) else { continue };
        let answer = seen(name, DNS, canonical(peer), local, None).to_string();
        let outcome = socket.send_to(answer.as_bytes(), peer).map(drop);
        Meant { via: "dns", src: canonical(peer), dst: local }.tell(&outcome);
    }
}

fn dns_tcp(mut stream: TcpStream, name: &str) -> io::Result<()> {
    let (dst, src) = (canonical(stream.local_addr()?), canonical(stream.peer_addr()?));
    let outcome = writeln!(stream, "{}", seen(name, DNS, src, dst, None));
    Meant { via: "dns", src, dst }.tell(&outcome);
    outcome?;
    stream.shutdown(Shutdown::Write)?;
    // To the client's end: closing before that would throw the answer away with the question.
    io::copy(&mut stream, &mut io::sink()).map(drop)
}
