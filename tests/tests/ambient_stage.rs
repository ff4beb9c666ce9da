//! What tests of the ambient node share: a node whose agent runs, pods in and outside of the mesh, ztunnels, and
//! servers everywhere.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kit::{
    Container, Daemon, Echo, Manifests, Node, NodeOptions, Pod, PodSandbox, Proto, Seen, Ztunnel,
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
    pub(crate) echo: Vec<Echo>,
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
        let container = Container::new(&node)
            .with_env("AMBIENT_ENABLED", "true")
            .with_env("POD_SOURCE", "dir:/manifests")
            .with_mount(&manifests.path(), "/manifests")
            .with_mount(config.path(), "/etc/ambient-config")
            .with_mount(Path::new("/run/netns"), "/var/run/netns");
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
            "sysctl -a --pattern net.ipv[46].conf.*.(rp_filter|accept_local)",
        ];
        self.node.netns().run(|| commands.map(output).concat())
    }
}

fn output(command: &str) -> String {
    let words: Vec<&str> = command.split(' ').collect();
    let made = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let text = String::from_utf8_lossy(&made.stdout).into_owned();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    format!("== {command}\n{}\n", lines.collect::<Vec<_>>().join("\n"))
}

/// A pod's object while its sandbox is made: nobody knows its addresses.
fn starting(pod: &Pod) -> Value {
    let mut manifest = pod.manifest(&[]);
    manifest["status"] = json!({"phase": "Pending"});
    manifest
}

impl Peer {
    fn new(sandbox: PodSandbox) -> Self {
        let echo = vec![Echo::tcp(&sandbox.netns, PORT), Echo::udp(&sandbox.netns, PORT)];
        Self { echo, sandbox }
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
