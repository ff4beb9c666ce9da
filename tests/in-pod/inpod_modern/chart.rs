//! The agent in place of Istio's, in the chart of Istio 1.30 with its `ambient` profile.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;

use kit::{
    Container, Daemon, Echo, InpodOptions, InpodZtunnel, Manifests, Node, NodeOptions, Pod, PodSandbox,
    TempDir,
};
use serde_json::{Value, json};

use crate::fixtures::ambient::{MESH, PLAIN, PORT, Peer, starting};
use crate::fixtures::inpod::wait_relayed;
use crate::fixtures::install::{self, InstallFixture, NETWORK};

/// Environment that the chart sets: its ConfigMap, and the DaemonSet's own variables.
const CHART: &[(&str, &str)] = &[
    ("CURRENT_AGENT_VERSION", "1.30.3"),
    ("AMBIENT_ENABLED", "true"),
    ("AMBIENT_ENABLEMENT_SELECTOR", SELECTOR),
    ("AMBIENT_DNS_CAPTURE", "true"),
    ("AMBIENT_IPV6", "true"),
    ("AMBIENT_RECONCILE_POD_RULES_ON_STARTUP", "true"),
    ("ENABLE_AMBIENT_DETECTION_RETRY", "false"),
    ("ISTIO_OWNED_CNI_CONFIG", "false"),
    ("CHAINED_CNI_PLUGIN", "true"),
    ("EXCLUDE_NAMESPACES", "kube-system"),
    ("REPAIR_ENABLED", "true"),
    ("REPAIR_LABEL_PODS", "false"),
    ("REPAIR_DELETE_PODS", "false"),
    ("REPAIR_REPAIR_PODS", "true"),
    ("REPAIR_INIT_CONTAINER_NAME", "istio-validation"),
    ("REPAIR_BROKEN_POD_LABEL_KEY", "cni.istio.io/uninitialized"),
    ("REPAIR_BROKEN_POD_LABEL_VALUE", "true"),
    ("NATIVE_NFTABLES", "false"),
    ("REPAIR_NODE_NAME", "node-1"),
    ("REPAIR_RUN_AS_DAEMON", "true"),
    ("REPAIR_SIDECAR_ANNOTATION", "sidecar.istio.io/status"),
    ("ALLOW_SWITCH_TO_HOST_NS", "true"),
    ("NODE_NAME", "node-1"),
    ("GOMEMLIMIT", "104857600"),
    ("GOMAXPROCS", "1"),
    ("POD_NAME", "istio-cni-node-x7k2p"),
    ("POD_NAMESPACE", "istio-system"),
];

const SELECTOR: &str = "- podSelector:
    matchLabels:
      istio.io/dataplane-mode: ambient
- podSelector:
    matchExpressions:
    - key: istio.io/dataplane-mode
      operator: NotIn
      values:
      - none
  namespaceSelector:
    matchLabels:
      istio.io/dataplane-mode: ambient
";

/// The keys of the entry that Istio 1.30's agent writes.
const KEYS: [&str; 12] = [
    "ambient_enabled",
    "cni_agent_run_dir",
    "dns",
    "enable_ambient_detection_retry",
    "enablement_selectors",
    "exclude_namespaces",
    "ipam",
    "name",
    "native_nftables",
    "plugin_log_level",
    "pod_namespace",
    "type",
];

/// The network of the node.
const FILE: &str = "10-kit.conflist";

struct Chart {
    daemon: Daemon,
    manifests: Manifests,
    node: Arc<Node>,
    sockets: TempDir,
    _proc: TempDir,
    _container: Container,
}

impl Chart {
    fn new() -> Self {
        let node = Arc::new(Node::new(NodeOptions::default()));
        let manifests = Manifests::new();
        manifests.put_namespace(MESH, &[("istio.io/dataplane-mode", "ambient")]);
        manifests.put_namespace("kube-system", &[("istio.io/dataplane-mode", "ambient")]);
        manifests.put_namespace(PLAIN, &[]);
        manifests.put_namespace("istio-system", &[]);
        node.write_conflist(FILE, &node.conflist(&[]));
        let (sockets, proc) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        fs::create_dir_all(proc.path().join("1/ns")).unwrap();
        let own = Path::new("/host/var/run/netns").join(node.netns().name());
        symlink(own, proc.path().join("1/ns/net")).unwrap();
        let of_tests = ["CNI_NETWORK_CONFIG", "CNI_NET_DIR", "REPAIR_ENABLED", "NODE_NAME", "LOG_LEVEL"];
        let container = of_tests.iter().fold(Container::new(&node), |made, name| made.without_env(name));
        let container = CHART.iter().fold(container, |made, (name, value)| made.with_env(name, value));
        let run_dir = node.run_dir();
        let container = container
            .with_mount(sockets.path(), "/var/run/ztunnel")
            .with_mount(proc.path(), "/host/proc")
            .with_mount(Path::new("/run/netns"), "/host/var/run/netns")
            // Not from the chart: objects come from files, and the node of these tests has its own directory for sockets.
            .with_env("POD_SOURCE", "dir:/manifests/objects")
            .with_mount(manifests.path().parent().unwrap(), "/manifests")
            .with_env("CNI_AGENT_RUN_DIR", run_dir.to_str().unwrap())
            .with_mount(&run_dir, run_dir.to_str().unwrap());
        fs::create_dir_all(container.root().join("run")).unwrap(); // the lock of the legacy tools
        let mut daemon = container.start_with(&["--log_output_level=info", "--log_as_json"], &[]);
        daemon.wait_until_ready();
        Self { daemon, manifests, node, sockets, _proc: proc, _container: container }
    }

    fn ztunnel(&self) -> InpodZtunnel {
        let socket = self.sockets.path().join("ztunnel.sock");
        let ztunnel = InpodZtunnel::start(&self.node, "ztunnel-a", &socket, InpodOptions::default());
        ztunnel.wait_for_snapshots(1);
        let mut manifest = ztunnel.manifest();
        // By this variable, which Istio's current chart still sets, the agent detects ztunnel's capture mode.
        manifest["spec"]["containers"][0]["env"] = json!([{"name": "INPOD_ENABLED", "value": "true"}]);
        self.manifests.put_pod(&manifest);
        ztunnel
    }

    /// The conflist as installed.
    fn conflist(&self) -> Value {
        serde_json::from_slice(&fs::read(self.node.net_d().join(FILE)).unwrap()).unwrap()
    }

    /// Starts a pod with the installed conflist.
    fn add(&self, pod: Pod) -> Result<PodSandbox, Box<kit::ChainError>> {
        self.manifests.put_pod(&starting(&pod));
        self.node.add_pod(&self.node.runtime(), &self.conflist(), pod)
    }

    fn is_ruled(sandbox: &PodSandbox) -> bool {
        let dump = crate::fixtures::ambient::dump_of(&sandbox.netns);
        dump.lines().any(|line| line.starts_with("-A OUTPUT ") && line.ends_with(" -j ISTIO_OUTPUT"))
    }
}

#[test]
fn with_the_charts_environment_our_plugin_works_by_the_entry_that_is_installed() {
    let mut chart = Chart::new();
    let conflist = chart.conflist();
    let entry = conflist["plugins"].as_array().unwrap().last().unwrap();
    let keys: BTreeSet<&str> = entry.as_object().unwrap().keys().map(String::as_str).collect();
    let ours = BTreeSet::from(["capabilities"]);
    assert_eq!(keys, KEYS.into_iter().collect::<BTreeSet<_>>().union(&ours).copied().collect(), "{entry}");
    assert_eq!((&entry["type"], &entry["plugin_log_level"]), (&"istio-cni".into(), &"info".into()));

    let ztunnel = chart.ztunnel();
    let _echo = Echo::tcp(chart.node.outside(), PORT);
    // The opt-out of 1.20 has no effect here.
    let opted_out = Pod::new(MESH, "one").annotation("ambient.istio.io/redirection", "disabled");
    let peer =
        Peer::new(chart.add(opted_out).unwrap_or_else(|error| panic!("{error}\n{}", chart.daemon.log())));
    for v6 in [false, true] {
        let outside = SocketAddr::new(chart.node.outside_ip(v6), PORT);
        assert_eq!(peer.tcp(outside).unwrap().peer.ip(), peer.ip(v6));
        wait_relayed(&ztunnel, peer.ip(v6), outside);
    }
    let others = [
        Pod::new(PLAIN, "two"),
        Pod::new("kube-system", "three"),
        Pod::new(MESH, "four").label("istio.io/dataplane-mode", "none"),
    ];
    for pod in others {
        let sandbox = chart.add(pod).unwrap_or_else(|error| panic!("{error}"));
        assert!(!Chart::is_ruled(&sandbox), "{}", sandbox.pod.name);
    }
    let labelled = Pod::new(PLAIN, "five").label("istio.io/dataplane-mode", "ambient");
    assert!(Chart::is_ruled(&chart.add(labelled).unwrap_or_else(|error| panic!("{error}"))));
    // The plugin reached the log socket.
    chart.daemon.wait_for("the plugin's lines", |daemon| {
        let log = daemon.log();
        let mut records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_default());
        records.any(|record| record["scope"] == "cni" && record["decision"] == "ambient-namespace")
    });
    assert_eq!(ztunnel.protocol_error(), None);
}

#[test]
fn istios_own_plugin_is_served_with_the_charts_mounts() {
    let chart = Chart::new();
    let mut ztunnel = chart.ztunnel();
    let socket = chart.node.run_dir().join("pluginevent.sock");
    let pod = Pod::new(MESH, "one");
    chart.manifests.put_pod(&starting(&pod));
    let sandbox = chart.node.pod(pod, &[]);
    assert_eq!(super::tell(&socket, &sandbox), (200, String::new()), "{}", chart.daemon.log());
    assert!(Chart::is_ruled(&sandbox));
    ztunnel.catch_up();
    assert!(ztunnel.workload(&sandbox.pod.uid).is_some());
    // The node's own namespace, by the path of another process.
    let event = super::event(MESH, "one", "/proc/1/ns/net", &sandbox.ips());
    let (status, why) = super::post(&socket, &event);
    let expected = "pod mesh/one: /proc/1/ns/net is the network namespace of the node, or the agent's own";
    assert_eq!((status, why.as_str()), (500, expected));
}

#[test]
fn the_credential_is_where_istio_has_it_now_and_nowhere_else() {
    let chart = Chart::new();
    let kubeconfig = chart.node.run_dir().join("istio-cni-kubeconfig");
    assert_eq!(fs::metadata(&kubeconfig).unwrap().permissions().mode() & 0o777, 0o600);
    let parsed: Value = serde_saphyr::from_str(&fs::read_to_string(&kubeconfig).unwrap()).unwrap();
    assert_eq!(parsed["users"][0]["user"]["token"], "a.token.of-nobody", "{parsed}");
    let Chart { daemon, node, _container: container, .. } = chart;
    drop(daemon);
    // An agent with a template, and then one without, as after a change of the chart.
    let former = node.net_d().join("ZZZ-istio-cni-kubeconfig");
    let mut daemon = container.start_with(&["--cni-network-config", kit::NETWORK_CONFIG], &[]);
    daemon.wait_until_ready();
    assert!(former.exists() && !kubeconfig.exists());
    drop(daemon);
    let mut daemon = container.start();
    daemon.wait_until_ready();
    assert!(!former.exists() && kubeconfig.exists());
    // Damage is repaired here, too.
    fs::write(&kubeconfig, "nothing").unwrap();
    daemon
        .wait_for("it is put right", |_| fs::read_to_string(&kubeconfig).is_ok_and(|text| text != "nothing"));
}

#[test]
fn files_of_our_own_have_istios_newer_modes_and_the_name_that_the_chart_gives() {
    let owned = [
        ("CNI_NETWORK_CONFIG", ""),
        ("ISTIO_OWNED_CNI_CONFIG", "true"),
        ("ISTIO_OWNED_CNI_CONF_FILENAME", "01-ours.conflist"),
    ];
    let mut fixture = InstallFixture::new(&owned);
    for (group_read, mode) in [("false", 0o600), ("true", 0o640), ("false", 0o600)] {
        fixture = fixture.again(&[("CNI_CONF_GROUP_READ", group_read)]);
        drop(fixture.start_ready());
        assert_eq!(fixture.files()["01-ours.conflist"].0, mode);
        assert_eq!(fixture.types("01-ours.conflist"), ["bridge", "istio-cni"]);
        assert_eq!(
            (fixture.files()[install::FILE].0, fixture.read(install::FILE)),
            (0o644, NETWORK.to_owned())
        );
    }
    let mut alone = InstallFixture::new(&[("CNI_NETWORK_CONFIG", ""), ("CHAINED_CNI_PLUGIN", "false")]);
    drop(alone.start_ready());
    let file = "YYY-istio-cni.conf";
    assert_eq!(alone.files()[file].0, 0o600);
    let text: Value = serde_json::from_str(&alone.read(file)).unwrap();
    assert_eq!((&text["cniVersion"], &text["type"]), (&json!("0.3.1"), &json!("istio-cni")));
    alone = alone.again(&[("CNI_CONF_GROUP_READ", "true")]);
    drop(alone.start_ready());
    assert_eq!(alone.files()[file].0, 0o640);
}
