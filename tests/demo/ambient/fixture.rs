//! The node, its agent, and the pods on it.

use std::{path::Path, process::Command, sync::Arc, time::Instant};

use kit::{
    ApiServer, Container, Daemon, NETWORK_CONFIG, Node, NodeOptions, PodSandbox, Runtime, TempDir, Ztunnel,
    ZtunnelOptions, istio,
};
use serde_json::{Value, json};

use super::source::Source;
use crate::show::Show;

/// Fixture of the scenes.
pub(crate) struct Fixture {
    pub(crate) node: Arc<Node>,
    pub(crate) source: Source,
    pub(crate) daemon: Daemon,
    pub(crate) container: Container,
    /// The node's network before any object of ours existed.
    pub(crate) before: String,
    runtime: Runtime,
    _config: TempDir,
}

/// A pod with its object.
pub(crate) struct Actor {
    pub(crate) object: Value,
    pub(crate) sandbox: PodSandbox,
}

/// A ztunnel with its object.
pub(crate) struct Proxy {
    pub(crate) object: Value,
    pub(crate) ztunnel: Ztunnel,
}

impl Fixture {
    pub(crate) fn start(source: Source, show: &mut Show) -> Fixture {
        show.chapter("a node in ambient mode");
        let node = Arc::new(Node::new(NodeOptions::default()));
        let before = with_kubelets_chains(&node);
        let config = TempDir::new().unwrap();
        for name in ["istio-system", "sidecars", "plain"] {
            source.create_namespace(name, &[]);
        }
        source.create_namespace("mesh", &[("istio.io/dataplane-mode", "ambient")]);
        node.write_conflist("10-kit.conflist", &node.conflist(&[]));
        let container = container(&node, &source, config.path());
        let runtime = node.runtime().with_plugins(&container.bin_dir());
        let began = Instant::now();
        let mut daemon = container.start();
        daemon.wait_until_ready();
        let from = match &source {
            Source::Directory(manifests) => format!("a directory, {}", manifests.path().display()),
            Source::Api(api) => format!("the API server at {}", api.url()),
        };
        show.note(format!("install-cni with AMBIENT_ENABLED=true; pods and namespaces come from {from}"));
        show.note(format!("/readyz says 200 after {:.0?}, the container's start included", began.elapsed()));
        Fixture { node, source, daemon, container, before, runtime, _config: config }
    }

    /// Starts a pod as kubelet and container runtime do, through the chain that the agent wrote.
    pub(crate) fn start_pod(&self, mut object: Value) -> Actor {
        let pod = self.source.create_pod(&mut object);
        let text = std::fs::read(self.node.net_d().join("10-kit.conflist")).unwrap();
        let conflist = serde_json::from_slice(&text).unwrap();
        let sandbox =
            self.node.add_pod(&self.runtime, &conflist, pod).unwrap_or_else(|error| panic!("{error}"));
        let status = sandbox.manifest()["status"].clone();
        self.source.runs(&mut object, &status);
        Actor { object, sandbox }
    }

    /// Starts a ztunnel pod, and waits until new connections go through it.
    pub(crate) fn start_ztunnel(&mut self, name: &str) -> Proxy {
        let mut object = ApiServer::pod("istio-system", name);
        object["metadata"]["labels"] = json!({"app": "ztunnel"});
        object["metadata"]["annotations"] = json!({"ambient.istio.io/redirection": "disabled"});
        object["metadata"]["creationTimestamp"] = json!(now());
        object["spec"]["serviceAccountName"] = json!("ztunnel");
        let actor = self.start_pod(object);
        let uid = actor.sandbox.pod.uid.clone();
        let proxy = Proxy {
            object: actor.object,
            ztunnel: Ztunnel::start_in(actor.sandbox, ZtunnelOptions::default()),
        };
        let field = format!("ztunnel={uid}");
        let switched = |daemon: &Daemon| daemon.logged("new connections go through ztunnel", &field) > 0;
        self.daemon.wait_for(&field, |daemon| switched(daemon) && daemon.is_ready());
        proxy
    }

    /// Ends a ztunnel pod as the kubelet does.
    pub(crate) fn end_ztunnel(&self, proxy: Proxy) {
        self.source.remove_pod(&proxy.object);
        drop(proxy.ztunnel.delete());
    }

    /// Number of the node's links.
    pub(crate) fn links(&self) -> usize {
        self.node.netns().sh("ip -o link").lines().count()
    }

    /// Waits until the node has `count` links, and no route through a removed one.
    pub(crate) fn wait_for_links(&mut self, count: usize) {
        let node = Arc::clone(&self.node);
        let links = || node.netns().sh("ip -o link").lines().count();
        let is_settled = || !dump(&node).split_whitespace().any(is_no_link);
        self.daemon.wait_for("the links of the old ztunnel are gone", |_| links() == count && is_settled());
    }

    /// The node's network in the output of its tools.
    pub(crate) fn dump(&self) -> String {
        dump(&self.node)
    }
}

/// Whether a word is the number by which `ip` names a link that no longer exists.
fn is_no_link(word: &str) -> bool {
    word.strip_prefix("if").is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Current time in seconds, as the API server has it; a directory could have any precision.
fn now() -> String {
    let output = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn container(node: &Node, source: &Source, config: &Path) -> Container {
    let socket = |name: &str| node.run_dir().join(name).to_string_lossy().into_owned();
    let mut entry: Value = serde_json::from_str(NETWORK_CONFIG).unwrap();
    entry["log_uds_address"] = json!(socket("log.sock"));
    entry["ambient_enabled"] = json!(true);
    entry["agent_socket"] = json!(socket("agent.sock"));
    entry["ambient_config"] = json!(config.join("config.json"));
    let container = Container::new(node)
        .with_env("CNI_NETWORK_CONFIG", &entry.to_string())
        .with_env("CNI_NET_DIR", &node.net_d().to_string_lossy())
        .with_env("AMBIENT_ENABLED", "true")
        .with_env("CLEANUP_ON_EXIT", "always")
        .with_mount(config, "/etc/ambient-config")
        .with_mount(Path::new("/run/netns"), "/var/run/netns");
    match source {
        Source::Directory(manifests) => {
            container.with_env("POD_SOURCE", "dir:/manifests").with_mount(&manifests.path(), "/manifests")
        }
        Source::Api(api) => {
            let mut rules = istio::plugin_rules();
            rules
                .as_array_mut()
                .unwrap()
                .push(json!({"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]}));
            let token = api.service_account("kube-system", "istio-cni-ambient", &rules);
            container.set_account(&token, api.ca_pem());
            container
        }
    }
}

/// The node's tables exist before the agent: the kubelet creates a chain in each.
fn with_kubelets_chains(node: &Node) -> String {
    for tool in ["iptables-nft", "ip6tables-nft"] {
        for table in ["mangle", "nat", "filter"] {
            node.netns().sh(&format!("{tool} -t {table} -N KUBE-KUBELET-CANARY"));
        }
    }
    dump(node)
}

pub(super) fn dump(node: &Node) -> String {
    let commands = [
        "ip -4 rule",
        "ip -6 rule",
        "ip -4 route show table all",
        "ip -6 route show table all",
        "ipset save",
        "iptables-nft-save",
        "ip6tables-nft-save",
    ];
    let text: Vec<String> = commands.iter().map(|command| node.netns().sh(command)).collect();
    text.join("\n").lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
}
