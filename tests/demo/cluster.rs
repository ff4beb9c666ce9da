//! One node, one API server, and the agent that installs the plugin on the node.

use std::{fs, path::PathBuf};

use kit::{
    ApiServer, ChainError, Container, Daemon, NETWORK_CONFIG, Node, NodeOptions, Pod, PodSandbox, Runtime,
    istio,
};
use serde_json::{Value, json};

use crate::show::Show;

/// Fixture of the scenes.
pub(crate) struct Cluster {
    pub(crate) node: Node,
    pub(crate) api: &'static ApiServer,
    pub(crate) container: Container,
    pub(crate) conflist_path: PathBuf,
    runtime: Runtime,
}

/// API path of the agent's DaemonSets.
pub(crate) const DAEMON_SET: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets";
/// Path of the plugin's configuration.
pub(crate) const CONFIG_MAP: &str = "/api/v1/namespaces/kube-system/configmaps/istio-cni-config";

impl Cluster {
    /// Starts everything; `None` means that there is no API server, which is reported.
    pub(crate) fn start(show: &mut Show) -> Option<Cluster> {
        show.chapter("a node, and a real API server");
        let Some(api) = ApiServer::shared() else {
            show.note("no kube-apiserver: Go is needed to build it (see CONTRIBUTING.md)");
            return None;
        };
        let version = api.admin().get("/version")["gitVersion"].clone();
        show.note(format!("kube-apiserver {} at {}", version.as_str().unwrap_or("?"), api.url()));
        let node = Node::new(NodeOptions::default());
        show.note(format!(
            "node namespace {}, a host beyond it at {} and {}",
            node.netns().name(),
            node.outside_ip(false),
            node.outside_ip(true)
        ));
        api.create_namespace("shop");
        let template = create_objects(api, &node);
        let conflist_path = node.write_conflist("10-kit.conflist", &node.conflist(&[]));
        show.note("primary network: ptp with host-local, in 10-kit.conflist");
        let container = container(api, &node, &template);
        let runtime = node.runtime().with_plugins(&container.bin_dir());
        Some(Cluster { node, api, container, conflist_path, runtime })
    }

    /// Starts the agent as the kubelet does.
    pub(crate) fn daemon(&self) -> Daemon {
        self.container.start()
    }

    /// The conflist that a runtime reads now.
    pub(crate) fn conflist(&self) -> Value {
        let text = fs::read(&self.conflist_path).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or(Value::Null)
    }

    /// Creates the pod through the API and runs the chain as a container runtime does.
    pub(crate) fn start_pod(&self, object: &Value) -> Result<PodSandbox, Box<ChainError>> {
        let stored = self.api.create_pod(object);
        self.start_sandbox(Pod::from_object(&stored))
    }

    /// Runs the chain for a pod that the API server need not know.
    pub(crate) fn start_sandbox(&self, pod: Pod) -> Result<PodSandbox, Box<ChainError>> {
        self.node.add_pod(&self.runtime, &self.conflist(), pod)
    }
}

/// Creates the objects of a manifest, and the node; returns the plugin's configuration. Its log socket is in the demo node's
/// directory.
fn create_objects(api: &ApiServer, node: &Node) -> String {
    let socket = node.run_dir().join("log.sock");
    let template = NETWORK_CONFIG.replace("__LOG_UDS_ADDRESS__", &socket.to_string_lossy());
    let admin = api.admin();
    admin.create("/api/v1/nodes", &json!({"metadata": {"name": "node-1"}}));
    let config_map =
        json!({"metadata": {"name": "istio-cni-config"}, "data": {"cni_network_config": template}});
    admin.create("/api/v1/namespaces/kube-system/configmaps", &config_map);
    let labels = json!({"k8s-app": "istio-cni-node"});
    let containers = json!([{"name": "install-cni", "image": "install-cni"}]);
    let daemon_set = json!({
        "metadata": {"name": "istio-cni-node"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
        },
    });
    admin.create(DAEMON_SET, &daemon_set);
    template
}

fn container(api: &ApiServer, node: &Node, template: &str) -> Container {
    let mut rules = istio::plugin_rules();
    let read = json!(["get", "list", "watch"]);
    rules.as_array_mut().unwrap().extend([
        json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": read}),
        json!({"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": read}),
        json!({"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}),
    ]);
    let token = api.service_account("kube-system", "istio-cni", &rules);
    let container = Container::new(node)
        .with_env("CNI_NETWORK_CONFIG", template)
        .with_env("CNI_NET_DIR", &node.net_d().to_string_lossy())
        .with_env("CNI_CONFIG_MAP", "istio-cni-config");
    container.set_account(&token, api.ca_pem());
    container
}

/// Log line of the plugin about a pod, in the agent's log; empty if none arrives in time.
pub(crate) fn logged(daemon: &mut Daemon, pod: &Pod) -> String {
    let label = format!("pod={}/{}", pod.namespace, pod.name);
    let line =
        |daemon: &Daemon| daemon.log().lines().find(|line| line.contains(&label)).map(ToOwned::to_owned);
    daemon.wait_for(&format!("a line with {label}"), |daemon| line(daemon).is_some());
    line(daemon).and_then(|line| Some(line.split('\t').nth(3)?.to_owned())).unwrap_or_default()
}

/// A plain pod without injection.
pub(crate) fn plain(namespace: &str, name: &str) -> Value {
    ApiServer::pod(namespace, name)
}

/// An injected pod whose `istio-proxy` is a gateway.
pub(crate) fn gateway(namespace: &str, name: &str) -> Value {
    let mut pod = istio::injected_pod(namespace, name);
    pod["spec"]["containers"][1]["args"] = json!(["proxy", "router"]);
    pod
}
