//! A node of a cluster, whose agent, ours or Istio's, captures pods from the API server, and repairs those with a sidecar. Both get
//! the same variables, those of Istio's chart with ambient mode, and ignore unknown ones.

use std::{fs, path::Path, sync::Arc};

use kit::{
    ApiServer, Container, Daemon, InpodOptions, InpodZtunnel, Node, NodeOptions, Pod, ProcessTable, TempDir,
};
use serde_json::{Value, json};

use super::fixture;
use crate::{base::BenchNode, peer::Peer};

/// Selectors of mesh pods, as in Istio's chart.
const SELECTORS: &str = r#"[
    {"podSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}},
    {"podSelector": {"matchExpressions": [{"key": "istio.io/dataplane-mode", "operator": "NotIn", "values": ["none"]}]},
     "namespaceSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}}
]"#;

/// The node. Fields are in drop order.
pub(super) struct ClusterNode<'a> {
    pub(super) ztunnel: InpodZtunnel,
    pub(super) daemon: Daemon,
    pub(super) container: Container,
    pub(super) processes: ProcessTable,
    pub(super) node: Arc<Node>,
    base: &'a BenchNode,
    /// Name of the node, and of the namespace of its pods, all of which are in the mesh.
    name: &'static str,
    _sockets: TempDir,
    _run: TempDir,
}

impl<'a> ClusterNode<'a> {
    /// A node whose agent, ours unless there is a peer, is ready, and whose ztunnel is connected.
    pub(super) fn start(base: &'a BenchNode, name: &'static str, peer: Option<&Peer>) -> ClusterNode<'a> {
        let admin = base.api.admin();
        let labels = json!({"istio.io/dataplane-mode": "ambient"});
        admin.create("/api/v1/namespaces", &json!({"metadata": {"name": name, "labels": labels}}));
        admin.create("/api/v1/nodes", &json!({"metadata": {"name": name}}));
        let node = Arc::new(Node::new(NodeOptions::default()));
        let (processes, [sockets, run]) =
            (ProcessTable::new(&node), [(); 2].map(|()| TempDir::new().unwrap()));
        node.write_conflist("10-kit.conflist", &node.conflist(&[]));
        let mut container = Container::new(&node)
            .with_mount(sockets.path(), "/ztunnel")
            .with_mount(processes.path(), "/host/proc")
            .with_mount(run.path(), "/run") // the lock of the legacy tools
            .with_mount(Path::new("/run/netns"), "/var/run/netns")
            .with_mount(Path::new("/run/netns"), "/host/run/netns");
        for (key, value) in [
            ("AMBIENT_ENABLED", "true"),
            ("AMBIENT_CAPTURE", "in-pod"),
            ("AMBIENT_DNS_CAPTURE", "true"),
            ("AMBIENT_ENABLEMENT_SELECTOR", SELECTORS),
            ("AMBIENT_IPV6", "true"),
            ("AMBIENT_RECONCILE_POD_RULES_ON_STARTUP", "true"),
            ("ALLOW_SWITCH_TO_HOST_NS", "true"),
            ("EXCLUDE_NAMESPACES", "kube-system"),
            // Istio's agent uses the legacy tables from its second start on, because its own detection creates some at the first
            // one.
            ("FORCE_IPTABLES_BINARY", "nft"),
            ("ZTUNNEL_UDS_ADDRESS", "/ztunnel/ztunnel.sock"),
            ("REPAIR_ENABLED", "true"),
            ("REPAIR_REPAIR_PODS", "true"),
            ("REPAIR_NODE_NAME", name),
            ("NODE_NAME", name),
            ("POD_NAMESPACE", "kube-system"),
            ("POD_NAME", "istio-cni-node-x7k2p"),
            ("LOG_LEVEL", "info"),
        ] {
            container.set_env(key, value);
        }
        fs::write(container.root().join("etc/nsswitch.conf"), "").unwrap(); // Istio's agent hides it from its tools
        if let Some(peer) = peer {
            container.set_program(&peer.daemon);
        }
        container.set_account(&base.token, base.api.ca_pem());
        let mut daemon = container.start();
        daemon.wait_until_ready();
        let options = InpodOptions { dns_capture: true, ..InpodOptions::default() };
        let ztunnel = InpodZtunnel::start(&node, "ztunnel", &sockets.path().join("ztunnel.sock"), options);
        ztunnel.wait_for_snapshots(1);
        let made = ClusterNode {
            ztunnel,
            daemon,
            container,
            processes,
            node,
            base,
            name,
            _sockets: sockets,
            _run: run,
        };
        made.show_ztunnel();
        made
    }

    /// Creates its ztunnel's object in the API server.
    fn show_ztunnel(&self) {
        let mut object = self.ztunnel.manifest();
        // The other node may have created it.
        let system = json!({"metadata": {"name": object["metadata"]["namespace"]}});
        self.base.api.admin().request("POST", "/api/v1/namespaces", Some(&system));
        object["metadata"]["name"] = json!(format!("ztunnel-{}", self.name));
        object["spec"]["nodeName"] = json!(self.name);
        let status = object["status"].clone();
        let stored = &self.base.api.create_pod(&object)["metadata"];
        let text = |key: &str| stored[key].as_str().unwrap();
        let path = format!("/api/v1/namespaces/{}/pods/{}", text("namespace"), text("name"));
        self.base.api.admin().patch_status(&path, &status);
    }

    /// Creates a pod that is scheduled to the node.
    pub(super) fn create_pod(&self, name: &str) -> Pod {
        let mut object = ApiServer::pod(self.name, name);
        object["spec"]["nodeName"] = json!(self.name);
        Pod::from_object(&self.base.api.create_pod(&object))
    }

    pub(super) fn path(&self, pod: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{pod}", self.name)
    }

    /// Number of its pods with the annotation of captured ones.
    pub(super) fn captured(&self) -> usize {
        let pods = self.base.api.admin().get(&format!("/api/v1/namespaces/{}/pods", self.name));
        let mark = |pod: &&Value| pod["metadata"]["annotations"]["ambient.istio.io/redirection"] == "enabled";
        pods["items"].as_array().into_iter().flatten().filter(mark).count()
    }

    /// Entry of either plugin in a chain.
    pub(super) fn plugin(&self) -> Value {
        let mut entry = fixture::plugin(&self.node, &self.node.net_d().join("ZZZ-istio-cni-kubeconfig"));
        entry["enablement_selectors"] = serde_json::from_str(SELECTORS).unwrap();
        entry["exclude_namespaces"] = json!(["kube-system"]);
        entry["cni_agent_run_dir"] = json!(self.node.run_dir());
        entry["cni_event_address"] = json!(self.node.run_dir().join("pluginevent.sock")); // of older versions
        entry["plugin_log_level"] = json!("error");
        entry
    }
}
