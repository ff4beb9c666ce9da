//! One pod's proxy: a thread in the pod's network namespace, with listeners and relays.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::thread::LinkNameSpaceType;
use socket2::Socket;

use super::listeners::{self, DNS, DNS_PORT, HBONE, Listener, MARK, OUTBOUND, original_dst};
use crate::poller::Poller;
use crate::relays::{FIRST_KEY, Meant, Relays, bind_as, canonical, connect, onward, reset};
use crate::seen;

/// Poller key of the order channel; listeners have lower ones.
const ORDERS: u64 = FIRST_KEY - 1;
/// Source ports of onward connections that keep the client's address, below the clients' own ephemeral ports: the pod's connection
/// tracking sees both with the same destination.
const PORTS: std::ops::Range<u16> = 16000..30000;

/// Settings common to all proxies.
pub(crate) struct Settings {
    pub(crate) name: String,
    pub(crate) dns: bool,
    pub(crate) v6: bool,
    /// Connect timeout of onward connections.
    pub(crate) limit: Duration,
}

/// A running proxy.
pub(crate) struct Proxy {
    /// Device and inode of its network namespace.
    pub(crate) netns: (u64, u64),
    /// One byte means drain, end of file means stop.
    orders: UnixStream,
    thread: JoinHandle<()>,
}

/// Identity of a network namespace: device and inode.
pub(crate) fn netns_id(netns: &OwnedFd) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(netns)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Proxy {
    /// Starts a proxy; its listeners are bound when this returns. The proxy drops `end` when it ends.
    pub(crate) fn start(
        settings: &Arc<Settings>,
        uid: &str,
        netns: &OwnedFd,
        end: mpsc::Sender<()>,
    ) -> Result<Self, String> {
        let text = |error: io::Error| error.to_string();
        let id = netns_id(netns).map_err(text)?;
        let netns = netns.try_clone().map_err(text)?;
        let (orders, theirs) = UnixStream::pair().map_err(text)?;
        let (settings, uid) = (Arc::clone(settings), uid.to_owned());
        let (reply, started) = mpsc::channel();
        let thread = thread::spawn(move || {
            let entered = enter(&netns);
            drop(netns); // from here on, the thread keeps the namespace alive
            let work = entered.and_then(|()| Work::new(settings, uid, theirs));
            let _ = reply.send(work.as_ref().map(drop).map_err(Clone::clone));
            if let Ok(work) = work {
                work.run().expect("epoll works");
            }
            drop(end);
        });
        started.recv().expect("the thread answers")?;
        Ok(Self { netns: id, orders, thread })
    }

    /// Closes listeners and resets connections. The proxy has left the namespace when this returns.
    pub(crate) fn stop(self) {
        drop(self.orders);
        self.thread.join().expect("a proxy does not panic");
    }

    /// Closes listeners; the proxy ends with its last connection.
    pub(crate) fn drain(&self) {
        let _ = (&self.orders).write_all(b"d");
    }
}

/// Moves the calling thread into the namespace permanently.
#[allow(clippy::disallowed_methods, reason = "kit does not use pkg/netns, which it helps to test")]
fn enter(netns: &OwnedFd) -> Result<(), String> {
    rustix::thread::move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|error| format!("cannot enter the netns: {error}"))
}

struct Work {
    settings: Arc<Settings>,
    uid: String,
    orders: UnixStream,
    listeners: Vec<Listener>,
    relays: Relays,
    /// Connections that have been answered. Closing before the client does would discard the answer if unread data remains.
    answered: BTreeMap<u64, TcpStream>,
}

impl Work {
    fn new(settings: Arc<Settings>, uid: String, orders: UnixStream) -> Result<Self, String> {
        let listeners = listeners::open(settings.v6, settings.dns)?;
        let watched = || {
            let poller = Poller::new()?;
            poller.add(&orders, ORDERS)?;
            for (key, listener) in (0..).zip(&listeners) {
                match listener {
                    Listener::Tcp(_, listener) => poller.add(listener, key)?,
                    Listener::Udp(socket) => poller.add(socket, key)?,
                }
            }
            Ok(poller)
        };
        let poller = watched().map_err(|error: io::Error| error.to_string())?;
        let relays = Relays::new(poller, settings.limit);
        Ok(Self { settings, uid, orders, listeners, relays, answered: BTreeMap::new() })
    }

    fn run(mut self) -> io::Result<()> {
        let mut draining = false;
        while !draining || !self.relays.is_empty() || !self.answered.is_empty() {
            for (key, _) in self.relays.poller.wait(self.relays.deadline())? {
                match key {
                    ORDERS if self.orders.read(&mut [0])? == 0 => {
                        self.relays.abort_all();
                        return Ok(());
                    }
                    ORDERS => {
                        draining = true;
                        self.listeners.clear();
                    }
                    key if key < FIRST_KEY => self.serve(key as usize),
                    key if self.answered.contains_key(&key) => self.read_off(key),
                    key => self.relays.advance(key),
                }
            }
            self.relays.expire();
        }
        Ok(())
    }

    fn serve(&mut self, index: usize) {
        match self.listeners.get(index) {
            Some(Listener::Udp(socket)) => self.answer_datagrams(socket),
            // The error concerns one client, which has disconnected, or means that nothing is left to accept.
            Some(Listener::Tcp(via, listener)) => {
                let (via, accepted) = (*via, listener.accept());
                if let Ok((near, peer)) = accepted {
                    self.take(via, near, canonical(peer));
                }
            }
            None => {}
        }
    }

    fn take(&mut self, via: &'static str, near: TcpStream, src: SocketAddr) {
        let Ok(local) = near.local_addr().map(canonical) else { return };
        let original = original_dst(&near, local);
        let meant = self.meant(via, src, original.unwrap_or(local));
        match (via, original) {
            (DNS, _) | (HBONE, None) => self.answer(near, &meant, local, original),
            (_, None) => {
                reset(&near);
                meant.tell(&Err(io::Error::other("it was not captured")));
            }
            (OUTBOUND, _) => self.relays.begin(near, meant, |meant| connect(meant.dst, || own(meant.dst))),
            _ => self.relays.begin(near, meant, |meant| connect(meant.dst, || as_client(meant))),
        }
    }

    /// Answers as `kit-traffic serve` does.
    fn answer(
        &mut self,
        mut near: TcpStream,
        meant: &Meant,
        local: SocketAddr,
        original: Option<SocketAddr>,
    ) {
        let line = seen(&self.settings.name, local.port(), meant.src, local, original);
        let key = self.relays.take_key();
        let written = writeln!(near, "{line}").and_then(|()| {
            near.shutdown(Shutdown::Write)?;
            near.set_nonblocking(true)?;
            self.relays.poller.add(&near, key)
        });
        meant.tell(&written);
        if written.is_ok() {
            self.answered.insert(key, near);
        }
    }

    fn read_off(&mut self, key: u64) {
        let Some(stream) = self.answered.get_mut(&key) else { return };
        match stream.read(&mut [0; 4096]) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => drop(self.answered.remove(&key)),
        }
    }

    fn answer_datagrams(&self, socket: &UdpSocket) {
        let mut datagram = [0; 2048];
        let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, DNS_PORT));
        while let Ok((_, peer)) = socket.recv_from(&mut datagram) {
            let answer = seen(&self.settings.name, DNS_PORT, peer, local, None).to_string();
            self.meant(DNS, peer, local).tell(&socket.send_to(answer.as_bytes(), peer).map(drop));
        }
    }

    fn meant(&self, via: &'static str, src: SocketAddr, dst: SocketAddr) -> Meant {
        Meant { via, src, dst, uid: Some(self.uid.clone()) }
    }
}

/// Creates a socket for a connection that the pod opened.
fn own(dst: SocketAddr) -> io::Result<Socket> {
    let socket = onward(dst.is_ipv6())?;
    socket.set_mark(MARK)?;
    Ok(socket)
}

/// Creates a socket for a connection to the pod with the client's source address, unless the client is the pod itself.
fn as_client(meant: &Meant) -> io::Result<Socket> {
    let socket = own(meant.dst)?;
    if meant.src.ip() != meant.dst.ip() {
        bind_as(&socket, SocketAddr::new(meant.src.ip(), next_port()))?;
    }
    Ok(socket)
}

/// Next source port; two stubs in one pod start at different ones.
fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = PORTS.end - PORTS.start;
    let next = u32::from(NEXT.fetch_add(1, Ordering::Relaxed)) + std::process::id() % 100 * 997;
    PORTS.start + (next % u32::from(count)) as u16
}
