//! Attacks on the agent by processes that have no access to it: exhausting a server's connections, holding a lock.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::netns::Netns;

/// Request header that a flood's connection repeats, so that it is never idle for long.
const HALF: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ";
/// Connect timeout of one of a flood's connections.
const DIAL: Duration = Duration::from_millis(300);
/// Threads among which a flood's connections are divided.
const THREADS: usize = 8;

/// Connections to a server that never finish their request. A connection that the server closes is replaced immediately.
#[derive(Debug)]
pub struct HalfOpen {
    over: Arc<AtomicBool>,
    opened: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl HalfOpen {
    /// Opens `count` connections from a namespace, and keeps that many open until drop.
    #[must_use]
    pub fn start(from: &Netns, target: SocketAddr, count: usize) -> Self {
        let (over, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let one = || {
            let (from, over, opened) = (from.second_handle(), Arc::clone(&over), Arc::clone(&opened));
            thread::spawn(move || {
                from.enter();
                hold(target, count.div_ceil(THREADS), &over, &opened);
            })
        };
        let threads = std::iter::repeat_with(one).take(THREADS).collect();
        Self { over, opened, threads }
    }

    /// Number of connections that the server's host has accepted so far.
    #[must_use]
    pub fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }
}

impl Drop for HalfOpen {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn hold(target: SocketAddr, count: usize, over: &AtomicBool, opened: &AtomicUsize) {
    let mut held: Vec<TcpStream> = Vec::new();
    while !over.load(Ordering::Relaxed) {
        held.retain_mut(|stream| {
            let _ = stream.write(b"x");
            match stream.read(&mut [0; 256]) {
                Ok(read) => read > 0,
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            }
        });
        while held.len() < count && !over.load(Ordering::Relaxed) {
            let Ok(mut stream) = TcpStream::connect_timeout(&target, DIAL) else { break };
            if stream.write_all(HALF).is_ok() && stream.set_nonblocking(true).is_ok() {
                opened.fetch_add(1, Ordering::Relaxed);
                held.push(stream);
            }
        }
        thread::sleep(Duration::from_millis(100)); // the target is reached
    }
}

/// Holds the lock that excludes tools of legacy tables from a network namespace. Any process in the namespace can take it, whatever
/// its user: the lock is on the namespace's own file. Drop releases it.
#[derive(Debug)]
pub struct LegacyLock {
    _file: File,
}

impl LegacyLock {
    /// Takes the lock.
    ///
    /// # Panics
    /// If another process holds it.
    #[must_use]
    pub fn hold(netns: &Netns) -> Self {
        let file = File::open(netns.path()).expect("a namespace can be opened");
        flock(&file, FlockOperation::NonBlockingLockExclusive).expect("nobody else has the lock");
        Self { _file: file }
    }
}

/// A process in a network namespace that holds the lock of a file until drop.
#[derive(Debug)]
pub struct LockHolder(Child);

impl LockHolder {
    /// Starts the process with `command`, which may first drop its privileges, and returns when the lock is held. Nothing forks in
    /// between: the process that takes the lock keeps it.
    ///
    /// # Panics
    /// If the lock is not free.
    #[must_use]
    pub fn start(netns: &Netns, mut command: Command, file: &str) -> Self {
        command.args(["--no-fork", file, "sh", "-c", "echo held; exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = Self(netns.spawn(&mut command));
        let mut line = [0; 5];
        holder.0.stdout.as_mut().expect("it is piped").read_exact(&mut line).expect("it says so");
        assert_eq!(&line, b"held\n");
        holder
    }

    /// Process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for LockHolder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
