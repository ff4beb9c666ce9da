//! Clients of the debug state: many that only request it, and several that misbehave.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

use kit::Netns;

/// The agent's default debug port.
pub(crate) const PORT: u16 = 9876;
/// The agent's longest timeout is 40 s; a client that waits longer was forgotten.
const PATIENCE: Duration = Duration::from_secs(60);
const ASKING: usize = 8;
const NEVER_READING: usize = 4;
const GARBAGE: usize = 4;
const SLOW: usize = 2;

/// Checks an answer: the time just before its request, and its body.
pub(crate) type Check = fn(SystemTime, &str);

/// Eight clients that send requests, four that never read, four that send garbage, two that read one byte at a time.
pub(crate) struct Crowd {
    shared: Arc<Shared>,
    asking: Vec<JoinHandle<()>>,
    others: Vec<JoinHandle<()>>,
}

struct Shared {
    netns: Arc<Netns>,
    requests: usize,
    sent: AtomicUsize,
    answered: AtomicUsize,
    over: AtomicBool,
    check: Check,
}

impl Crowd {
    /// Starts the clients in the agent's network namespace. Requesting clients end after `requests` requests.
    pub(crate) fn start(netns: &Arc<Netns>, requests: usize, check: Check) -> Crowd {
        let shared = Arc::new(Shared {
            netns: Arc::clone(netns),
            requests,
            sent: AtomicUsize::new(0),
            answered: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            check,
        });
        let begin = |count: usize, act: fn(&Shared)| {
            let client = || {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.netns.enter();
                    act(&shared);
                })
            };
            std::iter::repeat_with(client).take(count).collect::<Vec<_>>()
        };
        let others =
            [begin(NEVER_READING, never_reads), begin(GARBAGE, sends_garbage), begin(SLOW, reads_slowly)];
        let asking = begin(ASKING, asks);
        Crowd { shared, asking, others: others.into_iter().flatten().collect() }
    }

    /// Whether all requests have been answered.
    pub(crate) fn is_done(&self) -> bool {
        self.asking.iter().all(JoinHandle::is_finished)
    }

    /// Number of answered requests.
    pub(crate) fn answered(&self) -> usize {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// Ends all clients; a failed check panics here.
    pub(crate) fn end(mut self) {
        self.stop();
        let all = self.asking.drain(..).chain(self.others.drain(..));
        for client in all.collect::<Vec<_>>() {
            client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }

    fn stop(&self) {
        self.shared.sent.fetch_add(self.shared.requests, Ordering::Relaxed);
        self.shared.over.store(true, Ordering::Relaxed);
    }
}

/// A failing test leaves no client behind.
impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

fn connect() -> io::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, PORT))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Status line with headers, and the body, of a GET on its own connection.
pub(crate) fn get(path: &str) -> io::Result<(String, String)> {
    let mut stream = connect()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    Ok((head.to_owned(), body.to_owned()))
}

fn asks(shared: &Shared) {
    while shared.sent.fetch_add(1, Ordering::Relaxed) < shared.requests {
        let began = SystemTime::now();
        let (head, body) = get("/debug/state").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}: {body}");
        (shared.check)(began, &body);
        shared.answered.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends requests on a connection without reading, until it is closed; then reconnects.
fn never_reads(shared: &Shared) {
    while !shared.is_over() {
        let Ok(mut stream) = connect() else { continue };
        while !shared.is_over()
            && write!(stream, "GET /debug/state HTTP/1.1\r\nHost: localhost\r\n\r\n").is_ok()
        {
            thread::sleep(Duration::from_millis(50)); // nothing else to do
        }
    }
}

fn sends_garbage(shared: &Shared) {
    let heads: [&[u8]; 6] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /debug/state HTTP/9.9\r\n\r\n",
        b"GET /debug/state HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"PUT /debug/log HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
        b"DELETE /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
    ];
    for head in heads.into_iter().cycle() {
        if shared.is_over() {
            return;
        }
        let Ok(mut stream) = connect() else { continue };
        // Any result, such as a reset, is allowed.
        if stream.write_all(head).is_ok() {
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
}

fn reads_slowly(shared: &Shared) {
    while !shared.is_over() {
        let Ok(mut stream) = connect() else { continue };
        let asked = write!(stream, "GET /debug/state HTTP/1.1\r\nHost: localhost\r\n\r\n");
        while asked.is_ok() && !shared.is_over() && stream.read(&mut [0]).is_ok_and(|read| read > 0) {
            thread::sleep(Duration::from_millis(5)); // the behaviour of this client
        }
    }
}
