//! A node whose agent uses in-pod capture, with a connected ztunnel.

use std::{path::Path, sync::Arc};

use kit::{
    Container, Daemon, InpodOptions, InpodZtunnel, Manifests, NETWORK_CONFIG, Node, NodeOptions,
    ProcessTable, TempDir,
};
use serde_json::{Value, json};

/// Namespace of the pods of the mesh.
pub(crate) const MESH: &str = "mesh";

/// The node. Fields are in drop order.
pub(crate) struct Fixture {
    pub(crate) ztunnel: InpodZtunnel,
    pub(crate) daemon: Daemon,
    pub(crate) container: Container,
    pub(crate) manifests: Manifests,
    pub(crate) node: Arc<Node>,
    pub(crate) processes: ProcessTable,
    _mounted: [TempDir; 2],
}

impl Fixture {
    /// A node with a ready agent, a ztunnel and no pods.
    pub(crate) fn start(env: &[(&str, &str)]) -> Fixture {
        let node = Arc::new(Node::new(NodeOptions::default()));
        let manifests = Manifests::new();
        for name in [MESH, "istio-system"] {
            manifests.put_namespace(name, &[]);
        }
        let (processes, [sockets, run]) =
            (ProcessTable::new(&node), [(); 2].map(|()| TempDir::new().unwrap()));
        node.write_conflist("10-kit.conflist", &node.conflist(&[]));
        let container = Container::new(&node)
            .with_env("AMBIENT_ENABLED", "true")
            .with_env("AMBIENT_CAPTURE", "in-pod")
            .with_env("AMBIENT_DNS_CAPTURE", "true")
            .with_env("ZTUNNEL_UDS_ADDRESS", "/ztunnel/ztunnel.sock")
            .with_env("HOST_PROC", "/hostproc")
            .with_env("CNI_NETWORK_CONFIG", NETWORK_CONFIG)
            .with_env("LOG_LEVEL", "info")
            .with_env("POD_SOURCE", "dir:/manifests")
            .with_mount(&manifests.path(), "/manifests")
            .with_mount(sockets.path(), "/ztunnel")
            .with_mount(processes.path(), "/hostproc")
            .with_mount(run.path(), "/run") // the lock of the legacy tools
            .with_mount(Path::new("/run/netns"), "/var/run/netns");
        let container = env.iter().fold(container, |made, (key, value)| made.with_env(key, value));
        let mut daemon = container.start();
        daemon.wait_until_ready();
        let socket = sockets.path().join("ztunnel.sock");
        let options = InpodOptions { dns_capture: true, ..InpodOptions::default() };
        let ztunnel = InpodZtunnel::start(&node, "ztunnel", &socket, options);
        ztunnel.wait_for_snapshots(1);
        manifests.put_pod(&ztunnel.manifest());
        Fixture { ztunnel, daemon, container, manifests, node, processes, _mounted: [sockets, run] }
    }

    /// Adds the namespace to the mesh, or removes it.
    pub(crate) fn label(&self, ambient: bool) {
        const LABEL: (&str, &str) = ("istio.io/dataplane-mode", "ambient");
        self.manifests.put_namespace(MESH, if ambient { &[LABEL] } else { &[] });
    }
}

/// Entry of our plugin in a chain.
pub(crate) fn plugin(node: &Node, kubeconfig: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "kit",
        "type": "istio-cni",
        "log_level": "error",
        "ambient_enabled": true,
        "agent_socket": node.run_dir().join("agent.sock"),
        "kubernetes": {"kubeconfig": kubeconfig, "exclude_namespaces": ["kube-system"]},
    })
}
