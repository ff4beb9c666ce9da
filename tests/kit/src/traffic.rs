//! Real traffic, and who answered it. Servers and clients are processes of the small binary `kit-traffic`, so
//! that they can run as another user (firewall rules look at the owner of a socket) and in any namespace.

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

/// What a server saw of one connection or datagram, in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Name of the server that answered.
    pub server: String,
    /// Port on which it listens.
    pub listener: u16,
    /// The client, as the server sees it.
    pub peer: SocketAddr,
    /// The server's end of the connection; for UDP, the address it is bound to.
    pub local: SocketAddr,
    /// `SO_ORIGINAL_DST`: where the client meant to go, as connection tracking knows it. `None` where it
    /// knows nothing of the connection, and for UDP.
    pub original_dst: Option<SocketAddr>,
}

/// Why a client got no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The port is closed, or the packet was rejected so.
    Refused,
    /// Nothing came in time.
    Timeout,
    /// No route, or an ICMP message said so.
    Unreachable,
    /// The connection was reset or closed without an answer.
    Reset,
    /// Anything else.
    Other,
}

/// A client that got no answer.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// The operating system's words.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

/// What a server shall be like; see [`Echo::start`].
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

    /// Only on this address.
    #[must_use]
    pub fn on(mut self, address: IpAddr) -> Self {
        self.addresses = vec![address];
        self
    }

    /// The name it answers with.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Its sockets belong to this user and group.
    #[must_use]
    pub fn owned_by(mut self, uid: u32, gid: u32) -> Self {
        self.owner = Some((uid, gid));
        self
    }

    /// With `IP_TRANSPARENT`: accepts what TPROXY hands over.
    #[must_use]
    pub fn transparent(mut self) -> Self {
        self.transparent = true;
        self
    }
}

/// A server that answers each connection or datagram with what it saw; see [`Seen`]. After that, a TCP
/// connection echoes. It ends on drop.
#[derive(Debug)]
pub struct Echo {
    child: Child,
}

impl Echo {
    /// Starts a server; it listens when this returns.
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

    /// A TCP server on all addresses.
    #[must_use]
    pub fn tcp(netns: &Netns, port: u16) -> Self {
        Self::start(netns, &Serve::new(Proto::Tcp, port))
    }

    /// A UDP server on all addresses.
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

/// How a client connects.
#[derive(Debug, Clone)]
pub struct Client {
    proto: Proto,
    owner: Option<(u32, u32)>,
    source: Option<SocketAddr>,
    mark: Option<u32>,
    timeout: Duration,
}

impl Client {
    /// A client of this protocol, with two seconds for everything.
    #[must_use]
    pub fn new(proto: Proto) -> Self {
        Self { proto, owner: None, source: None, mark: None, timeout: Duration::from_secs(2) }
    }

    /// Its socket belongs to this user and group.
    #[must_use]
    pub fn owned_by(mut self, uid: u32, gid: u32) -> Self {
        self.owner = Some((uid, gid));
        self
    }

    /// Its socket is bound to this address; port 0 means any.
    #[must_use]
    pub fn from(mut self, source: SocketAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// Its socket has this mark.
    #[must_use]
    pub fn marked(mut self, mark: u32) -> Self {
        self.mark = Some(mark);
        self
    }

    /// It gives up after this time.
    #[must_use]
    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Connects (or sends a datagram) from a namespace, and says who answered.
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

/// [`Client::connect`] with nothing special about the client.
pub fn connect(netns: &Netns, proto: Proto, target: SocketAddr) -> Result<Seen, Failure> {
    Client::new(proto).connect(netns, target)
}

/// Makes the calling thread that user's, for good, but keeps what ports below 1024, marks and `IP_TRANSPARENT` need.
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
