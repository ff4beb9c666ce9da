//! One node, one API server, and the conflist that an installer would have written.

use std::path::PathBuf;

use kit::{ApiServer, Auth, ChainError, Node, NodeOptions, Pod, PodSandbox, Runtime, istio};
use serde_json::{Value, json};

use crate::show::Show;

/// What the scenes play on.
pub(crate) struct Cluster {
    pub(crate) node: Node,
    pub(crate) api: &'static ApiServer,
    pub(crate) conflist: Value,
    pub(crate) conflist_path: PathBuf,
    runtime: Runtime,
}

impl Cluster {
    /// Starts everything; none when there is no API server here, after saying so.
    pub(crate) fn start(show: &mut Show) -> Option<Cluster> {
        show.chapter("a node, and a real API server");
        let Some(api) = ApiServer::shared() else {
            show.note("no kube-apiserver: Go is needed to build it (see README.md)");
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
        let token = api.service_account("kube-system", "istio-cni", &istio::plugin_rules());
        let kubeconfig = istio::write_kubeconfig(&node, api, &Auth::Token(token));
        let conflist = node.conflist(&[istio::plugin_entry(&kubeconfig)]);
        let conflist_path = node.write_conflist("10-kit.conflist", &conflist);
        show.note("chain: ptp with host-local, then istio-cni");
        let runtime = node.runtime();
        Some(Cluster { node, api, conflist, conflist_path, runtime })
    }

    /// Creates the pod through the API and runs the chain as a container runtime does.
    pub(crate) fn start_pod(&self, object: &Value) -> Result<PodSandbox, Box<ChainError>> {
        let stored = self.api.create_pod(object);
        self.start_sandbox(Pod::from_object(&stored))
    }

    /// Runs the chain for a pod that the API server need not know.
    pub(crate) fn start_sandbox(&self, pod: Pod) -> Result<PodSandbox, Box<ChainError>> {
        self.node.add_pod(&self.runtime, &self.conflist, pod)
    }
}

/// What the plugin logged as its decision at ADD.
pub(crate) fn decision(pod: &PodSandbox) -> String {
    let ours = pod.calls.iter().find(|call| call.plugin == "istio-cni");
    let lines = ours.map(|call| call.output.stderr_text()).unwrap_or_default();
    let records = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let messages: Vec<String> =
        records.filter_map(|record| Some(record["msg"].as_str()?.to_owned())).collect();
    messages.join("; ")
}

/// A plain pod, as it is without injection.
pub(crate) fn plain(namespace: &str, name: &str) -> Value {
    ApiServer::pod(namespace, name)
}

/// An injected pod whose `istio-proxy` is a gateway.
pub(crate) fn gateway(namespace: &str, name: &str) -> Value {
    let mut pod = istio::injected_pod(namespace, name);
    pod["spec"]["containers"][1]["args"] = json!(["proxy", "router"]);
    pod
}
