//! The node, its agent, and the pods on it.

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use kit::{
    ChainError, Container, Daemon, InpodOptions, InpodZtunnel, Manifests, NETWORK_CONFIG, Netns, Node,
    NodeOptions, Pod, PodSandbox, ProcessTable, Runtime, TempDir,
};
use serde_json::{Value, json};

use crate::show::Show;

/// Namespace of the pods of the mesh.
pub(crate) const MESH: &str = "mesh";
/// Namespace of pods outside the mesh.
pub(crate) const PLAIN: &str = "plain";
/// Label that adds a namespace to the mesh.
pub(crate) const LABEL: (&str, &str) = ("istio.io/dataplane-mode", "ambient");
/// Time limit of a change that depends on this machine alone.
const LIMIT: Duration = Duration::from_secs(20);

/// Fixture of the scenes. Fields are in drop order.
pub(crate) struct Fixture {
    pub(crate) daemon: Daemon,
    pub(crate) container: Container,
    pub(crate) manifests: Manifests,
    pub(crate) node: Arc<Node>,
    /// The node's network before any object of ours existed.
    pub(crate) before: String,
    runtime: Runtime,
    /// No process can be put into a pod's control group here.
    processes: ProcessTable,
    /// The last process of a pod.
    last: u32,
    sockets: TempDir,
    ztunnels: u32,
}

/// A running pod.
pub(crate) struct Actor {
    pub(crate) sandbox: PodSandbox,
}

impl Fixture {
    pub(crate) fn start(show: &mut Show) -> Fixture {
        show.chapter("a node whose pods are captured from within");
        let node = Arc::new(Node::new(NodeOptions::default()));
        let before = dump(node.netns());
        let manifests = Manifests::new();
        manifests.put_namespace(MESH, &[LABEL]);
        manifests.put_namespace(PLAIN, &[]);
        manifests.put_namespace("istio-system", &[]);
        node.write_conflist("10-kit.conflist", &node.conflist(&[]));
        let (processes, sockets) = (ProcessTable::new(&node), TempDir::new().unwrap());
        let container = container(&node, &manifests, processes.path(), sockets.path());
        let runtime = node.runtime().with_plugins(&container.bin_dir());
        let began = Instant::now();
        let mut daemon = container.start();
        daemon.wait_until_ready();
        show.note("install-cni with AMBIENT_CAPTURE=in-pod; pods and namespaces come from a directory");
        show.note(format!("/readyz says 200 after {:.0?}, the container's start included", began.elapsed()));
        Fixture {
            daemon,
            container,
            manifests,
            node,
            before,
            runtime,
            processes,
            last: 100,
            sockets,
            ztunnels: 0,
        }
    }

    /// Starts a pod as kubelet and container runtime do, through the chain that the agent wrote.
    pub(crate) fn try_pod(&mut self, namespace: &str, name: &str) -> Result<Actor, Box<ChainError>> {
        let pod = Pod::new(namespace, name);
        let mut pending = pod.manifest(&[]);
        pending["status"] = json!({"phase": "Pending"});
        self.manifests.put_pod(&pending);
        let text = fs::read(self.node.net_d().join("10-kit.conflist")).unwrap();
        let conflist: Value = serde_json::from_slice(&text).unwrap();
        let sandbox = self.node.add_pod(&self.runtime, &conflist, pod)?;
        self.last += 1;
        self.processes.add_in_slice(self.last, &sandbox.pod.uid, &sandbox.netns);
        self.manifests.put_pod(&sandbox.manifest());
        Ok(Actor { sandbox })
    }

    /// Starts a pod whose start cannot fail.
    pub(crate) fn pod(&mut self, namespace: &str, name: &str) -> Actor {
        self.try_pod(namespace, name).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts a ztunnel, and waits until it has received all pods.
    pub(crate) fn ztunnel(&mut self, name: &str) -> InpodZtunnel {
        let socket = self.sockets.path().join("ztunnel.sock");
        // A closed port refuses connections, but a firewall that drops would make an attempt wait.
        let options = InpodOptions { connect_limit: Duration::from_secs(2), ..InpodOptions::default() };
        let ztunnel = InpodZtunnel::start(&self.node, name, &socket, options);
        ztunnel.wait_for_snapshots(1);
        self.ztunnels += 1;
        let mut manifest = ztunnel.manifest();
        manifest["metadata"]["creationTimestamp"] = json!(format!("2026-01-01T00:00:{:02}Z", self.ztunnels));
        self.manifests.put_pod(&manifest);
        ztunnel
    }

    /// Waits until the agent's log has this number of lines with this message and this field.
    pub(crate) fn wait_logged(&mut self, message: &str, field: &str, times: usize) {
        self.daemon.wait_for(message, |daemon| daemon.logged(message, field) >= times);
    }
}

/// Whether a condition becomes true that depends on this machine alone.
pub(crate) fn eventually(holds: impl Fn() -> bool) -> bool {
    kit::found_within(LIMIT, holds).is_some()
}

fn container(node: &Node, manifests: &Manifests, processes: &Path, sockets: &Path) -> Container {
    let socket = |name: &str| node.run_dir().join(name).to_string_lossy().into_owned();
    let mut entry: Value = serde_json::from_str(NETWORK_CONFIG).unwrap();
    entry["log_uds_address"] = json!(socket("log.sock"));
    entry["ambient_enabled"] = json!(true);
    entry["agent_socket"] = json!(socket("agent.sock"));
    Container::new(node)
        .with_env("CNI_NETWORK_CONFIG", &entry.to_string())
        .with_env("CNI_NET_DIR", &node.net_d().to_string_lossy())
        .with_env("AMBIENT_ENABLED", "true")
        .with_env("AMBIENT_CAPTURE", "in-pod")
        .with_env("ZTUNNEL_UDS_ADDRESS", "/ztunnel/ztunnel.sock")
        .with_env("HOST_PROC", "/hostproc")
        .with_env("CLEANUP_ON_EXIT", "always")
        .with_env("POD_SOURCE", "dir:/manifests")
        .with_mount(&manifests.path(), "/manifests")
        .with_mount(sockets, "/ztunnel")
        .with_mount(processes, "/hostproc")
        .with_mount(Path::new("/run/netns"), "/var/run/netns")
}

/// A namespace's network in the output of its tools; empty tables are left out.
pub(crate) fn dump(netns: &Netns) -> String {
    let commands = [
        "ip -4 rule",
        "ip -6 rule",
        "ip -4 route show table all",
        "ip -6 route show table all",
        "ipset save",
        "iptables-nft-save",
        "ip6tables-nft-save",
    ];
    let text: Vec<String> = commands.iter().map(|command| netns.sh(command)).collect();
    let is_telling = |line: &&str| !line.starts_with(['#', '*', ':']) && *line != "COMMIT";
    text.join("\n").lines().filter(is_telling).map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Whether a pod's own namespace has an object of ours.
pub(crate) fn is_ruled(pod: &PodSandbox) -> bool {
    let dump = dump(&pod.netns);
    let policy_rule = "32764:\tfrom all fwmark 0x111/0xfff lookup 100";
    dump.lines().any(|line| line.starts_with("-A ISTIO_")) || kit::has_line(&dump, policy_rule)
}
