//! In-pod capture with the real API server: which pods are annotated, and when.

use std::path::Path;

use kit::{ApiServer, InpodOptions, InpodZtunnel, Netns, Pod, PodSandbox};
use serde_json::{Value, json};

use crate::install_api::fixture::{ClusterFixture, our_rules};

const MODE: &str = "istio.io/dataplane-mode";
const MARK: &str = "ambient.istio.io/redirection";

/// A node of a real cluster, with all its objects in one namespace.
pub(crate) struct Cluster {
    pub(crate) fixture: ClusterFixture,
    pub(crate) sockets: kit::TempDir,
    proc: kit::TempDir,
}

impl Cluster {
    fn start(name: &'static str) -> Option<Self> {
        let mut rules = our_rules();
        let mark = json!({"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]});
        rules.as_array_mut().unwrap().push(mark);
        Self::allowed(name, &rules)
    }

    /// A cluster whose agent has these permissions.
    pub(crate) fn allowed(name: &'static str, rules: &Value) -> Option<Self> {
        let [sockets, proc] = [(); 2].map(|()| kit::TempDir::new().unwrap());
        let mut fixture = ClusterFixture::allowed(name, rules)?;
        for (key, value) in [
            ("AMBIENT_ENABLED", "true"),
            ("AMBIENT_CAPTURE", "in-pod"),
            ("ZTUNNEL_UDS_ADDRESS", "/ztunnel/ztunnel.sock"),
            ("HOST_PROC", "/hostproc"),
            ("SYSTEM_NAMESPACE", name),
            ("POD_NAME", "agent-x7k2p"),
        ] {
            fixture = fixture.with_env(key, value);
        }
        fixture.container.add_mount(sockets.path(), "/ztunnel");
        fixture.container.add_mount(proc.path(), "/hostproc");
        fixture.container.add_mount(Path::new("/run/netns"), "/var/run/netns");
        fixture.container.add_mount(&fixture.node.netns_dir(), "/netns");
        fixture = fixture.with_env("NETNS_DIR", "/netns");
        Some(Self { fixture, sockets, proc })
    }

    pub(crate) fn label(&self, mode: &str) {
        let labels = json!({"metadata": {"labels": {MODE: mode}}});
        self.fixture.api.admin().patch(&format!("/api/v1/namespaces/{}", self.fixture.name), &labels);
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.fixture.path("v1", "pods", name)
    }

    pub(crate) fn create(&self, name: &str) -> Pod {
        let mut pod = ApiServer::pod(self.fixture.name, name);
        pod["spec"]["nodeName"] = json!(self.fixture.name);
        pod["spec"]["serviceAccountName"] = json!("shop");
        Pod::from_object(&self.fixture.api.create_pod(&pod))
    }

    /// Reports the pod as running, as its kubelet does, and adds a process.
    pub(crate) fn runs(&self, sandbox: &PodSandbox, pid: u32) {
        self.runs_in(sandbox, &sandbox.netns, pid);
    }

    /// As [`Cluster::runs`], with a process in this namespace.
    pub(crate) fn runs_in(&self, sandbox: &PodSandbox, netns: &Netns, pid: u32) {
        let status = &sandbox.manifest()["status"];
        self.fixture.api.admin().patch_status(&self.path(&sandbox.pod.name), status);
        let directory = self.proc.path().join(pid.to_string());
        std::fs::create_dir_all(directory.join("ns")).unwrap();
        let cgroup = format!("0::/kubepods/burstable/pod{}/0123\n", sandbox.pod.uid);
        std::fs::write(directory.join("cgroup"), cgroup).unwrap();
        std::fs::write(directory.join("stat"), "1 (a) S 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 7 0\n").unwrap();
        let netns = Path::new("/var/run/netns").join(netns.name());
        std::os::unix::fs::symlink(netns, directory.join("ns/net")).unwrap();
    }

    pub(crate) fn mark_of(&self, name: &str) -> Value {
        self.fixture.api.admin().get(&self.path(name))["metadata"]["annotations"][MARK].clone()
    }

    fn add(&self, pod: Pod) -> Result<PodSandbox, Box<kit::ChainError>> {
        let plugin = json!({
            "type": "istio-cni",
            "log_level": "debug",
            "ambient_enabled": true,
            "agent_socket": self.fixture.node.run_dir().join("agent.sock"),
            "kubernetes": {"exclude_namespaces": ["kube-system"]},
        });
        let node = &self.fixture.node;
        node.add_pod(&node.runtime(), &node.conflist(&[plugin]), pod)
    }
}

/// Policy rule of a captured pod, as `ip rule` lists it.
const POLICY_RULE: &str = "32764:\tfrom all fwmark 0x111/0xfff lookup 100";

#[test]
fn a_pod_is_marked_pending_until_ztunnel_serves_it_and_not_at_all_when_it_left() {
    let Some(cluster) = Cluster::start("in-pod-marks") else { return };
    let mut daemon = cluster.fixture.daemon();
    daemon.wait_until_ready();
    let web = cluster.fixture.node.pod(cluster.create("web"), &[]);
    cluster.runs(&web, 11);
    cluster.label("ambient");
    kit::until("it waits for ztunnel", || cluster.mark_of("web") == json!("pending"));
    let socket = cluster.sockets.path().join("ztunnel.sock");
    let ztunnel = InpodZtunnel::start(&cluster.fixture.node, "ztunnel-a", &socket, InpodOptions::default());
    kit::until("it is captured", || cluster.mark_of("web") == json!("enabled"));
    assert_eq!(ztunnel.workload(&web.pod.uid).unwrap().state, kit::WorkloadState::Up);
    // A pod that starts through the plugin is annotated when the API knows its address.
    let new = cluster.add(cluster.create("new")).unwrap_or_else(|error| panic!("{error}"));
    assert!(cluster.mark_of("new").is_null());
    cluster.runs(&new, 12);
    kit::until("the new one is captured", || cluster.mark_of("new") == json!("enabled"));
    let told = ztunnel.workload(&new.pod.uid).unwrap();
    assert_eq!((told.name.as_str(), told.namespace.as_str()), ("new", "in-pod-marks"));
    assert_eq!(told.service_account, "shop");
    cluster.label("none");
    kit::until("the marks are gone", || {
        let left = cluster.mark_of("web").is_null() && cluster.mark_of("new").is_null();
        let ruled = [&web, &new].iter().any(|pod| kit::has_line(&pod.netns.sh("ip rule"), POLICY_RULE));
        assert!(!left || !ruled, "captured, and the mark is gone");
        left
    });
    assert_eq!(ztunnel.protocol_error(), None);
}

/// A pod with CAP_NET_ADMIN determines the amount of data to read. istiod makes clients use HBONE for a pod that is `enabled`, and
/// plaintext for others.
#[test]
fn a_pod_with_very_many_routes_stays_enabled_and_is_repaired() {
    let Some(cluster) = Cluster::start("in-pod-vast") else { return };
    let mut daemon = cluster.fixture.daemon();
    daemon.wait_until_ready();
    let socket = cluster.sockets.path().join("ztunnel.sock");
    let _ztunnel = InpodZtunnel::start(&cluster.fixture.node, "ztunnel-a", &socket, InpodOptions::default());
    let web = cluster.fixture.node.pod(cluster.create("web"), &[]);
    cluster.runs(&web, 11);
    cluster.label("ambient");
    kit::until("it is captured", || cluster.mark_of("web") == json!("enabled"));
    let routes: String = (0..120_000)
        .map(|i| format!("route add 10.{}.{}.{}/32 dev lo table 100\n", i >> 16, i >> 8 & 255, i & 255))
        .collect();
    let _ = web.netns.pipe("ip -batch -", &routes);
    web.netns.sh("nft flush chain ip nat OUTPUT");
    let repairs = "istio_cni_ambient_repairs_total{place=\"pod\"}";
    let limit = std::time::Duration::from_secs(60); // to list them, and until they are observed regularly
    kit::until_within(limit, "its rules are restored", || daemon.metric(repairs) == Some(1.0));
    assert_eq!(cluster.mark_of("web"), json!("enabled"), "{}", daemon.log());
    assert_eq!(
        daemon.log().matches("value=pending").count(),
        1,
        "before ztunnel served it: {}",
        daemon.log()
    );
}

/// istiod makes clients use plaintext for a pod that is not `enabled`; and a patch for each pod by each agent of a cluster would
/// load the API server.
#[test]
fn a_restart_that_changes_nothing_sends_no_patch() {
    const PODS: [&str; 4] = ["a", "b", "c", "d"];
    let Some(cluster) = Cluster::start("in-pod-restart") else { return };
    let mut daemon = cluster.fixture.daemon();
    daemon.wait_until_ready();
    let pods: Vec<PodSandbox> =
        PODS.iter().map(|name| cluster.fixture.node.pod(cluster.create(name), &[])).collect();
    for (pod, pid) in pods.iter().zip(11..) {
        cluster.runs(pod, pid);
    }
    cluster.label("ambient");
    let socket = cluster.sockets.path().join("ztunnel.sock");
    let options = InpodOptions::default();
    let mut ztunnel = InpodZtunnel::start(&cluster.fixture.node, "ztunnel-a", &socket, options);
    kit::until("they are captured", || PODS.iter().all(|name| cluster.mark_of(name) == json!("enabled")));
    let versions = || {
        let version = |name: &&str| {
            cluster.fixture.api.admin().get(&cluster.path(name))["metadata"]["resourceVersion"].clone()
        };
        PODS.iter().map(version).collect::<Vec<Value>>()
    };
    let before = versions();
    // A ztunnel that cannot connect to an agent retries after up to 15 s.
    drop(daemon);
    ztunnel.disconnect();
    let mut daemon = cluster.fixture.daemon();
    daemon.wait_until_ready();
    daemon.wait_for("pods are found", |daemon| {
        daemon.logged("initial netns discovery complete; opening the ZDS snapshot", "pods=4") > 0
    });
    let second = std::time::Duration::from_secs(1);
    kit::holds_for(second, "nobody writes to them before ztunnel is back", || versions() == before);
    ztunnel.connect();
    ztunnel.wait_for_snapshots(2);
    let captured = |daemon: &kit::Daemon, name: &str| {
        daemon.logged("pod captured", &format!("namespace=in-pod-restart pod={name}"))
    };
    daemon.wait_for("they are captured again", |daemon| PODS.iter().all(|name| captured(daemon, name) > 0));
    kit::holds_for(second, "nothing else writes to them", || versions() == before);
    // A reader at three in the morning has to find the fault in the warnings, and nothing else.
    let log = daemon.log();
    let mut loud = kit::log_lines(&log);
    loud.retain(|line| line.level == "warn" || line.level == "error");
    loud.retain(|line| line.field("config_map").is_none()); // here there is none
    assert_eq!(loud, [], "a normal start");
    assert_eq!(captured(&daemon, PODS[0]), 1, "said once: {log}");
    // A known fault is logged.
    drop(daemon);
    ztunnel.kill();
    let refused = InpodOptions { refuse: vec![pods[0].pod.uid.clone()], ..InpodOptions::default() };
    let _daemon = cluster.fixture.daemon();
    let _refusing = InpodZtunnel::start(&cluster.fixture.node, "ztunnel-b", &socket, refused);
    kit::until("one is refused, and another is not", || {
        (cluster.mark_of("a"), cluster.mark_of("b")) == (json!("pending"), json!("enabled"))
    });
}
