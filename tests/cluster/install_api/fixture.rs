//! A node with the agent's container, and in the API server its own namespace, Node and service account.

use std::fs;
use std::path::PathBuf;

use kit::{ApiServer, Auth, Container, Daemon, NETWORK_CONFIG, Node, NodeOptions};
use serde_json::{Value, json};

/// Name of the DaemonSet in the manifests.
pub(crate) const DAEMON_SET: &str = "istio-cni-node";
const CONFIG_MAP: &str = "istio-cni-config";

pub(crate) struct ClusterFixture {
    pub(crate) api: &'static ApiServer,
    pub(crate) node: Node,
    pub(crate) container: Container,
    /// The agent's namespace, also the name of its node: unique in the cluster.
    pub(crate) name: &'static str,
    _objects: Objects,
}

/// Objects of a fixture in the API server outside its own namespace.
struct Objects(&'static ApiServer, &'static str);

impl ClusterFixture {
    /// Starts with the permissions of our manifests; `None` means that there is no API server.
    pub(crate) fn start(name: &'static str) -> Option<Self> {
        Self::allowed(name, &our_rules())
    }

    /// Starts with these permissions.
    pub(crate) fn allowed(name: &'static str, rules: &Value) -> Option<Self> {
        let api = ApiServer::shared()?;
        api.create_namespace(name);
        let labels = json!({"kubernetes.io/os": "linux", "mesh": "yes"});
        api.admin().create("/api/v1/nodes", &json!({"metadata": {"name": name, "labels": labels}}));
        let token = api.service_account(name, "istio-cni", rules);
        let node = Node::new(NodeOptions::default());
        node.write_conflist("10-kit.conflist", &node.conflist(&[]));
        let container = Container::new(&node)
            .with_env("POD_NAMESPACE", name)
            .with_env("POD_NAME", "istio-cni-node-x7k2p")
            .with_env("NODE_NAME", name)
            .with_env("CNI_CONFIG_MAP", CONFIG_MAP);
        container.set_account(&token, api.ca_pem());
        Some(Self { api, node, container, name, _objects: Objects(api, name) })
    }

    /// Sets a variable of the agent.
    pub(crate) fn with_env(mut self, key: &str, value: &str) -> Self {
        self.container = self.container.with_env(key, value);
        self
    }

    /// Removes a variable of the agent.
    pub(crate) fn without_env(mut self, key: &str) -> Self {
        self.container = self.container.without_env(key);
        self
    }

    /// Starts the agent and waits until it is ready.
    pub(crate) fn daemon(&self) -> Daemon {
        let mut daemon = self.container.start();
        daemon.wait_until_ready();
        daemon
    }

    /// Starts the agent and waits until it knows the DaemonSet.
    pub(crate) fn daemon_that_knows(&self, daemon_set: &str) -> Daemon {
        let mut daemon = self.daemon();
        let name = format!("{}/{daemon_set}", self.name);
        daemon.wait_for("it knows its DaemonSet", |daemon| {
            daemon.logged("found the agent's DaemonSet", &name) > 0
        });
        daemon
    }

    /// The plugins of the node's network.
    pub(crate) fn plugins(&self) -> Vec<Value> {
        let text = fs::read(self.conflist()).unwrap();
        let conflist: Value = serde_json::from_slice(&text).unwrap();
        conflist["plugins"].as_array().unwrap().clone()
    }

    pub(crate) fn conflist(&self) -> PathBuf {
        self.node.net_d().join("10-kit.conflist")
    }

    /// Our entry in the node's network.
    pub(crate) fn entry(&self) -> Value {
        self.plugins().into_iter().find(|plugin| plugin["type"] == "istio-cni").unwrap_or_default()
    }

    /// Whether the node has our files; it must have all of them or none.
    pub(crate) fn is_installed(&self) -> bool {
        let entry = self.plugins().iter().any(|plugin| plugin["type"] == "istio-cni");
        let kubeconfig = self.node.net_d().join("ZZZ-istio-cni-kubeconfig").exists();
        let binaries = fs::read_dir(self.container.bin_dir()).unwrap().count();
        let whole = if entry { (true, 1) } else { (false, 0) };
        assert_eq!((kubeconfig, binaries), whole, "neither installed nor removed; entry: {entry}");
        entry
    }

    /// Path of an object in the fixture's namespace, such as `apps/v1` `daemonsets` `x`; without a name, of a collection.
    pub(crate) fn path(&self, group: &str, resource: &str, name: &str) -> String {
        let root = if group == "v1" { "/api" } else { "/apis" };
        let path = format!("{root}/{group}/namespaces/{}/{resource}", self.name);
        if name.is_empty() { path } else { format!("{path}/{name}") }
    }

    pub(crate) fn config_map(&self) -> String {
        self.path("v1", "configmaps", CONFIG_MAP)
    }

    /// Creates the ConfigMap.
    pub(crate) fn configure(&self, value: &str) {
        let object = json!({"metadata": {"name": CONFIG_MAP}, "data": {"cni_network_config": value}});
        self.api.admin().create(&self.path("v1", "configmaps", ""), &object);
    }

    /// Changes the ConfigMap.
    pub(crate) fn edit(&self, value: &str) {
        self.api.admin().patch(&self.config_map(), &json!({"data": {"cni_network_config": value}}));
    }

    pub(crate) fn daemon_set(&self) -> String {
        self.path("apps/v1", "daemonsets", DAEMON_SET)
    }

    /// Creates a DaemonSet that selects every Linux node, and returns it as stored.
    pub(crate) fn create_daemon_set(&self, name: &str) -> Value {
        let labels = json!({"k8s-app": name});
        let pod = json!({
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "containers": [{
                "name": "install-cni",
                "image": "install-cni",
                "env": [{"name": "AMBIENT_ENABLED", "value": "true"}],
            }],
        });
        let object = json!({
            "metadata": {"name": name},
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
        });
        self.api.admin().create(&self.path("apps/v1", "daemonsets", ""), &object)
    }

    /// A client with the agent's current credential.
    pub(crate) fn client(&self) -> kit::Client {
        let token = fs::read_to_string(self.container.account_dir().join("token")).unwrap();
        self.api.client(&Auth::Token(token))
    }

    /// Events about our node with this reason.
    pub(crate) fn events(&self, reason: &str) -> Vec<Value> {
        let path = format!(
            "/api/v1/namespaces/default/events?fieldSelector=reason={reason},involvedObject.name={}",
            self.name
        );
        self.api.admin().get(&path)["items"].as_array().unwrap().clone()
    }

    /// Waits for an Event with this reason, and returns it.
    pub(crate) fn event(&self, reason: &str) -> Value {
        kit::until(format_args!("an Event {reason}"), || !self.events(reason).is_empty());
        self.events(reason).remove(0)
    }

    /// All requests of the agent.
    pub(crate) fn requests(&self) -> Vec<kit::Request> {
        let user = format!("system:serviceaccount:{}:istio-cni", self.name);
        let mut requests = self.api.requests_with(&user);
        requests.retain(|request| request.user == user && request.user_agent != "kit");
        requests
    }

    /// Requests of the agent that the API server refused, as verb and URI.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.api.refused(&format!("system:serviceaccount:{}:istio-cni", self.name))
    }

    /// Waits until the agent watches this resource.
    pub(crate) fn wait_until_watched(&self, resource: &str) {
        kit::until(format_args!("a watch of {resource}"), || {
            self.requests().iter().any(|request| request.verb == "watch" && request.resource == resource)
        });
    }

    /// Waits until the agent has requested this resource, whatever the response.
    pub(crate) fn wait_until_asked(&self, resource: &str) {
        kit::until(format_args!("a request for {resource}"), || {
            self.requests().iter().any(|request| request.resource == resource)
        });
    }

    /// Drops (`DROP`) or rejects (`REJECT --reject-with …`) packets from the node to the API server.
    pub(crate) fn cut_off(&self, how: &str) {
        self.node.netns().sh(&format!("iptables -A OUTPUT -p tcp -d {} -j {how}", ApiServer::address().0));
    }

    /// Removes the rules of `cut_off`.
    pub(crate) fn connect(&self) {
        self.node.netns().sh("iptables -F OUTPUT");
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        let Self(api, name) = self;
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        for path in [
            format!("/api/v1/nodes/{name}"),
            format!("{rbac}/clusterrolebindings/kit:{name}:istio-cni"),
            format!("{rbac}/clusterroles/kit:{name}:istio-cni"),
        ] {
            // Objects may have been deleted already; a failure here must not hide the test's own.
            drop(api.admin().try_request("DELETE", &path, None));
        }
    }
}

/// Permissions of the manifests' account.
pub(crate) fn our_rules() -> Value {
    let read = json!(["get", "list", "watch"]);
    json!([
        {"apiGroups": [""], "resources": ["pods", "nodes", "namespaces"], "verbs": read},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": read},
        {"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": read},
    ])
}

/// The plugin's entry with this log level, which identifies it in tests.
pub(crate) fn template(level: &str) -> String {
    let mut template: Value = serde_json::from_str(NETWORK_CONFIG).unwrap();
    template["log_level"] = json!(level);
    template.to_string()
}
