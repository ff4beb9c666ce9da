//! A stub of ztunnel: accepts connections that TPROXY redirects and connects onwards, transparently, with the same source and
//! destination. Writes `{"ready": true}`, then the outcome of each connection: `{"via": "outbound"|"inbound"|"hbone"|"dns", "src":
//! .., "dst": .., "error": null|".."}`.
//!
//! One thread relays; each DNS connection, of which there are few, has its own.

use std::io::{self, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;

use serde_json::json;
use socket2::{Domain, Socket, Type};

use crate::poller::Poller;
use crate::relays::{Meant, Relays, bind_as, canonical, connect, onward, set_tos};
use crate::{Options, seen, tell};

const LISTENERS: [(&str, u16); 3] = [("outbound", 15001), ("inbound", 15006), ("hbone", 15008)];
const DNS: u16 = 15053;

struct Stub {
    listeners: Vec<TcpListener>,
    relays: Relays,
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
    let mut stub = Stub { listeners, relays: Relays::new(poller, options.timeout()) };
    loop {
        stub.turn()?;
    }
}

impl Stub {
    fn turn(&mut self) -> io::Result<()> {
        for (key, _) in self.relays.poller.wait(self.relays.deadline())? {
            match usize::try_from(key) {
                Ok(index) if index < LISTENERS.len() => self.accept(index),
                _ => self.relays.advance(key),
            }
        }
        self.relays.expire();
        Ok(())
    }

    fn accept(&mut self, index: usize) {
        // The error concerns one client, which has disconnected, or means that nothing is left to accept.
        while let Ok((near, peer)) = self.listeners[index].accept() {
            let Ok(local) = near.local_addr() else { continue };
            let meant = meant(LISTENERS[index].0, peer, local);
            self.relays.begin(near, meant, |meant| connect(meant.dst, || onward_as(meant.src)));
        }
    }
}

fn meant(via: &'static str, src: SocketAddr, dst: SocketAddr) -> Meant {
    Meant { via, src: canonical(src), dst: canonical(dst), uid: None }
}

/// A transparent socket for both families.
fn transparent(kind: Type, port: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV6, kind, None)?;
    socket.set_only_v6(false)?;
    socket.set_ip_transparent_v4(true)?;
    socket.set_ip_transparent_v6(true)?;
    socket.set_reuse_address(true)?;
    set_tos(&socket, true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    Ok(socket)
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = transparent(Type::STREAM, port)?;
    socket.listen(1024)?;
    Ok(socket.into())
}

/// A socket that connects as the original source.
fn onward_as(src: SocketAddr) -> io::Result<Socket> {
    let socket = onward(src.is_ipv6())?;
    bind_as(&socket, SocketAddr::new(src.ip(), 0))?;
    Ok(socket)
}

/// Answers every query over UDP and TCP with the line that `kit-traffic serve` sends.
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
        meant("dns", peer, local).tell(&outcome);
    }
}

fn dns_tcp(mut stream: TcpStream, name: &str) -> io::Result<()> {
    let (dst, src) = (canonical(stream.local_addr()?), canonical(stream.peer_addr()?));
    let outcome = writeln!(stream, "{}", seen(name, DNS, src, dst, None));
    meant("dns", src, dst).tell(&outcome);
    outcome?;
    stream.shutdown(Shutdown::Write)?;
    // Until the client closes: closing first would discard the answer if unread data remains.
    io::copy(&mut stream, &mut io::sink()).map(drop)
}
