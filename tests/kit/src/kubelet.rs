//! The kubelets of all nodes, limited to `pods/portforward` over WebSocket: the endpoint to which the API server connects, and an
//! agent's debug endpoint behind it.
//!
//! It requires what a kubelet does (k8s.io/kubelet, `pkg/cri/streaming/portforward/websocket.go`, and `wsstream` of
//! k8s.io/apimachinery): a client certificate, the query parameter `port`, a supported protocol, masked frames on existing
//! channels. It sends what a kubelet sends: first the port's number, two bytes, on each of the two channels; then data on the first
//! and an error's text on the second; a close frame at the end.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use socket2::SockRef;

use crate::netns::sandbox;
use crate::pki::Pki;

/// RFC 6455, section 1.3.
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const PROTOCOL: &str = "v4.channel.k8s.io";
/// Size of a kubelet's copy buffer: 32 KiB.
const CHUNK: usize = 32 * 1024;
const DATA: u8 = 0;
const ERROR: u8 = 1;

/// A request that arrived through a port-forward.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forwarded {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod.
    pub pod: String,
    /// The port.
    pub port: u16,
    /// The path of the HTTP request.
    pub path: String,
}

/// Reply to a forwarded request.
#[derive(Debug, Clone)]
pub enum ForwardedReply {
    /// The agent replies with status and body.
    Http(u16, Vec<u8>),
    /// A reply after a delay.
    Late(Duration, Box<ForwardedReply>),
    /// No reply.
    Silence,
    /// The agent starts its reply, and the connection breaks without a close frame.
    Broken,
}

/// Start of a port-forward, before any request.
#[derive(Debug, Clone)]
pub enum ForwardedStart {
    /// The port is connected.
    Connect,
    /// The kubelet answers the request for a port-forward with this status.
    Refuse(u16),
    /// Nothing listens on the port, for this reason.
    Error(String),
}

type Starting = dyn Fn(&str) -> ForwardedStart + Send + Sync;
type Answering = dyn Fn(&Forwarded) -> ForwardedReply + Send + Sync;

/// A kubelet for every node whose status has its address and port.
#[derive(Debug)]
pub struct SimulatedKubelet {
    address: SocketAddr,
    listener: TcpListener,
    /// The maximum number of connections without a reply, and the current one.
    open: Arc<Mutex<(usize, usize)>>,
}

impl SimulatedKubelet {
    /// Listens on the loopback of the sandbox, where the API server is. `start` receives the pod's name.
    pub fn start(
        start: impl Fn(&str) -> ForwardedStart + Send + Sync + 'static,
        answer: impl Fn(&Forwarded) -> ForwardedReply + Send + Sync + 'static,
    ) -> Self {
        let listener = sandbox().run(|| TcpListener::bind(("127.0.0.1", 0)).expect("cannot listen"));
        let address = listener.local_addr().expect("a bound socket");
        let config = Pki::shared().server(&[address.ip()]).server_config_for_clients(Pki::shared());
        let accepting = listener.try_clone().expect("a socket can be shared");
        let (start, answer): (Arc<Starting>, Arc<Answering>) = (Arc::new(start), Arc::new(answer));
        let open = Arc::new(Mutex::new((0, 0)));
        let counted = Arc::clone(&open);
        thread::spawn(move || {
            while let Ok((stream, _)) = accepting.accept() {
                let (config, start, answer) = (Arc::clone(&config), Arc::clone(&start), Arc::clone(&answer));
                let counted = Arc::clone(&counted);
                thread::spawn(move || {
                    let open = Open::count_open(&counted);
                    let _ = serve(stream, &config, &*start, &*answer, open);
                });
            }
        });
        Self { address, listener, open }
    }

    /// Address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The most connections without a reply at the same time. A client may open its next one as soon as it has a reply, before the
    /// last one is closed here.
    #[must_use]
    pub fn most_connections(&self) -> usize {
        self.open.lock().expect("no test panics in between").0
    }
}

impl Drop for SimulatedKubelet {
    fn drop(&mut self) {
        // Wakes the accepting thread, which then ends.
        let _ = SockRef::from(&self.listener).shutdown(std::net::Shutdown::Both);
    }
}

/// A connection that counts until drop.
struct Open<'a>(&'a Mutex<(usize, usize)>);

impl<'a> Open<'a> {
    fn count_open(all: &'a Mutex<(usize, usize)>) -> Self {
        let mut counts = all.lock().expect("no test panics in between");
        counts.1 += 1;
        counts.0 = counts.0.max(counts.1);
        Self(all)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.lock().expect("no test panics in between").1 -= 1;
    }
}

struct Upgrade {
    method: String,
    namespace: String,
    pod: String,
    port: u16,
    headers: Vec<(String, String)>,
}

impl Upgrade {
    fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(header, _)| header.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value)
    }

    /// Reason why a kubelet refuses the request.
    fn fault(&self) -> Option<&'static str> {
        let has = |name, word: &str| self.header(name).to_ascii_lowercase().contains(word);
        let protocols = self.header("sec-websocket-protocol").split(',');
        let faults = [
            (self.method != "GET", "not a GET"),
            (!has("connection", "upgrade") || !has("upgrade", "websocket"), "no upgrade to WebSocket"),
            (self.header("sec-websocket-version") != "13", "not version 13"),
            (self.header("sec-websocket-key").len() != 24, "no key"),
            (!protocols.map(str::trim).any(|protocol| protocol == PROTOCOL), "no protocol of ours"),
            (self.port == 0, "query parameter \"port\" is required"),
        ];
        faults.into_iter().find(|(holds, _)| *holds).map(|(_, why)| why)
    }
}

fn serve(
    stream: TcpStream,
    config: &Arc<ServerConfig>,
    start: &Starting,
    answer: &Answering,
    open: Open<'_>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let connection = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    let upgrade = read_upgrade(&mut stream)?;
    let out = stream.get_mut();
    if let Some(fault) = upgrade.fault() {
        drop(open);
        return refuse(out, 400, fault);
    }
    let start = start(&upgrade.pod);
    if let ForwardedStart::Refuse(status) = start {
        drop(open);
        return refuse(out, status, "refused by the test");
    }
    let key = format!("{}{MAGIC}", upgrade.header("sec-websocket-key"));
    let accept =
        STANDARD.encode(ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes()));
    write!(
        out,
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {PROTOCOL}\r\n\r\n"
    )?;
    for channel in [DATA, ERROR] {
        send(out, channel, &upgrade.port.to_le_bytes())?;
    }
    if let ForwardedStart::Error(why) = start {
        drop(open);
        let (port, pod) = (upgrade.port, &upgrade.pod);
        send(out, ERROR, format!("error forwarding port {port} to pod {pod}, uid : {why}").as_bytes())?;
        return close(&mut stream);
    }
    let Some(head) = read_request(&mut stream)? else { return Ok(()) };
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let Upgrade { namespace, pod, port, .. } = upgrade;
    let mut reply = answer(&Forwarded { namespace, pod, port, path });
    loop {
        reply = match reply {
            ForwardedReply::Late(pause, next) => {
                thread::sleep(pause);
                *next
            }
            ForwardedReply::Http(status, body) => {
                drop(open);
                let out = stream.get_mut();
                let head = format!("HTTP/1.0 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
                send(out, DATA, head.as_bytes())?;
                body.chunks(CHUNK).try_for_each(|part| send(out, DATA, part))?;
                return close(&mut stream);
            }
            ForwardedReply::Broken => {
                drop(open);
                return send(stream.get_mut(), DATA, b"HTTP/1.0 200 OK\r\ncontent-length: 9\r\n\r\n{");
            }
            ForwardedReply::Silence => return wait_for_end(&mut stream),
        }
    }
}

fn refuse(out: &mut impl Write, status: u16, why: &str) -> io::Result<()> {
    let length = why.len();
    write!(out, "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{why}")?;
    out.flush()
}

fn read_upgrade(stream: &mut impl BufRead) -> io::Result<Upgrade> {
    let mut lines = stream.lines();
    let first = lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut parts = path.split('/').skip(1);
    let is_forward = parts.next() == Some("portForward");
    let (namespace, pod) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let port =
        query.split('&').find_map(|part| part.strip_prefix("port=")).and_then(|port| port.parse().ok());
    let (namespace, pod) = (namespace.to_owned(), pod.to_owned());
    let mut headers = Vec::new();
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    Ok(Upgrade { method, namespace, pod, port: port.filter(|_| is_forward).unwrap_or(0), headers })
}

/// Reads the head of an HTTP request from the data channel; `None` means that the client closed before its end.
fn read_request(stream: &mut BufReader<impl Read + Write>) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match read_frame(stream)? {
            Frame::Close => return Ok(None),
            // Clients cannot send on the error channel, and there are only two channels.
            Frame::Data(bytes) if bytes.first() == Some(&DATA) => head.extend(bytes.get(1..).unwrap_or(&[])),
            Frame::Data(_) => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}

enum Frame {
    Data(Vec<u8>),
    Close,
}

/// Reads a frame of a client; an unmasked one is refused (RFC 6455, section 5.1). Pings are answered.
fn read_frame(stream: &mut BufReader<impl Read + Write>) -> io::Result<Frame> {
    loop {
        let mut head = [0; 2];
        stream.read_exact(&mut head)?;
        let (code, is_masked, length) = (head[0] & 0x0f, head[1] & 0x80 != 0, u64::from(head[1] & 0x7f));
        if !is_masked || head[0] & 0x80 == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut more = vec![
            0;
            match length {
                126 => 2,
                127 => 8,
                _ => 0,
            }
        ];
        stream.read_exact(&mut more)?;
        let length = if more.is_empty() {
            length
        } else {
            more.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let mut mask = [0; 4];
        stream.read_exact(&mut mask)?;
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        stream.read_exact(&mut bytes)?;
        bytes.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        match code {
            2 => return Ok(Frame::Data(bytes)),
            8 => return Ok(Frame::Close),
            9 => write_frame(stream.get_mut(), 0x0a, &bytes)?,
            10 => {}
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn send(out: &mut impl Write, channel: u8, bytes: &[u8]) -> io::Result<()> {
    write_frame(out, 2, &[&[channel], bytes].concat())
}

fn write_frame(out: &mut impl Write, code: u8, bytes: &[u8]) -> io::Result<()> {
    let mut frame = vec![0x80 | code];
    match bytes.len() {
        length @ 0..126 => frame.push(u8::try_from(length).map_err(io::Error::other)?),
        length @ 126..65536 => {
            frame.push(126);
            frame.extend(u16::try_from(length).map_err(io::Error::other)?.to_be_bytes());
        }
        length => {
            frame.push(127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(bytes);
    out.write_all(&frame)?;
    out.flush()
}

/// Sends a close frame with status 1000 and closes the connection.
fn close(stream: &mut BufReader<StreamOwned<ServerConnection, TcpStream>>) -> io::Result<()> {
    let out = stream.get_mut();
    write_frame(out, 8, &1000u16.to_be_bytes())?;
    out.conn.send_close_notify();
    out.flush()
}

fn wait_for_end(stream: &mut BufReader<impl Read + Write>) -> io::Result<()> {
    while let Frame::Data(_) = read_frame(stream)? {}
    Ok(())
}
