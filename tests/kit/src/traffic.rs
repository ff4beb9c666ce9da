//! Real traffic, and reports of who answered it. Servers and clients are processes of the small binary `kit-traffic`, so that they
//! can run as another user (firewall rules match a socket's owner) and in any namespace.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};
use serde_json::Value;

use crate::artefacts::kit_traffic;
use crate::netns::Netns;

/// Transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proto {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Proto {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// A connection or datagram as the server saw it and reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Name of the server that answered.
    pub server: String,
    /// Port on which it listens.
    pub listener: u16,
    /// The client's address as the server sees it.
    pub peer: SocketAddr,
    /// The server's address of the connection; for UDP, the address that it is bound to.
    pub local: SocketAddr,
    /// `SO_ORIGINAL_DST`: the destination that the client intended, from connection tracking. `None` for an untracked connection,
    /// and for UDP.
    pub original_dst: Option<SocketAddr>,
}

/// Reason why a client received no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The port is closed, or a rule rejected the packet with a reset or a port unreachable.
    Refused,
    /// No answer in time.
    Timeout,
    /// No route, or an ICMP error.
    Unreachable,
    /// The connection was reset or closed without an answer.
    Reset,
    /// Anything else.
    Other,
}

/// Error of a client that received no answer.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Kind of failure.
    pub kind: FailureKind,
    /// The operating system's message.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

/// Settings of a server; see [`Echo::start`].
#[derive(Debug, Clone)]
pub struct Serve {
    proto: Proto,
    port: u16,
    addresses: Vec<IpAddr>,
    name: String,
    owner: Option<(u32, u32)>,
    transparent: bool,
}

impl Serve {
    /// A server on this port, on all addresses of both families.
    #[must_use]
    pub fn new(proto: Proto, port: u16) -> Self {
        let addresses = vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        Self { proto, port, addresses, name: "echo".into(), owner: None, transparent: false }
    }

    /// Listens on this address alone.
    #[must_use]
    pub fn on(mut self, address: IpAddr) -> Self {
        self.addresses = vec![address];
        self
    }

    /// Sets the name with which it answers.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Sets the user and group that own its sockets.
    #[must_use]
    pub fn owned_by(mut self, uid: u32, gid: u32) -> Self {
        self.owner = Some((uid, gid));
        self
    }

    /// Sets `IP_TRANSPARENT`, to accept connections that TPROXY redirects.
    #[must_use]
    pub fn transparent(mut self) -> Self {
        self.transparent = true;
        self
    }
}

/// A server that answers each connection or datagram with a description of it; see [`Seen`]. After that, a TCP connection echoes.
/// Drop ends it.
#[derive(Debug)]
pub struct Echo {
    child: Child,
}

impl Echo {
    /// Starts a server, which listens when this returns.
    ///
    /// # Panics
    /// If it cannot listen.
    #[must_use]
    pub fn start(netns: &Netns, serve: &Serve) -> Self {
        let mut command = Command::new(kit_traffic());
        command.arg("serve").arg(serve.proto.name()).args(["--name", &serve.name]);
        for address in &serve.addresses {
            command.arg("--bind").arg(SocketAddr::new(*address, serve.port).to_string());
        }
        own(&mut command, serve.owner);
        if serve.transparent {
            command.arg("--transparent");
        }
        let mut child = netns.spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("stdout is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a pipe can be read");
        assert_eq!(line, "ready\n", "a server did not start on {serve:?}");
        Self { child }
    }

    /// Starts a TCP server on all addresses.
    #[must_use]
    pub fn tcp(netns: &Netns, port: u16) -> Self {
        Self::start(netns, &Serve::new(Proto::Tcp, port))
    }

    /// Starts a UDP server on all addresses.
    #[must_use]
    pub fn udp(netns: &Netns, port: u16) -> Self {
        Self::start(netns, &Serve::new(Proto::Udp, port))
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Settings of a client.
#[derive(Debug, Clone)]
pub struct Client {
    proto: Proto,
    owner: Option<(u32, u32)>,
    source: Option<SocketAddr>,
    mark: Option<u32>,
    timeout: Duration,
}

impl Client {
    /// A client of this protocol with a timeout of two seconds for a TCP connection, and five for an answer over UDP.
    #[must_use]
    pub fn new(proto: Proto) -> Self {
        let timeout = Duration::from_secs(if proto == Proto::Udp { 5 } else { 2 });
        Self { proto, owner: None, source: None, mark: None, timeout }
    }

    /// Sets the user and group that own its socket.
    #[must_use]
    pub fn owned_by(mut self, uid: u32, gid: u32) -> Self {
        self.owner = Some((uid, gid));
        self
    }

    /// Binds its socket to this address; port 0 means any.
    #[must_use]
    pub fn from(mut self, source: SocketAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// Sets the mark of its socket.
    #[must_use]
    pub fn marked(mut self, mark: u32) -> Self {
        self.mark = Some(mark);
        self
    }

    /// Sets its timeout. Over TCP, this is the time for the connection, which the kernel alone establishes; the answer, for which
    /// other processes have to run, may take 20 seconds.
    #[must_use]
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Connects (or sends a datagram) from a namespace, and returns the server's answer.
    pub fn connect(&self, netns: &Netns, target: SocketAddr) -> Result<Seen, Failure> {
        let mut command = Command::new(kit_traffic());
        command.arg("connect").arg(self.proto.name()).args(["--to", &target.to_string()]);
        command.args(["--timeout-ms", &self.timeout.as_millis().to_string()]);
        own(&mut command, self.owner);
        if let Some(source) = self.source {
            command.args(["--bind", &source.to_string()]);
        }
        if let Some(mark) = self.mark {
            command.args(["--mark", &mark.to_string()]);
        }
        let output = netns.output(&mut command);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kit-traffic failed: {stderr}");
        outcome(&serde_json::from_slice(&output.stdout).expect("kit-traffic writes JSON"))
    }
}

/// [`Client::connect`] with default settings.
pub fn connect(netns: &Netns, proto: Proto, target: SocketAddr) -> Result<Seen, Failure> {
    Client::new(proto).connect(netns, target)
}

/// Changes the user of the calling thread permanently, but keeps the capabilities that ports below 1024, marks and `IP_TRANSPARENT`
/// need.
///
/// # Panics
/// If the thread is not root's.
pub fn become_user(uid: u32, gid: u32) {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_keep_capabilities(true).unwrap();
    rustix::thread::set_thread_groups(&[]).unwrap();
    rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
    let kept = CapabilitySet::NET_ADMIN | CapabilitySet::NET_BIND_SERVICE | CapabilitySet::NET_RAW;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).unwrap();
}

fn own(command: &mut Command, owner: Option<(u32, u32)>) {
    if let Some((uid, gid)) = owner {
        command.args(["--uid", &uid.to_string(), "--gid", &gid.to_string()]);
    }
}

pub(crate) fn outcome(report: &Value) -> Result<Seen, Failure> {
    if let Some(message) = report["error"].as_str() {
        let kind = match report["kind"].as_str() {
            Some("refused") => FailureKind::Refused,
            Some("timeout") => FailureKind::Timeout,
            Some("unreachable") => FailureKind::Unreachable,
            Some("reset") => FailureKind::Reset,
            _ => FailureKind::Other,
        };
        return Err(Failure { kind, message: message.to_owned() });
    }
    let address = |key: &str| report[key].as_str().map(|text| text.parse().expect("an address"));
    Ok(Seen {
        server: report["server"].as_str().expect("a server has a name").to_owned(),
        listener: report["listener"].as_u64().and_then(|port| port.try_into().ok()).expect("a port"),
        peer: address("peer").expect("a peer"),
        local: address("local").expect("a local address"),
        original_dst: address("original_dst"),
    })
}
