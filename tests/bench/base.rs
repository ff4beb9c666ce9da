//! A node, an API server with pods, and fresh network namespaces for each run.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use kit::{ApiServer, Auth, Container, Netns, Node, NodeOptions, Pod, istio};
use serde_json::{Value, json};

/// The node's name.
pub(crate) const NODE: &str = "node-1";

/// Waits until the agent in this container knows this many pods of a namespace.
pub(crate) fn wait_known(container: &Container, namespace: &str, count: usize) {
    kit::until(format_args!("the agent knows {count} pods of {namespace}"), || {
        let listed = container.exec(&["list", "-o", "json"]).stdout;
        let pods: Vec<Value> = serde_json::from_slice(&listed).unwrap_or_default();
        pods.iter().filter(|pod| pod["namespace"] == namespace).count() == count
    });
}

/// Fixture of the contests.
pub(crate) struct BenchNode {
    pub(crate) node: Node,
    pub(crate) api: &'static ApiServer,
    /// Token of a service account with the agent's permissions.
    pub(crate) token: String,
    entry: Value,
    /// Directory of the kubeconfig of newer versions of Istio's plugin.
    peer_run_dir: PathBuf,
    /// Pods that the API server knows.
    pub(crate) sidecar: Pod,
    pub(crate) dual: Pod,
    pub(crate) plain: Pod,
    /// The rules of a sidecar pod as input of a restore, and as single commands.
    pub(crate) restore: String,
    pub(crate) commands: PathBuf,
}

impl BenchNode {
    /// Sets up the fixture; `None` means that there is no API server here.
    pub(crate) fn set() -> Option<BenchNode> {
        let api = ApiServer::shared()?;
        let node = Node::new(NodeOptions::default());
        api.create_namespace("bench");
        let dual = istio::with_proxy_env(istio::injected_pod("bench", "dual"), "ISTIO_DUAL_STACK", "true");
        let objects = [istio::injected_pod("bench", "sidecar"), dual, ApiServer::pod("bench", "plain")];
        let pods = objects.map(|mut object| {
            object["spec"]["nodeName"] = json!(NODE);
            Pod::from_object(&api.create_pod(&object))
        });
        let [sidecar, dual, plain] = pods;
        let template = json!({"metadata": {"name": "istio-cni-config"}, "data": {"cni_network_config": kit::NETWORK_CONFIG}});
        api.admin().create("/api/v1/namespaces/kube-system/configmaps", &template);
        let token = api.service_account("kube-system", "istio-cni", &rules());
        let kubeconfig = istio::write_kubeconfig(&node, api, &Auth::Token(token.clone()));
        let peer_run_dir = node.dir().join("peer");
        std::fs::create_dir(&peer_run_dir).unwrap();
        std::fs::copy(&kubeconfig, peer_run_dir.join("istio-cni-kubeconfig")).unwrap();
        let mut entry = istio::plugin_entry(&kubeconfig);
        entry["cniVersion"] = json!("1.0.0");
        entry["log_level"] = json!("error");
        let (restore, commands) = sidecar_rules(&node);
        Some(BenchNode { token, sidecar, dual, plain, node, api, entry, peer_run_dir, restore, commands })
    }

    /// A network namespace with an address of each family, as a pod's when our plugin is called.
    pub(crate) fn pod_netns(&self) -> Netns {
        let netns = Netns::new("bench");
        let batch = "link add eth0 type veth peer name peer0\naddress add 10.244.0.2/24 dev eth0\n\
                     address add fd00:244::2/64 dev eth0 nodad\nlink set eth0 up\nlink set peer0 up\n";
        netns.pipe("ip -batch -", batch);
        netns
    }

    /// The variables and stdin of one call.
    pub(crate) fn call(
        &self,
        pod: &Pod,
        netns: &Netns,
        annotations: bool,
        agent: Option<&Path>,
    ) -> (Vec<(String, String)>, String) {
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={};K8S_POD_INFRA_CONTAINER_ID={};K8S_POD_UID={}",
            pod.namespace, pod.name, pod.container_id, pod.uid
        );
        let path = netns.path().to_string_lossy().into_owned();
        let variables = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", &pod.container_id),
            ("CNI_NETNS", &path),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
            ("CNI_ARGS", &args),
        ];
        let variables = variables.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let mut stdin = self.entry.clone();
        stdin["prevResult"] = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.244.0.2/24"}]});
        if let Some(socket) = agent {
            stdin["agent_socket"] = json!(socket);
        }
        if annotations {
            stdin["runtimeConfig"] = json!({"io.kubernetes.cri.pod-annotations": pod.annotations});
        }
        (variables, stdin.to_string())
    }

    /// Variables and stdin of Istio's plugin, with the keys of older and newer versions, each of which ignores the others.
    pub(crate) fn istio_call(&self, pod: &Pod, netns: &Netns) -> (Vec<(String, String)>, String) {
        let (variables, stdin) = self.call(pod, netns, true, None);
        let mut stdin: Value = serde_json::from_str(&stdin).unwrap();
        stdin["cni_agent_run_dir"] = json!(self.peer_run_dir);
        stdin["plugin_log_level"] = json!("error");
        stdin["exclude_namespaces"] = stdin["kubernetes"]["exclude_namespaces"].clone();
        (variables, stdin.to_string())
    }
}

/// Permissions of plugin and agent.
fn rules() -> Value {
    let mut rules = istio::plugin_rules();
    let read = json!(["get", "list", "watch"]);
    rules.as_array_mut().unwrap().extend([
        json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": read}),
        json!({"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": read}),
        json!({"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch", "update"]}),
        json!({"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}),
    ]);
    rules
}

/// The rules that ADD applies for a sidecar pod of one family, from `istio-iptables --dry-run`.
fn sidecar_rules(node: &Node) -> (String, PathBuf) {
    let netns = Netns::new("rules");
    netns
        .pipe("ip -batch -", "link add eth0 type veth peer name peer0\naddress add 10.244.0.2/24 dev eth0\n");
    let dry = |form: &str| {
        let mut command = Command::new(kit::binary("istio-iptables"));
        command.args(["-b", "*", "-d", "15020,15021,15090", "-i", "*", "-o", "15020", "--dry-run", form]);
        String::from_utf8(netns.output(&mut command).stdout).unwrap()
    };
    let restore = dry("--restore-format=true");
    let restore = restore.split_once("<<'EOF'\n").unwrap().1.split_once("EOF").unwrap().0.to_owned();
    let commands = node.dir().join("commands");
    std::fs::write(&commands, format!("set -e\n{}", dry("--restore-format=false"))).unwrap();
    (restore, commands)
}
