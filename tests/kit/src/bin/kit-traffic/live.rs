//! Long-lived connections to servers of `kit-traffic serve tcp`, all in one thread: on each, one numbered message per interval, and
//! its echo. Commands on stdin:
//!
//! ```text
//! open ID ADDR:PORT TIMEOUT_MS    writes {"id": .., "local": .., "seen": {..}} or {"id": .., "error": .., "kind": ..}
//! report TAG                      writes {"report": TAG, "connections": [{"id": .., "exchanges": .., ..}]}
//! pause                           no new messages; writes {"paused": true} when every echo has arrived
//! ```
//!
//! A broken connection is reported as `{"broken": ID, "error": .., "at_us": .., "exchanges": ..}` (microseconds since 1970).

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::poller::Poller;
use crate::relays::begin_connect;
use crate::{Options, kind, read_lines, tell};

const STDIN: u64 = 0;
const MESSAGE: usize = 16;

enum State {
    /// Until the server has sent its line, it counts as not connected.
    Opening {
        until: Instant,
        greeting: Vec<u8>,
    },
    Idle,
    Waiting {
        since: Instant,
        echo: Vec<u8>,
    },
}

struct Connection {
    id: u64,
    stream: TcpStream,
    state: State,
    exchanges: u64,
    slowest: Duration,
}

struct Live {
    poller: Poller,
    every: Duration,
    stall: Duration,
    connections: BTreeMap<u64, Connection>,
    /// Figures of connections that were closed.
    past: Vec<Value>,
    input: Vec<u8>,
    pause: Pause,
}

enum Pause {
    No,
    Wanted,
    Told,
}

pub(crate) fn run(options: &Options) -> io::Result<()> {
    crate::lift_file_limit();
    let mut live = Live {
        poller: Poller::new()?,
        every: options.millis("--every-ms", 20),
        stall: options.millis("--stall-ms", 30_000),
        connections: BTreeMap::new(),
        past: Vec::new(),
        input: Vec::new(),
        pause: Pause::No,
    };
    live.poller.add(io::stdin(), STDIN)?;
    tell(&json!({"ready": true}));
    live.work()
}

impl Live {
    fn work(&mut self) -> io::Result<()> {
        let mut tick = Instant::now() + self.every;
        loop {
            for (key, _) in self.poller.wait(Some(tick))? {
                match key {
                    STDIN if self.listen()? => return Ok(()),
                    STDIN => {}
                    id => self.advance(id),
                }
            }
            let now = Instant::now();
            if now >= tick {
                self.tick(now);
                // More than one interval behind, as on a busy machine: skip, do not catch up.
                tick = (tick + self.every).max(now + self.every / 2);
            }
            self.settle_pause();
        }
    }

    /// Reads commands; returns true at the end of input.
    fn listen(&mut self) -> io::Result<bool> {
        let (lines, ended) = read_lines(&mut self.input)?;
        for line in lines {
            self.command(line.split_whitespace().collect::<Vec<_>>().as_slice());
        }
        Ok(ended)
    }

    fn command(&mut self, words: &[&str]) {
        match words {
            ["open", id, target, timeout] => {
                let (id, timeout) = (id.parse().unwrap(), timeout.parse().unwrap());
                let until = Instant::now() + Duration::from_millis(timeout);
                match self.open(id, target.parse().unwrap(), until) {
                    Ok(connection) => drop(self.connections.insert(id, connection)),
                    Err(error) => tell_failed(id, &error),
                }
            }
            ["report", tag] => self.report(tag),
            ["pause"] => self.pause = Pause::Wanted,
            other => panic!("not understood: {other:?}"),
        }
    }

    fn open(&self, id: u64, target: SocketAddr, until: Instant) -> io::Result<Connection> {
        let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        begin_connect(&socket, target)?;
        self.poller.add(&socket, id)?;
        let state = State::Opening { until, greeting: Vec::new() };
        Ok(Connection { id, stream: socket.into(), state, exchanges: 0, slowest: Duration::ZERO })
    }

    fn advance(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Err(error) = connection.read() {
            self.broken(id, &error);
        }
    }

    /// Sends on every connection that has received its last echo, and breaks those that have waited too long.
    fn tick(&mut self, now: Instant) {
        let sending = matches!(self.pause, Pause::No);
        let mut broken = Vec::new();
        for connection in self.connections.values_mut() {
            let outcome = match &connection.state {
                State::Idle if sending => connection.send(now),
                State::Opening { until, .. } if *until <= now => Err(ErrorKind::TimedOut.into()),
                State::Waiting { since, .. } if now - *since >= self.stall => Err(ErrorKind::TimedOut.into()),
                _ => Ok(()),
            };
            broken.extend(outcome.err().map(|error| (connection.id, error)));
        }
        for (id, error) in broken {
            self.broken(id, &error);
        }
    }

    fn broken(&mut self, id: u64, error: &io::Error) {
        let Some(connection) = self.connections.remove(&id) else { return };
        if matches!(connection.state, State::Opening { .. }) {
            return tell_failed(id, error);
        }
        let at = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let (exchanges, at) = (connection.exchanges, at.as_micros());
        tell(&json!({"broken": id, "error": error.to_string(), "at_us": at, "exchanges": exchanges}));
        self.past.push(connection.figures());
    }

    fn report(&self, tag: &str) {
        let open = self.connections.values().filter(|one| !matches!(one.state, State::Opening { .. }));
        let figures: Vec<_> = self.past.iter().cloned().chain(open.map(Connection::figures)).collect();
        tell(&json!({"report": tag, "connections": figures}));
    }

    fn settle_pause(&mut self) {
        let waiting = |connection: &Connection| matches!(connection.state, State::Waiting { .. });
        if matches!(self.pause, Pause::Wanted) && !self.connections.values().any(waiting) {
            self.pause = Pause::Told;
            tell(&json!({"paused": true}));
        }
    }
}

impl Connection {
    fn send(&mut self, now: Instant) -> io::Result<()> {
        // At most one message is in flight, so it always fits.
        let message = self.message();
        if self.stream.write(&message)? != message.len() {
            return Err(io::Error::new(ErrorKind::WriteZero, "a message of 16 bytes did not fit"));
        }
        self.state = State::Waiting { since: now, echo: Vec::new() };
        Ok(())
    }

    fn message(&self) -> [u8; MESSAGE] {
        (u128::from(self.id) << 64 | u128::from(self.exchanges)).to_be_bytes()
    }

    fn read(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        let length = match self.stream.read(&mut bytes) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "closed by the other end")),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        self.take(&bytes[..length])
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        let expected = self.message();
        match &mut self.state {
            State::Opening { greeting, .. } => {
                greeting.extend_from_slice(bytes);
                if greeting.ends_with(b"\n") {
                    let seen: Value = serde_json::from_slice(greeting).map_err(io::Error::other)?;
                    tell(&json!({"id": self.id, "local": self.stream.local_addr()?, "seen": seen}));
                    self.state = State::Idle;
                }
            }
            State::Idle => return Err(io::Error::other("bytes that nobody asked for")),
            State::Waiting { since, echo } => {
                echo.extend_from_slice(bytes);
                if !expected.starts_with(echo) {
                    return Err(io::Error::other("another echo than was sent"));
                }
                if echo.len() == MESSAGE {
                    self.slowest = self.slowest.max(since.elapsed());
                    self.exchanges += 1;
                    self.state = State::Idle;
                }
            }
        }
        Ok(())
    }

    /// Figures; a pending echo counts with its time so far.
    fn figures(&self) -> Value {
        let waiting = match &self.state {
            State::Waiting { since, .. } => since.elapsed(),
            _ => Duration::ZERO,
        };
        let slowest = self.slowest.max(waiting).as_micros();
        json!({"id": self.id, "exchanges": self.exchanges, "slowest_us": slowest})
    }
}

fn tell_failed(id: u64, error: &io::Error) {
    tell(&json!({"id": id, "error": error.to_string(), "kind": kind(error)}));
}
