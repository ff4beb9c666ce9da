//! A node of running pods with a sidecar, whose agent repairs them in place.

use std::path::Path;

use kit::{Container, Daemon, Node, NodeOptions, Pod, PodSandbox, ProcessTable, istio};
use serde_json::json;

use crate::base::BenchNode;

/// Namespace of the pods, which the base has created.
const NAMESPACE: &str = "bench";
/// Name of the node.
const NODE: &str = "sidecar-node";
const REPAIRED: &str = r#"istio_cni_repair_sidecar_rules_total{result="success"}"#;

/// The node. Fields are in drop order.
pub(crate) struct SidecarNode<'a> {
    daemon: Daemon,
    _container: Container,
    pub(crate) pods: Vec<PodSandbox>,
    _processes: ProcessTable,
    _node: Node,
    base: &'a BenchNode,
}

impl<'a> SidecarNode<'a> {
    /// Starts the node with `pods` pods, which the agent has redirected.
    pub(crate) fn start(base: &'a BenchNode, pods: usize) -> SidecarNode<'a> {
        let node = Node::new(NodeOptions::default());
        let processes = ProcessTable::new(&node);
        node.write_conflist("10-kit.conflist", &node.conflist(&[]));
        let mut container = Container::new(&node)
            .with_env("CNI_CONFIG_MAP", "istio-cni-config")
            .with_env("REPAIR_ENABLED", "true")
            .with_env("REPAIR_REPAIR_PODS", "true")
            .with_env("REPAIR_NODE_NAME", NODE)
            .with_env("NODE_NAME", NODE);
        container.add_mount(processes.path(), "/host/proc");
        container.add_mount(Path::new("/run/netns"), "/var/run/netns");
        container.set_account(&base.token, base.api.ca_pem());
        let started = (0..pods).map(|at| {
            let mut object = istio::injected_pod(NAMESPACE, &format!("pod-{at}"));
            object = istio::with_proxy_env(object, "ISTIO_DUAL_STACK", "true");
            object["spec"]["nodeName"] = json!(NODE);
            let sandbox = node.pod(Pod::from_object(&base.api.create_pod(&object)), &[]);
            base.api.admin().patch_status(&path(at), &sandbox.manifest()["status"]);
            processes.add_pod(100 + u32::try_from(at).unwrap(), &sandbox);
            sandbox
        });
        let started = started.collect();
        let mut daemon = container.start();
        daemon.wait_for("all are redirected", |daemon| daemon.metric(REPAIRED) == Some(pods as f64));
        SidecarNode { daemon, _container: container, pods: started, _processes: processes, _node: node, base }
    }
}

impl Drop for SidecarNode<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.daemon.log());
        }
        for at in 0..self.pods.len() {
            self.base.api.admin().delete(&path(at));
        }
    }
}

fn path(at: usize) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods/pod-{at}")
}
