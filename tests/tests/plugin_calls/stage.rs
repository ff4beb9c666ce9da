//! What the tests of the plugin share: pods that cost little, calls with exactly these variables and bytes, and what
//! the kernel shows afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use kit::{ApiServer, Auth, FakeApi, FakeReply, FakeRequest, Netns, Node, NodeOptions, PluginOutput, istio};
use serde_json::{Value, json};

/// A node whose API server knows every pod that it is asked for, as an injected one.
pub(crate) struct Stage {
    pub(crate) node: Node,
    pub(crate) api: FakeApi,
    pub(crate) kubeconfig: PathBuf,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::answering(|request| FakeReply::Json(200, injected(request)))
    }

    /// The API server answers what `reply` says.
    pub(crate) fn answering(reply: impl Fn(&FakeRequest) -> FakeReply + Send + Sync + 'static) -> Self {
        let node = Node::new(NodeOptions::default());
        let api = fake_api(&node, reply);
        let kubeconfig = istio::write_file(&node, "kubeconfig", &api.kubeconfig(&token()));
        Self { node, api, kubeconfig }
    }

    /// A call about pod `shop/web` in that namespace.
    pub(crate) fn call(&self, command: &str, netns: &Netns) -> Call<'_> {
        Call::new(&self.node, command).netns(&netns.path()).kubeconfig(&self.kubeconfig)
    }
}

pub(crate) fn token() -> Auth {
    Auth::Token("secret-of-the-plugin".into())
}

/// A misbehaving API server on the host outside.
pub(crate) fn fake_api(
    node: &Node,
    reply: impl Fn(&FakeRequest) -> FakeReply + Send + Sync + 'static,
) -> FakeApi {
    FakeApi::start(node.outside(), SocketAddr::from((node.outside_ip(false), 6443)), reply)
}

/// The pod that a request asks for, injected.
pub(crate) fn injected(request: &FakeRequest) -> Value {
    let words: Vec<&str> = request.path.split('/').collect();
    istio::injected_pod(words[4], words[6])
}

/// A credential with the chart's permissions, made once for all tests.
pub(crate) fn plugin_auth(api: &ApiServer) -> Auth {
    static TOKEN: OnceLock<String> = OnceLock::new();
    let make = || api.service_account("kube-system", "plugin-tests", &istio::plugin_rules());
    Auth::Token(TOKEN.get_or_init(make).clone())
}

/// A pod's namespace with these addresses on its `eth0`, and no way out.
pub(crate) fn bare_pod(addresses: &[&str]) -> Netns {
    let netns = Netns::new("pod");
    fill(&netns, addresses);
    netns
}

/// Gives a namespace an `eth0` with these addresses.
pub(crate) fn fill(netns: &Netns, addresses: &[&str]) {
    let addresses = addresses.iter().map(|address| format!("address add {address} dev eth0\n"));
    let batch = "link add eth0 type veth peer name peer0\nlink set eth0 up\nlink set peer0 up\n".to_owned()
        + &addresses.collect::<String>();
    netns.pipe("ip -batch -", &batch);
}

pub(crate) const V4: &[&str] = &["10.244.1.2/24"];
pub(crate) const DUAL: &[&str] = &["10.244.1.2/24", "fd00:244::2/64"];

/// One call of the plugin, to be changed before it runs.
#[derive(Clone)]
pub(crate) struct Call<'n> {
    node: &'n Node,
    env: BTreeMap<String, String>,
    pub(crate) conf: Value,
    stdin: Option<Vec<u8>>,
}

impl<'n> Call<'n> {
    /// A call as containerd makes it, about pod `shop/web`.
    pub(crate) fn new(node: &'n Node, command: &str) -> Self {
        let env = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "0123456789abcdef"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin"),
        ];
        let env = env.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let conf = json!({"cniVersion": "1.0.0", "name": "net", "type": "istio-cni", "log_level": "debug",
            "kubernetes": {}, "prevResult": {"cniVersion": "1.0.0", "ips": []}});
        Self { node, env, conf, stdin: None }.pod("shop", "web")
    }

    pub(crate) fn env(mut self, key: &str, value: &str) -> Self {
        self.env.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn unset(mut self, key: &str) -> Self {
        self.env.remove(key).unwrap_or_else(|| panic!("{key} is not set"));
        self
    }

    pub(crate) fn pod(self, namespace: &str, name: &str) -> Self {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}");
        self.env("CNI_ARGS", &args)
    }

    pub(crate) fn netns(self, path: &Path) -> Self {
        self.env("CNI_NETNS", path.to_str().expect("paths of tests are text"))
    }

    pub(crate) fn kubeconfig(mut self, path: &Path) -> Self {
        self.conf["kubernetes"]["kubeconfig"] = json!(path);
        self
    }

    /// A member of the configuration.
    pub(crate) fn with(mut self, key: &str, value: Value) -> Self {
        self.conf[key] = value;
        self
    }

    /// A member of its `kubernetes` part.
    pub(crate) fn kubernetes(mut self, key: &str, value: Value) -> Self {
        self.conf["kubernetes"][key] = value;
        self
    }

    /// The pod's annotations, from the runtime.
    pub(crate) fn annotations(self, annotations: &Value) -> Self {
        self.with("runtimeConfig", json!({"io.kubernetes.cri.pod-annotations": annotations}))
    }

    /// These bytes in place of the configuration.
    pub(crate) fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        self.env.clone().into_iter().collect()
    }

    pub(crate) fn input(&self) -> Vec<u8> {
        self.stdin.clone().unwrap_or_else(|| self.conf.to_string().into_bytes())
    }

    pub(crate) fn run(&self) -> Outcome {
        let runtime = self.node.runtime().with_limit(Duration::from_secs(50));
        let output = runtime.exec(&kit::binary("istio-cni"), &self.environment(), &self.input());
        let outcome = Outcome(output);
        assert!(!outcome.0.killed, "the plugin hangs: {outcome}");
        assert!(!format!("{outcome}").contains("panicked"), "{outcome}");
        outcome
    }
}

/// What came of a call.
pub(crate) struct Outcome(pub(crate) PluginOutput);

/// A CNI error object.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: u64,
    pub(crate) msg: String,
    pub(crate) details: String,
}

impl Outcome {
    /// Stdout of a call that must have succeeded.
    pub(crate) fn ok(&self) -> String {
        assert!(self.0.status.success(), "{self}");
        self.stdout()
    }

    /// The error of a call that must have failed, in the form that a runtime can read.
    pub(crate) fn refused(&self) -> Refusal {
        assert_eq!(self.0.status.code(), Some(1), "{self}");
        let error = self.0.json();
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        assert!(!text("cniVersion").is_empty() && !text("msg").is_empty(), "{self}");
        let code = error["code"].as_u64().unwrap_or_else(|| panic!("no code: {self}"));
        Refusal { code, msg: text("msg"), details: text("details") }
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8(self.0.stdout.clone()).expect("the plugin writes UTF-8")
    }

    pub(crate) fn wall(&self) -> Duration {
        self.0.wall
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stdout = String::from_utf8_lossy(&self.0.stdout);
        write!(f, "{}, stdout: {stdout}, stderr: {}", self.0.status, self.0.stderr_text())
    }
}

/// What `iptables-save` shows, without comments and counters, and the tables in order: the kernel lists them by age.
pub(crate) fn saves(netns: &Netns) -> String {
    saves_of(netns, ["iptables-save", "ip6tables-save"])
}

/// [`saves`] by these two tools.
pub(crate) fn saves_of(netns: &Netns, tools: [&str; 2]) -> String {
    let family = |tool| {
        let save = rules(&netns.sh(tool));
        let mut tables: Vec<&str> = save.split_inclusive("COMMIT").map(str::trim_start).collect();
        tables.sort_unstable();
        tables.join("\n")
    };
    tools.map(family).join("\n")
}

/// Lines that only one of two texts has.
pub(crate) fn difference(left: &str, right: &str) -> Vec<String> {
    let count = |text: &str, line: &str| text.lines().filter(|other| *other == line).count();
    let only = |sign: &str, a: &str, b: &str| {
        let lines = a.lines().filter(|line| count(a, line) > count(b, line));
        lines.map(|line| format!("{sign} {line}")).collect::<Vec<_>>()
    };
    [only("+", left, right), only("-", right, left)].concat()
}

/// The lines of a save that say something, without counters.
pub(crate) fn rules(save: &str) -> String {
    let lines = save.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(" [").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Every firewall table of a namespace, of either backend.
pub(crate) fn tables(netns: &Netns) -> String {
    let legacy = |file: &str| netns.run(|| fs::read_to_string(file)).unwrap_or_default();
    let files = ["/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"];
    netns.sh("nft list tables") + &files.map(legacy).concat()
}

/// Policy rules, the routes of TPROXY's table, and the addresses of `lo`.
pub(crate) fn routes(netns: &Netns) -> String {
    let show = |line: &str| {
        let mut words = line.split(' ');
        let output = netns.output(std::process::Command::new(words.next().unwrap()).args(words));
        // A table that is not there is an error. An address is tentative for a moment after it was added.
        String::from_utf8_lossy(&output.stdout).replace(" tentative", "")
    };
    [
        "ip rule",
        "ip -6 rule",
        "ip route show table 133",
        "ip -6 route show table 133",
        "ip -o address show lo",
    ]
    .map(show)
    .concat()
}

/// What the kernel shows of rules that Istio's own tool made for an injected pod, in one family: the files were made
/// by `pkg/rules/tests/saves/regenerate`, without code of ours.
pub(crate) fn expected(v6: bool) -> String {
    let legacy = !Netns::new("probe").sh("iptables --version").contains("nf_tables");
    rules(match (legacy, v6) {
        (false, false) => include_str!("../../../pkg/rules/tests/saves/nft-4-injected.txt"),
        (false, true) => include_str!("../../../pkg/rules/tests/saves/nft-6-injected.txt"),
        (true, false) => include_str!("../../../pkg/rules/tests/saves/legacy-4-injected.txt"),
        (true, true) => include_str!("../../../pkg/rules/tests/saves/legacy-6-injected.txt"),
    })
}
