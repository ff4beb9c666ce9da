//! What tests of the ambient node share: a node whose agent runs, pods in and outside of the mesh, ztunnels, and
//! servers everywhere.

use std::net::{IpAddr, SocketAddr};
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

/// Port of the echo server in each pod and outside.
pub(crate) const PORT: u16 = 8080;
/// Namespace of the pods of the mesh.
pub(crate) const MESH: &str = "mesh";
/// Namespace of the others.
pub(crate) const PLAIN: &str = "plain";
/// How long anything may take here that only depends on this machine.
const LIMIT: Duration = Duration::from_secs(20);

/// A node with an agent, and the directory that it reads pods from.
pub(crate) struct Ambient {
    pub(crate) daemon: Option<Daemon>,
    pub(crate) container: Container,
    pub(crate) manifests: Manifests,
    pub(crate) node: Arc<Node>,
    config: kit::TempDir,
    created: u32,
}

/// A pod with an echo server.
pub(crate) struct Peer {
    _echo: Vec<Echo>,
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
            .with_env("POD_SOURCE", "dir:/manifests")
            .with_mount(&manifests.path(), "/manifests")
            .with_mount(config.path(), "/etc/ambient-config")
            .with_mount(Path::new("/run/netns"), "/var/run/netns")
            .with_mount(&run, "/run"); // the lock of the older backend's tools
        let container = env.iter().fold(container, |made, (key, value)| made.with_env(key, value));
        node.write_conflist("10-kit.conflist", &node.conflist(&[]));
        Self { daemon: None, container, manifests, node, config, created: 0 }
    }

    pub(crate) fn start(&mut self) {
        self.daemon = Some(self.container.start());
        let daemon = self.daemon();
        daemon.wait_for("the agent is ready", |daemon| daemon.is_ready());
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

    /// The file that agent and plugin share.
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
        let words = format!("new connections go through ztunnel {uid}");
        self.daemon().wait_for(&words, |daemon| daemon.log().contains(&words) && daemon.is_ready());
    }

    /// Waits until there were this many switches since the two that [`Ambient::ztunnel`] makes of two ztunnels.
    pub(crate) fn wait_switches(&mut self, count: usize) {
        let wanted = 2 + count;
        let lines = |daemon: &Daemon| daemon.log().matches("new connections go through").count();
        self.daemon().wait_for("a switch", |daemon| lines(daemon) >= wanted && daemon.is_ready());
    }

    /// A pod that starts through the plugin, in a namespace, with servers for TCP and UDP.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Peer {
        let pod = Pod::new(namespace, name);
        self.manifests.put_pod(&starting(&pod));
        let sandbox = self.node.pod(pod, &[self.plugin()]);
        self.manifests.put_pod(&sandbox.manifest());
        Peer::new(sandbox)
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

fn output(command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    let made = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let text = String::from_utf8_lossy(&made.stdout).into_owned();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    // Counters of packets say nothing of what is there.
    let lines = lines.map(|line| line.split(" [").next().unwrap());
    let mut lines = lines.fold(String::new(), |all, line| all + line + "\n");
    for blank in BLANK {
        lines = lines.replace(blank, "");
    }
    format!("== {command}\n{}\n", lines.trim_end())
}

/// Tables that are there because somebody looked, or had rules in them once.
const BLANK: [&str; 3] = [
    "*mangle\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n",
    "*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n",
    "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n",
];

/// A pod's object while its sandbox is made: nobody knows its addresses.
fn starting(pod: &Pod) -> Value {
    let mut manifest = pod.manifest(&[]);
    manifest["status"] = json!({"phase": "Pending"});
    manifest
}

impl Peer {
    fn new(sandbox: PodSandbox) -> Self {
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
        let words = format!("new connections go through ztunnel {}", ztunnel.pod().pod.uid);
        self.daemon()
            .wait_for(&words, |daemon| daemon.log().matches(&words).count() >= 2 && daemon.is_ready());
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

    /// Waits until the daemon has said this, and is ready.
    pub(crate) fn wait_said(&mut self, words: &str) {
        self.daemon().wait_for(words, |daemon| daemon.log().contains(words));
    }
}
