//! A node with a running agent, and a directory from which it reads pods.

use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    sync::Arc,
};

use kit::{
    Container, Daemon, Manifests, Netns, Node, NodeOptions, Pod, PodSandbox, TempDir, Ztunnel, ZtunnelOptions,
};
use serde_json::{Value, json};

/// Namespaces of pods inside and outside the mesh.
pub(crate) const MESH: &str = "mesh";
pub(crate) const PLAIN: &str = "plain";
const LABEL: (&str, &str) = ("istio.io/dataplane-mode", "ambient");

/// The node. Fields are in drop order.
pub(crate) struct Fixture {
    pub(crate) daemon: Daemon,
    pub(crate) container: Container,
    pub(crate) manifests: Manifests,
    pub(crate) node: Arc<Node>,
    pub(crate) config: TempDir,
    _run: TempDir,
    created: u32,
    /// Namespace of the other ends of links of pods that are only objects.
    peers: Netns,
}

impl Fixture {
    /// A node with a ready agent and no pods.
    pub(crate) fn start(env: &[(&str, &str)]) -> Fixture {
        Fixture::on(Arc::new(Node::new(NodeOptions::default())), env)
    }

    /// Starts an agent on an existing node.
    pub(crate) fn on(node: Arc<Node>, env: &[(&str, &str)]) -> Fixture {
        let manifests = Manifests::new();
        manifests.put_namespace(MESH, &[LABEL]);
        manifests.put_namespace(PLAIN, &[]);
        manifests.put_namespace("istio-system", &[]);
        let [config, run] = [(); 2].map(|()| TempDir::new().unwrap());
        node.write_conflist("10-kit.conflist", &node.conflist(&[]));
        let container = Container::new(&node)
            .with_env("AMBIENT_ENABLED", "true")
            .with_env("LOG_LEVEL", "info")
            .with_env("POD_SOURCE", "dir:/manifests")
            .with_mount(&manifests.path(), "/manifests")
            .with_mount(config.path(), "/etc/ambient-config")
            .with_mount(run.path(), "/run") // the lock of the legacy tools
            .with_mount(Path::new("/run/netns"), "/var/run/netns");
        let container = env.iter().fold(container, |made, (key, value)| made.with_env(key, value));
        // The debug port, which an agent on the node's network keeps closed by default.
        let mut daemon = container.start_with(&["--ctrlz_port=9876"], &[]);
        daemon.wait_until_ready();
        Fixture {
            daemon,
            container,
            manifests,
            node,
            config,
            _run: run,
            created: 0,
            peers: Netns::new("peers"),
        }
    }

    /// Labels a namespace, or removes its label.
    pub(crate) fn label(&self, namespace: &str, ambient: bool) {
        self.manifests.put_namespace(namespace, if ambient { &[LABEL] } else { &[] });
    }

    /// As [`Fixture::fill`], with links and routes, of which a node has one for each pod.
    pub(crate) fn fill_with_links(&self, namespace: &str, count: u32) {
        with_links(&self.node, &self.peers, count);
        self.fill(namespace, count);
    }

    /// Creates pods that are only objects with an address.
    pub(crate) fn fill(&self, namespace: &str, count: u32) {
        for number in 0..count {
            let pod = Pod::new(namespace, &format!("pod-{number}"));
            self.manifests.put_pod(&pod.manifest(&[IpAddr::V4(fake_ip(number))]));
        }
    }

    /// Waits until this many addresses are enrolled.
    pub(crate) fn wait_members(&mut self, count: usize) {
        let sample = "istio_cni_ambient_set_size{family=\"ipv4\"}";
        let there = |daemon: &Daemon| daemon.metric(sample) == Some(count as f64) && daemon.is_ready();
        self.daemon.wait_for("all pods are enrolled", there);
    }

    /// Starts a pod without our plugin, and writes its object.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> PodSandbox {
        let sandbox = self.node.pod(Pod::new(namespace, name), &[]);
        self.manifests.put_pod(&sandbox.manifest());
        sandbox
    }

    /// Starts a ztunnel pod, and waits until new connections go through it.
    pub(crate) fn ztunnel(&mut self, name: &str) -> Ztunnel {
        let ztunnel = Ztunnel::start(&self.node, name, ZtunnelOptions::default());
        self.announce(&ztunnel, true);
        self.wait_active(&ztunnel);
        ztunnel
    }

    /// Writes a ztunnel's object, newer than all before.
    pub(crate) fn announce(&mut self, ztunnel: &Ztunnel, ready: bool) {
        self.created += 1;
        let created = format!("2026-01-01T{:02}:{:02}:00Z", self.created / 60, self.created % 60);
        self.manifests.put_pod(&ztunnel.pod_manifest(ready, &created));
    }

    pub(crate) fn wait_active(&mut self, ztunnel: &Ztunnel) {
        let field = format!("ztunnel={}", ztunnel.pod().pod.uid);
        let switched = |daemon: &Daemon| daemon.logged("new connections go through ztunnel", &field) > 0;
        self.daemon.wait_for(&field, |daemon| switched(daemon) && daemon.is_ready());
    }

    /// Sum and count of the agent's histogram of switches, in seconds.
    pub(crate) fn switches(&self) -> (f64, f64) {
        let metric = |name: &str| {
            self.daemon.metric(&format!("istio_cni_ambient_ztunnel_switch_seconds_{name}")).unwrap_or(0.0)
        };
        (metric("sum"), metric("count"))
    }

    /// Entry of our plugin in a chain.
    pub(crate) fn plugin(&self, kubeconfig: &Path, socket: &str) -> Value {
        json!({
            "cniVersion": "1.0.0",
            "name": "kit",
            "type": "istio-cni",
            "log_level": "error",
            "ambient_enabled": true,
            "agent_socket": self.node.run_dir().join(socket),
            "ambient_config": self.config.path().join("config.json"),
            "kubernetes": {"kubeconfig": kubeconfig, "exclude_namespaces": ["kube-system"]},
        })
    }
}

/// Addresses that no node assigns to a pod.
pub(crate) fn fake_ip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 200, 0, 1)) + number)
}

/// Creates links and routes of pods that are only objects; the links end in `peers`.
pub(crate) fn with_links(node: &Node, peers: &Netns, count: u32) {
    let (mut batch, peers) = (String::new(), peers.name());
    for number in 0..count {
        writeln!(batch, "link add fake{number} up type veth peer name eth{number} netns {peers}").unwrap();
        writeln!(batch, "route add {} dev fake{number}", fake_ip(number)).unwrap();
    }
    node.netns().pipe("ip -batch -", &batch);
}

/// Adds what kubelet and users of connection tracking create on every node: chains in each table, and one rule that makes the
/// kernel track connections.
pub(crate) fn with_other_users(node: &Node) {
    for table in ["mangle", "nat", "filter"] {
        node.netns().sh(&format!("iptables-nft -t {table} -N KUBE-KUBELET-CANARY"));
    }
    node.netns().sh("iptables-nft -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
    node.netns().sh("iptables-nft -t nat -A POSTROUTING -s 10.99.0.0/16 -j MASQUERADE");
}
