//! One server, client or proxy, for tests; `kit` starts it in the namespace that a test chooses.
//!
//! ```text
//! kit-traffic serve tcp|udp --bind ADDR:PORT... [--name N] [--uid N --gid N] [--transparent]
//! kit-traffic connect tcp|udp --to ADDR:PORT [--bind ADDR:PORT] [--mark N] [--timeout-ms N] [--uid N --gid N]
//! kit-traffic ztunnel --name N [--dns] [--timeout-ms N]
//! kit-traffic inpod-ztunnel --socket PATH --name N [--dns] [--refuse UID]... [--mute] [--no-ipv6]
//!             [--drain-ms N] [--timeout-ms N]
//! kit-traffic live [--every-ms N] [--stall-ms N]
//! kit-traffic refuse ipv6|netfilter|netns PROGRAM [ARGUMENTS]
//! kit-traffic contain --root DIR [--bind FROM:TO]... [--rbind FROM:TO]... [--read-only PATH]... [--user-limit NAME=VALUE]
//!             --started FILE -- PROGRAM [ARGUMENTS]
//! ```
//!
//! The server writes `ready` when it listens, and answers with one line of JSON that describes the connection; the client writes
//! the line that it received, or `{"error": .., "kind": ..}`. The files of the others describe their output.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "test code: a broken set-up shall stop the test at once, where it broke, in words"
)]

mod contain;
mod inpod;
mod live;
mod poller;
mod refuse;
mod relay;
mod relays;
mod ztunnel;

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use socket2::{Domain, SockRef, Socket, Type};

fn main() {
    let mut words = std::env::args().skip(1);
    let verb = words.next().expect("serve, connect, ztunnel, inpod-ztunnel or live");
    if verb == "refuse" {
        panic!("{}", refuse::run(words));
    }
    if verb == "contain" {
        let options = Options::parse(words.by_ref().take_while(|word| word != "--"));
        panic!("{}", contain::run(&options, words));
    }
    let proto = match verb.as_str() {
        "serve" | "connect" => words.next().expect("tcp or udp"),
        _ => String::new(),
    };
    let options = Options::parse(words);
    // Before any socket: the user that creates a socket owns it.
    options.change_user();
    match (verb.as_str(), proto.as_str()) {
        ("serve", "tcp") => serve(&options, serve_tcp),
        ("serve", "udp") => serve(&options, serve_udp),
        ("connect", "tcp") => report(ask_tcp(&options)),
        ("connect", "udp") => report(ask_udp(&options)),
        ("ztunnel", _) => ztunnel::run(&options).unwrap(),
        ("inpod-ztunnel", _) => inpod::run(&options).unwrap(),
        ("live", _) => live::run(&options).unwrap(),
        other => panic!("not understood: {other:?}"),
    }
}

/// The options, each with its values in the order given.
struct Options(BTreeMap<String, Vec<String>>);

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Self {
        let mut options: BTreeMap<_, Vec<_>> = BTreeMap::new();
        while let Some(word) = words.next() {
            let alone = ["--transparent", "--dns", "--mute", "--no-ipv6"].contains(&word.as_str());
            let value = if alone { String::new() } else { words.next().expect("a value") };
            options.entry(word).or_default().push(value);
        }
        Self(options)
    }

    fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    fn get<T: std::str::FromStr<Err: std::fmt::Debug>>(&self, key: &str) -> Option<T> {
        self.0.get(key).map(|values| values[0].parse().unwrap())
    }

    fn all(&self, key: &str) -> &[String] {
        self.0.get(key).map_or(&[], Vec::as_slice)
    }

    fn timeout(&self) -> Duration {
        self.millis("--timeout-ms", 2000)
    }

    fn millis(&self, key: &str, default: u64) -> Duration {
        Duration::from_millis(self.get(key).unwrap_or(default))
    }

    /// Changes the user, but keeps the capabilities that ports below 1024, marks and `IP_TRANSPARENT` need.
    fn change_user(&self) {
        let (Some(uid), Some(gid)) = (self.get("--uid"), self.get("--gid")) else { return };
        kit::become_user(uid, gid);
    }
}

/// A socket with its options set, bound if requested.
fn socket(options: &Options, kind: Type, near: &SocketAddr, bound: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(*near), kind, None)?;
    if near.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if options.has("--transparent") {
        // Applies to IPv6 sockets, too: the kernel has one bit for both (`inet_sk(sk)->transparent`).
        socket.set_ip_transparent_v4(true)?;
    }
    if let Some(mark) = options.get("--mark") {
        socket.set_mark(mark)?;
    }
    if bound {
        socket.set_reuse_address(true)?;
        socket.bind(&(*near).into())?;
    }
    Ok(socket)
}

fn serve(options: &Options, one: fn(Socket, &str, u16)) {
    let name: String = options.get("--name").unwrap_or_else(|| "echo".into());
    let kind = if std::ptr::fn_addr_eq(one, serve_udp as fn(Socket, &str, u16)) {
        Type::DGRAM
    } else {
        Type::STREAM
    };
    let mut threads = Vec::new();
    for near in &options.0["--bind"] {
        let near: SocketAddr = near.parse().unwrap();
        let socket = socket(options, kind, &near, true).unwrap_or_else(|e| panic!("cannot bind {near}: {e}"));
        if kind == Type::STREAM {
            socket.listen(1024).unwrap();
        }
        let name = name.clone();
        threads.push(thread::spawn(move || one(socket, &name, near.port())));
    }
    println!("ready");
    io::stdout().flush().unwrap();
    for thread in threads {
        thread.join().unwrap();
    }
}

fn serve_tcp(socket: Socket, name: &str, port: u16) {
    for stream in TcpListener::from(socket).incoming() {
        // An error of one client that has disconnected.
        let Ok(stream) = stream else { continue };
        let name = name.to_owned();
        thread::spawn(move || answer_tcp(stream, &name, port));
    }
}

fn answer_tcp(mut stream: TcpStream, name: &str, port: u16) -> io::Result<()> {
    let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
    let socket = SockRef::from(&stream);
    let original = if local.is_ipv6() { socket.original_dst_v6() } else { socket.original_dst_v4() };
    let original = original.ok().and_then(|address| address.as_socket());
    writeln!(stream, "{}", seen(name, port, peer, local, original))?;
    io::copy(&mut stream.try_clone()?, &mut stream)?;
    Ok(())
}

fn serve_udp(socket: Socket, name: &str, port: u16) {
    let socket = UdpSocket::from(socket);
    let local = socket.local_addr().unwrap();
    let mut datagram = [0; 2048];
    loop {
        let Ok((_, peer)) = socket.recv_from(&mut datagram) else { continue };
        let _ = socket.send_to(seen(name, port, peer, local, None).to_string().as_bytes(), peer);
    }
}

fn seen(name: &str, port: u16, peer: SocketAddr, local: SocketAddr, original: Option<SocketAddr>) -> Value {
    json!({"server": name, "listener": port, "peer": peer, "local": local, "original_dst": original})
}

/// Time for the answer on a TCP connection, which depends on processes of this machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

fn ask_tcp(options: &Options) -> io::Result<String> {
    let stream: TcpStream = connected(options, Type::STREAM)?.into();
    stream.set_read_timeout(Some(options.timeout().max(ANSWER_LIMIT)))?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    if line.is_empty() {
        Err(io::Error::new(ErrorKind::ConnectionReset, "closed without an answer"))
    } else {
        Ok(line)
    }
}

fn ask_udp(options: &Options) -> io::Result<String> {
    let socket: UdpSocket = connected(options, Type::DGRAM)?.into();
    socket.set_read_timeout(Some(options.timeout()))?;
    socket.send(b"hello")?;
    let mut datagram = [0; 2048];
    let length = socket.recv(&mut datagram)?;
    Ok(String::from_utf8_lossy(&datagram[..length]).into_owned())
}

fn connected(options: &Options, kind: Type) -> io::Result<Socket> {
    let far: SocketAddr = options.get("--to").expect("--to");
    let near: Option<SocketAddr> = options.get("--bind");
    let socket = socket(options, kind, &near.unwrap_or(far), near.is_some())?;
    socket.connect_timeout(&far.into(), options.timeout())?;
    Ok(socket)
}

fn report(answer: io::Result<String>) {
    match answer {
        Ok(line) => println!("{}", line.trim_end()),
        Err(error) => println!("{}", json!({"error": error.to_string(), "kind": kind(&error)})),
    }
}

fn kind(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::ConnectionRefused => "refused",
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "timeout",
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => "unreachable",
        ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => "reset",
        _ => "other",
    }
}

/// Writes one line for the process that started this one.
fn tell(line: &Value) {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).expect("somebody listens");
}

/// Reads the available data from stdin and appends it to `input`, which keeps the beginning of an unfinished line. Returns whole
/// lines, and whether the input has ended.
fn read_lines(input: &mut Vec<u8>) -> io::Result<(Vec<String>, bool)> {
    let (mut bytes, mut lines) = ([0; 4096], Vec::new());
    let length = rustix::io::read(io::stdin(), &mut bytes)?;
    input.extend_from_slice(&bytes[..length]);
    while let Some(end) = input.iter().position(|byte| *byte == b'\n') {
        lines.push(String::from_utf8(input.drain(..=end).collect()).expect("text"));
    }
    Ok((lines, length == 0))
}

/// Raises the limit of open files to the maximum.
fn lift_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}
