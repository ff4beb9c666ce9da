//! A stub of ztunnel for in-pod capture: connects to the agent's ZDS socket and listens in the network namespaces of pods that
//! the agent sends. It is a strict peer: where ztunnel replies with an error and closes or reconnects, it reports `protocol-error`
//! and exits with status 1. Writes `{"ready": true}`, then
//!
//! ```text
//! {"event": "connected"|"disconnected"|"snapshot"}
//! {"event": "message", "kind": "add"|"del"|"keep"|"snapshot", "uid": ..}    as received
//! {"event": "workload", "uid": .., "name": .., "namespace": .., "service_account": ..,
//!  "state": "up"|"refused"|"gone", "error": null|".."}                     on each change
//! {"event": "protocol-error", "what": ".."}
//! ```
//!
//! and for each connection what the node-level stub writes, with `"uid"`. With `--ready-port PORT` it accepts connections there
//! from its first complete snapshot on, before which ztunnel is not ready. Commands on stdin are `refuse UID` and `accept UID`,
//! `disconnect`, after which it does not reconnect, and `connect`; each is acknowledged with `{"event": "commanded"}`. On SIGTERM
//! it shuts down as ztunnel does: agent connection and listeners first, connections later.

mod listeners;
mod proxy;
mod workloads;
mod zds;

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::json;

use self::proxy::Settings;
use self::workloads::{Refusal, Workloads};
use self::zds::{Channel, Received, Request};
use crate::poller::Poller;
use crate::{Options, read_lines, tell};

const TERMINATE: u64 = 0;
const STDIN: u64 = 1;
const AGENT: u64 = 2;
/// First delay before reconnecting, which doubles.
const FIRST_WAIT: Duration = Duration::from_millis(20);
/// Maximum delay; ztunnel's is 15 seconds, too long for a test.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

enum Link {
    Down { next: Instant, wait: Duration },
    Up(Channel),
}

struct Stub {
    poller: Poller,
    socket: PathBuf,
    mute: bool,
    /// Does not reconnect.
    idle: bool,
    drain: Duration,
    /// Port that accepts connections from the first complete snapshot on, for a readiness probe.
    ready_port: Option<u16>,
    link: Link,
    workloads: Workloads,
    input: Vec<u8>,
}

pub(crate) fn run(options: &Options) -> io::Result<()> {
    crate::lift_file_limit();
    let poller = Poller::new()?;
    // Before the first thread, which would otherwise receive the signal.
    let terminate = termination()?;
    poller.add(&terminate, TERMINATE)?;
    poller.add(io::stdin(), STDIN)?;
    let settings = Settings {
        name: options.get("--name").expect("--name"),
        dns: options.has("--dns"),
        v6: !options.has("--no-ipv6"),
        limit: options.timeout(),
    };
    let refused = options.all("--refuse").iter().cloned().collect();
    tell(&json!({"ready": true}));
    let stub = Stub {
        poller,
        socket: options.get("--socket").expect("--socket"),
        mute: options.has("--mute"),
        idle: false,
        drain: options.millis("--drain-ms", 3000),
        ready_port: options.get("--ready-port"),
        link: Link::Down { next: Instant::now(), wait: FIRST_WAIT },
        workloads: Workloads::new(settings, refused),
        input: Vec::new(),
    };
    stub.work()
}

fn termination() -> io::Result<SignalFd> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?)
}

impl Stub {
    fn work(mut self) -> io::Result<()> {
        loop {
            for (key, _) in self.poller.wait(self.due())? {
                match key {
                    TERMINATE => return self.terminate(),
                    STDIN if self.listen()? => return Ok(()),
                    STDIN => {}
                    _ => self.hear(),
                }
            }
            match &self.link {
                Link::Down { next, wait } if !self.idle && *next <= Instant::now() => self.dial(*wait)?,
                Link::Down { .. } => {}
                Link::Up(_) => self.workloads.retry_if_due(),
            }
        }
    }

    fn due(&self) -> Option<Instant> {
        match &self.link {
            Link::Down { .. } if self.idle => None,
            Link::Down { next, .. } => Some(*next),
            Link::Up(_) => self.workloads.retry_at(),
        }
    }

    /// Reads commands; returns true at the end of input.
    fn listen(&mut self) -> io::Result<bool> {
        let (lines, ended) = read_lines(&mut self.input)?;
        for line in lines {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["refuse", uid] => self.workloads.refuse(uid),
                ["accept", uid] => self.workloads.accept(uid),
                ["disconnect"] => {
                    self.idle = true;
                    self.hang_up(FIRST_WAIT);
                }
                ["connect"] => self.idle = false,
                ref other => panic!("not understood: {other:?}"),
            }
            tell(&json!({"event": "commanded"}));
        }
        Ok(ended)
    }

    fn dial(&mut self, wait: Duration) -> io::Result<()> {
        let Ok(channel) = Channel::open(&self.socket) else {
            self.link = Link::Down { next: Instant::now() + wait, wait: LONGEST_WAIT.min(wait * 2) };
            return Ok(());
        };
        self.poller.add(channel.as_fd(), AGENT)?;
        self.link = Link::Up(channel);
        self.workloads.begin();
        tell(&json!({"event": "connected"}));
        Ok(())
    }

    fn hear(&mut self) {
        let Link::Up(channel) = &self.link else { return };
        let outcome = match channel.receive() {
            Ok(Received::Message(Ok(request))) => {
                let (began, is_pod) = (Instant::now(), matches!(request, Request::Add { .. }));
                tell_message(&request);
                if let (Request::SnapshotSent, Some(port)) = (&request, self.ready_port.take()) {
                    accept_probes(port);
                }
                let answered =
                    if self.mute { Ok(()) } else { answer(channel, self.workloads.handle(request)) };
                if is_pod {
                    tell(&json!({"event": "answered", "micros": began.elapsed().as_micros() as u64}));
                }
                answered
            }
            Ok(Received::Message(Err(what))) => broken(channel, &format!("failure to read message : {what}")),
            Ok(Received::Nothing) => Ok(()),
            Ok(Received::End) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error),
        };
        if outcome.is_err() {
            self.hang_up(FIRST_WAIT);
        }
    }

    fn hang_up(&mut self, wait: Duration) {
        if matches!(self.link, Link::Up(_)) {
            tell(&json!({"event": "disconnected"}));
        }
        self.link = Link::Down { next: Instant::now() + wait, wait: wait * 2 };
    }

    fn terminate(mut self) -> io::Result<()> {
        self.hang_up(self.drain);
        self.workloads.drain(self.drain);
        // The kernel closes remaining connections.
        std::process::exit(0);
    }
}

/// Accepts probes until the process ends.
fn accept_probes(port: u16) {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).expect("--ready-port is free");
    std::thread::spawn(move || listener.incoming().for_each(drop));
}

fn answer(channel: &Channel, outcome: Result<(), Refusal>) -> io::Result<()> {
    match outcome {
        Ok(()) => channel.acknowledge(None),
        Err(Refusal::Start(why)) => channel.acknowledge(Some(&format!("failure to start proxy : {why}"))),
        Err(Refusal::Protocol(what)) => broken(channel, &format!("failure to process message : {what}")),
    }
}

/// Reports a protocol error to the agent and ends the process.
fn broken(channel: &Channel, what: &str) -> io::Result<()> {
    tell(&json!({"event": "protocol-error", "what": what}));
    let _ = channel.acknowledge(Some(what));
    std::process::exit(1);
}

fn tell_message(request: &Request) {
    let (kind, uid) = match request {
        Request::Add { uid, .. } => ("add", Some(uid)),
        Request::Del { uid } => ("del", Some(uid)),
        Request::Keep { uid } => ("keep", Some(uid)),
        Request::SnapshotSent => ("snapshot", None),
    };
    tell(&json!({"event": "message", "kind": kind, "uid": uid}));
}
