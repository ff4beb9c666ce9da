//! What tests of the ambient node share: a node whose agent runs, pods in and outside of the mesh, ztunnels, and
//! servers everywhere.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kit::{
    Container, Daemon, Echo, Manifests, Netns, Node, NodeOptions, Pod, PodSandbox, Proto, Seen, Via, Ztunnel,
    ZtunnelOptions,
};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

/// The message when another ztunnel takes new connections.
pub(crate) const SWITCHED: &str = "new connections go through ztunnel";
/// Port of the echo server in each pod and outside.
pub(crate) const PORT: u16 = 8080;
/// Namespace of the pods of the mesh.
pub(crate) const MESH: &str = "mesh";
/// Namespace of the others.
pub(crate) const PLAIN: &str = "plain";
/// Ports of a ztunnel's onward connections; pods have higher ones.
pub(crate) const RELAYED: std::ops::Range<u16> = 16000..30000;
/// How long anything may take here that only depends on this machine.
const LIMIT: Duration = Duration::from_secs(20);

/// A node with an agent, and the directory that it reads pods from.
pub(crate) struct Ambient {
    pub(crate) daemon: Option<Daemon>,
    pub(crate) container: Container,
    pub(crate) manifests: Manifests,
    pub(crate) node: Arc<Node>,
    /// Of the daemon.
    pub(crate) arguments: Vec<&'static str>,
    config: kit::TempDir,
    created: u32,
}

/// A pod with an echo server.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) _echo: Vec<Echo>,
    pub(crate) sandbox: PodSandbox,
}

impl Ambient {
    /// A node whose agent runs; nobody is there yet.
    pub(crate) fn new(env: &[(&str, &str)]) -> Self {
        let mut stage = Self::stopped(NodeOptions::default(), env);
        stage.start();
        stage
    }

    /// The same before the agent was started.
    pub(crate) fn stopped(options: NodeOptions, env: &[(&str, &str)]) -> Self {
        let node = Arc::new(Node::new(options));
        let manifests = Manifests::new();
        manifests.put_namespace(MESH, &[("istio.io/dataplane-mode", "ambient")]);
        manifests.put_namespace(PLAIN, &[]);
        manifests.put_namespace("istio-system", &[]);
        let config = kit::TempDir::new().unwrap();
        let run = config.path().join("run");
        std::fs::create_dir(&run).unwrap();
        let container = Container::new(&node)
            .with_env("AMBIENT_ENABLED", "true")
            .with_env("POD_SOURCE", "dir:/manifests/objects")
            .with_mount(manifests.path().parent().unwrap(), "/manifests")
            .with_mount(config.path(), "/etc/ambient-config")
            .with_mount(Path::new("/run/netns"), "/var/run/netns")
            .with_mount(&node.netns_dir(), "/netns")
            .with_env("NETNS_DIR", "/netns")
            .with_mount(&run, "/run"); // the lock of the older backend's tools
        let container = env.iter().fold(container, |made, (key, value)| made.with_env(key, value));
        node.write_conflist("10-kit.conflist", &node.conflist(&[]));
        Self { daemon: None, container, manifests, node, arguments: Vec::new(), config, created: 0 }
    }

    pub(crate) fn start(&mut self) {
        self.daemon = Some(self.container.start_with(&self.arguments, &[]));
        let daemon = self.daemon();
        daemon.wait_for("the agent is ready", |daemon| daemon.is_ready());
    }

    /// Kills the agent, if it lives, and starts another one.
    pub(crate) fn restart(&mut self) {
        drop(self.daemon.take());
        self.start();
    }

    /// Mounts a directory for the next agent.
    pub(crate) fn mount(&mut self, from: &Path, at: &str) {
        self.container.add_mount(from, at);
    }

    pub(crate) fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().unwrap()
    }

    /// Entry of the plugin in a chain, as the daemon's host has it.
    pub(crate) fn plugin(&self) -> Value {
        json!({
            "type": "istio-cni",
            "log_level": "debug",
            "log_file": self.node.log_dir().join("istio-cni.log"),
            "ambient_enabled": true,
            "agent_socket": self.node.run_dir().join("agent.sock"),
            "ambient_config": self.config_file(),
            "kubernetes": {"exclude_namespaces": ["kube-system"]},
        })
    }

    /// The configuration file shared by agent and plugin.
    pub(crate) fn config_file(&self) -> PathBuf {
        self.config.path().join("config.json")
    }

    /// Starts a ztunnel pod that is ready, and waits until new connections go there.
    pub(crate) fn ztunnel(&mut self, name: &str) -> Ztunnel {
        let ztunnel = Ztunnel::start(&self.node, name, ZtunnelOptions::default());
        self.announce(&ztunnel, true);
        self.wait_active(&ztunnel);
        ztunnel
    }

    /// Tells the agent of a ztunnel; each one that is told is newer than those before.
    pub(crate) fn announce(&mut self, ztunnel: &Ztunnel, ready: bool) {
        self.created += 1;
        let created = format!("2026-01-01T00:00:{:02}Z", self.created);
        self.manifests.put_pod(&ztunnel.pod_manifest(ready, &created));
    }

    /// Waits until the agent says that new connections go through this ztunnel.
    pub(crate) fn wait_active(&mut self, ztunnel: &Ztunnel) {
        let uid = ztunnel.pod().pod.uid.clone();
        let field = format!("ztunnel={uid}");
        self.daemon().wait_for(&field, |daemon| daemon.logged(SWITCHED, &field) > 0 && daemon.is_ready());
    }

    /// Waits until there were this many switches since the two that [`Ambient::ztunnel`] makes of two ztunnels.
    pub(crate) fn wait_switches(&mut self, count: usize) {
        let wanted = 2 + count;
        let lines = |daemon: &Daemon| daemon.logged(SWITCHED, "");
        self.daemon().wait_for("a switch", |daemon| lines(daemon) >= wanted && daemon.is_ready());
    }

    /// A pod that starts through the plugin, in a namespace, with servers for TCP and UDP.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Peer {
        let peer = self.starting(Pod::new(namespace, name));
        self.manifests.put_pod(&peer.sandbox.manifest());
        peer
    }

    /// The same while the API does not know its addresses.
    pub(crate) fn starting(&self, pod: Pod) -> Peer {
        self.add(pod, &self.node.conflist(&[self.plugin()])).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same with a chain of the caller's.
    pub(crate) fn add(&self, pod: Pod, conflist: &Value) -> Result<Peer, Box<kit::ChainError>> {
        self.manifests.put_pod(&starting(&pod));
        self.node.add_pod(&self.node.runtime(), conflist, pod).map(Peer::new)
    }

    /// A chain whose pods all get the same address of each family, one after the other.
    pub(crate) fn one_address(&self) -> Value {
        let mut conflist = self.node.conflist(&[self.plugin()]);
        for ranges in conflist["plugins"][0]["ipam"]["ranges"].as_array_mut().unwrap() {
            let range = &mut ranges[0];
            let subnet = range["subnet"].as_str().unwrap().split('/').next().unwrap();
            let only = format!("{}77", subnet.trim_end_matches('0'));
            range["rangeStart"] = json!(only);
            range["rangeEnd"] = json!(only);
        }
        conflist
    }

    /// A pod that was started without us.
    pub(crate) fn pod_without_plugin(&self, namespace: &str, name: &str) -> Peer {
        let sandbox = self.node.pod(Pod::new(namespace, name), &[]);
        self.manifests.put_pod(&sandbox.manifest());
        Peer::new(sandbox)
    }

    /// Waits until a pod's addresses are in the node's sets, or are not.
    pub(crate) fn wait_enrolled(&self, peer: &Peer, enrolled: bool) {
        let deadline = Instant::now() + LIMIT;
        while peer.sandbox.ips().iter().any(|ip| self.has_member(*ip) != enrolled) {
            assert!(
                Instant::now() < deadline,
                "never enrolled={enrolled}: {:?}\n{}",
                peer.sandbox.ips(),
                self.log()
            );
            std::thread::sleep(Duration::from_millis(2)); // between two looks at the kernel
        }
    }

    /// Waits until the agent has taken in every manifest as it is now.
    pub(crate) fn settle(&mut self) {
        self.created += 1;
        let sentinel = Pod::new(MESH, "sentinel");
        let ip = IpAddr::from([10, 200, 0, u8::try_from(self.created).unwrap()]);
        self.manifests.put_pod(&sentinel.manifest(&[ip]));
        self.eventually("the sentinel is enrolled", |stage| stage.has_member(ip));
        self.manifests.remove_pod(MESH, "sentinel");
        self.eventually("the sentinel has left", |stage| !stage.has_member(ip));
    }

    /// Waits until something holds that only depends on this machine.
    pub(crate) fn eventually(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !holds(self) {
            assert!(Instant::now() < deadline, "never: {what}\n{}\n{}", self.log(), self.dump());
            std::thread::sleep(Duration::from_millis(2)); // between two looks at the kernel
        }
    }

    /// Whether new connections from a pod to the host outside, which must serve [`PORT`], go through a ztunnel: in both
    /// families, or in none.
    pub(crate) fn is_captured(&self, peer: &Peer) -> bool {
        let [v4, v6] = [false, true].map(|v6| {
            let target = SocketAddr::new(self.node.outside_ip(v6), PORT);
            let seen = peer.tcp(target).unwrap_or_else(|error| {
                panic!("{}: {error:?}\n{}\n{}", peer.sandbox.pod.name, self.log(), self.dump())
            });
            assert_eq!(seen.peer.ip(), peer.ip(v6), "the server sees who it was");
            RELAYED.contains(&seen.peer.port())
        });
        assert_eq!(v4, v6, "one family only: {}", self.dump());
        v4
    }

    /// The same for connections from outside to the pod.
    pub(crate) fn is_reached_through_ztunnel(&self, peer: &Peer) -> bool {
        let [v4, v6] = [false, true].map(|v6| {
            let seen = kit::connect(self.node.outside(), Proto::Tcp, peer.at(v6)).unwrap();
            assert_eq!(seen.peer.ip(), self.node.outside_ip(v6), "the pod sees who it was");
            RELAYED.contains(&seen.peer.port())
        });
        assert_eq!(v4, v6, "one family only: {}", self.dump());
        v4
    }

    /// Nothing of a pod's addresses is in sets and tables of ours.
    pub(crate) fn assert_free(&self, peer: &Peer) {
        for ip in peer.sandbox.ips() {
            assert_eq!(self.owner(ip), None, "{}", self.log());
            assert_eq!(self.member_routes(ip), "", "{}", self.log());
        }
    }

    /// All of a pod's addresses are in sets and tables of ours, as its own.
    pub(crate) fn assert_owned(&self, peer: &Peer) {
        for ip in peer.sandbox.ips() {
            assert_eq!(self.owner(ip).as_deref(), Some(peer.sandbox.pod.uid.as_str()), "{}", self.log());
            assert_eq!(self.member_routes(ip).lines().count(), 2, "{}", self.dump());
        }
    }

    /// The UID with which an address is in its set.
    pub(crate) fn owner(&self, ip: IpAddr) -> Option<String> {
        let entry = format!(" {ip} comment ");
        let sets = self.node.netns().sh("ipset save");
        let found = sets.lines().find_map(|line| line.split_once(&entry));
        found.map(|(_, uid)| uid.trim_matches('"').to_owned())
    }

    /// Routes of the table of what goes to pods that name an address.
    pub(crate) fn member_routes(&self, ip: IpAddr) -> String {
        let family = if ip.is_ipv4() { "-4" } else { "-6" };
        let command = format!("ip {family} route show table 100 exact {ip}");
        let mut words = command.split(' ');
        let mut command = Command::new(words.next().unwrap());
        let made = self.node.netns().run(|| command.args(words).output().unwrap());
        String::from_utf8_lossy(&made.stdout).into_owned() // the table may be none
    }

    pub(crate) fn log(&self) -> String {
        self.daemon.as_ref().map_or_else(String::new, Daemon::log)
    }

    /// Whether the node's sets have an address, by the ipset tool.
    pub(crate) fn has_member(&self, ip: IpAddr) -> bool {
        let set = if ip.is_ipv4() { "ztunnel-pods-ips" } else { "ztunnel-pods-ips-v6" };
        let mut command = Command::new("ipset");
        command.args(["test", set, &ip.to_string()]);
        self.node.netns().run(|| command.output().unwrap().status.success())
    }

    /// [`Ambient::dump`] without what is random or only counts, and the same of ztunnels' namespaces; nothing else
    /// differs between two nodes in the same state.
    pub(crate) fn state(&self, ztunnels: &[&Ztunnel]) -> String {
        let inside = ztunnels.iter().map(|ztunnel| dump_of(&ztunnel.pod().netns));
        let text = std::iter::once(self.dump()).chain(inside).collect::<String>();
        let mut sections: Vec<Vec<String>> = Vec::new();
        for line in text.lines() {
            if line.starts_with("== ") {
                sections.push(vec![line.to_owned()]);
            } else if let (Some(line), Some(section)) = (settled(line), sections.last_mut()) {
                section.push(line);
            }
        }
        for section in sections.iter_mut().filter(|section| !section[0].contains("tables")) {
            section[1..].sort();
        }
        sections.concat().join("\n")
    }

    /// Everything of the node's network that we could change, as text.
    pub(crate) fn dump(&self) -> String {
        dump_of(self.node.netns())
    }
}

/// Everything of a namespace's network that we could change, as text, with the tables of both backends.
pub(crate) fn dump_of(netns: &Netns) -> String {
    let commands = [
        "ip -d link show",
        "ip address show",
        "ip -4 rule",
        "ip -6 rule",
        "ip -4 route show table all",
        "ip -6 route show table all",
        "ipset save",
        "iptables-nft-save",
        "ip6tables-nft-save",
        "iptables-legacy-save",
        "ip6tables-legacy-save",
        "grep -rE . /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf /proc/sys/net/ipv4/ip_forward",
    ];
    netns.run(|| commands.map(output).concat())
}

/// Everything in nf_tables, in the order in which it was made, and without counters.
pub(crate) fn ruleset_of(netns: &Netns) -> String {
    netns.run(|| output("nft list ruleset"))
}

/// A line of a dump without numbers of links, hardware addresses, counters, and a set's secret.
fn settled(line: &str) -> Option<String> {
    let random = ["link/ether", "fe80:", "valid_lft"];
    if random.iter().any(|word| line.contains(word)) {
        return None;
    }
    let mut words: Vec<&str> = line.split_whitespace().collect();
    if words.first().is_some_and(|word| word.trim_end_matches(':').parse::<u32>().is_ok())
        && line.contains(": <")
    {
        words.remove(0);
    }
    if line.starts_with("create ") {
        words.truncate(3);
    }
    if line.starts_with(':') {
        words.truncate(2);
    }
    Some(
        words
            .into_iter()
            .map(|word| word.split("@if").next().unwrap_or_default())
            .collect::<Vec<_>>()
            .join(" "),
    )
}

fn output(command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    let made = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let text = String::from_utf8_lossy(&made.stdout).into_owned();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    // Counters of packets say nothing of what is there.
    let lines = lines.map(|line| line.split(" [").next().unwrap().split("counter packets").next().unwrap());
    let mut lines = lines.fold(String::new(), |all, line| all + line + "\n");
    if command.contains("legacy") {
        BLANK.iter().for_each(|blank| lines = lines.replace(blank, ""));
    }
    format!("== {command}\n{}\n", lines.trim_end())
}

/// Legacy tables that are there because somebody looked, or had rules in them once: the kernel keeps them.
const BLANK: [&str; 3] = [
    "*mangle\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n",
    "*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n",
    "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n",
];

/// A pod's object while its sandbox is made: nobody knows its addresses.
pub(crate) fn starting(pod: &Pod) -> Value {
    let mut manifest = pod.manifest(&[]);
    manifest["status"] = json!({"phase": "Pending"});
    manifest
}

impl Peer {
    pub(crate) fn new(sandbox: PodSandbox) -> Self {
        let echo = vec![Echo::tcp(&sandbox.netns, PORT), Echo::udp(&sandbox.netns, PORT)];
        Self { _echo: echo, sandbox }
    }

    pub(crate) fn ip(&self, v6: bool) -> IpAddr {
        self.sandbox.ip(v6)
    }

    pub(crate) fn at(&self, v6: bool) -> SocketAddr {
        SocketAddr::new(self.ip(v6), PORT)
    }

    /// Connects from this pod and says what the server saw.
    pub(crate) fn tcp(&self, target: SocketAddr) -> Result<Seen, kit::Failure> {
        kit::connect(&self.sandbox.netns, Proto::Tcp, target)
    }
}

/// What ztunnel is to see of one connection: the listener, and where it was going.
pub(crate) type Legs<'a> = &'a [(Via, SocketAddr)];

/// Who watches a ztunnel. All that it accepts has to be announced.
pub(crate) struct Watched {
    pub(crate) ztunnel: Ztunnel,
    known: AtomicUsize,
}

impl Watched {
    pub(crate) fn new(ztunnel: Ztunnel) -> Self {
        let known = AtomicUsize::new(ztunnel.seen().len());
        Self { ztunnel, known }
    }

    /// ztunnel accepted these since the last look, of this client, and nothing else.
    pub(crate) fn expect(&self, what: &str, src: Option<IpAddr>, legs: Legs<'_>) {
        let before = self.known.load(Ordering::Relaxed);
        let deadline = Instant::now() + LIMIT;
        while self.ztunnel.seen().len() < before + legs.len() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2)); // between two looks at another process
        }
        let seen = self.ztunnel.seen();
        let new: Vec<_> = seen[before..].iter().map(|one| (one.via, one.dst)).collect();
        assert_eq!(new, legs, "{what}: {:?}", &seen[before..]);
        for one in &seen[before..] {
            assert!(src.is_none_or(|src| one.src.ip() == src), "{what}: not from {src:?}: {one:?}");
            assert_eq!(one.error, None, "{what}");
        }
        self.known.store(seen.len(), Ordering::Relaxed);
    }
}

impl Ambient {
    /// [`Ambient::stopped`] with further directories of the node in the agent's container.
    pub(crate) fn stopped_with(env: &[(&str, &str)], mounts: &[(&Path, &str)]) -> Self {
        let mut stage = Self::stopped(NodeOptions::default(), env);
        for (from, at) in mounts {
            stage.container = stage.container.with_mount(from, at);
        }
        stage
    }

    /// Waits until new connections go through a ztunnel once more.
    pub(crate) fn wait_active_again(&mut self, ztunnel: &Ztunnel) {
        let field = format!("ztunnel={}", ztunnel.pod().pod.uid);
        self.daemon().wait_for(&field, |daemon| daemon.logged(SWITCHED, &field) >= 2 && daemon.is_ready());
    }

    /// Waits until two dumps in a row are the same.
    pub(crate) fn wait_quiet(&self) {
        let mut before = self.dump();
        loop {
            std::thread::sleep(Duration::from_millis(20)); // between two looks at the kernel
            let now = self.dump();
            if now == before {
                return;
            }
            before = now;
        }
    }

    /// Users other than root do not even get a connection; and if somebody opened the socket to them, no answer to this request.
    pub(crate) fn refuses_others(&self, socket: &Path, request: &[u8]) {
        let set = |path: &Path, mode: u32| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        assert_eq!(std::fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o600);
        if !kit::has_other_users() {
            return kit::skip("no other users");
        }
        set(self.node.dir(), 0o755);
        set(&self.node.run_dir(), 0o755);
        let as_nobody = || {
            let ask = || {
                let nobody = rustix::thread::Uid::from_raw(65534);
                rustix::thread::set_thread_uid(nobody).unwrap(); // of this thread, which ends
                let mut client = UnixStream::connect(socket)?;
                client.write_all(request)?;
                let mut text = String::new();
                client.read_to_string(&mut text)?;
                Ok::<_, std::io::Error>(text)
            };
            std::thread::scope(|scope| scope.spawn(ask).join().unwrap())
        };
        assert_eq!(as_nobody().unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
        set(socket, 0o666);
        let told = as_nobody();
        assert!(told.as_ref().map_or(true, String::is_empty), "{told:?}");
    }

    /// Waits until the daemon's log has these words.
    pub(crate) fn wait_said(&mut self, words: &str) {
        self.daemon().wait_for(words, |daemon| daemon.log().contains(words));
    }

    /// Waits until the daemon's log has a line with this message and this field.
    pub(crate) fn wait_logged(&mut self, message: &str, field: &str) {
        self.daemon().wait_for(message, |daemon| daemon.logged(message, field) > 0);
    }
}

/// A ping is answered.
pub(crate) fn ping(netns: &Netns, ip: IpAddr) {
    let (domain, protocol, request) = match ip {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, [8, 0, 0, 0, 0, 0, 0, 1]),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, [128, 0, 0, 0, 0, 0, 0, 1]),
    };
    netns.sysctl("net/ipv4/ping_group_range", "0 0");
    let received = netns.run(|| {
        let socket = Socket::new(domain, Type::DGRAM, Some(protocol))?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.connect(&SocketAddr::new(ip, 0).into())?;
        socket.send(&request)?;
        (&socket).read(&mut [0; 64])
    });
    assert_eq!(received.map_err(|error| error.to_string()), Ok(8), "ping {ip}");
}
