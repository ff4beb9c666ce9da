//! The agent with the real API server: watches, requests and patches.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use kit::{ApiServer, Daemon, Echo, Pod, PodSandbox, Ztunnel, ZtunnelOptions, istio};
use serde_json::{Value, json};

use crate::debug_state::ask;
use crate::fixtures::ambient::PORT;
use crate::install_api::fixture::{ClusterFixture, DAEMON_SET, our_rules};

const MODE: &str = "istio.io/dataplane-mode";
const MARK: &str = "ambient.istio.io/redirection";

/// A node of a real cluster, with all its objects in one namespace.
pub(crate) struct Cluster {
    pub(crate) fixture: ClusterFixture,
    config: kit::TempDir,
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
        let config = kit::TempDir::new().unwrap();
        let mut fixture = ClusterFixture::allowed(name, rules)?;
        for (key, value) in
            [("AMBIENT_ENABLED", "true"), ("SYSTEM_NAMESPACE", name), ("POD_NAME", "agent-x7k2p")]
        {
            fixture = fixture.with_env(key, value);
        }
        fixture.container.add_mount(config.path(), "/etc/ambient-config");
        fixture.container.add_mount(Path::new("/run/netns"), "/var/run/netns");
        fixture.container.add_mount(&fixture.node.netns_dir(), "/netns");
        fixture = fixture.with_env("NETNS_DIR", "/netns");
        Some(Self { fixture, config })
    }

    pub(crate) fn label(&self, mode: &str) {
        let labels = json!({"metadata": {"labels": {MODE: mode}}});
        self.fixture.api.admin().patch(&format!("/api/v1/namespaces/{}", self.fixture.name), &labels);
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.fixture.path("v1", "pods", name)
    }

    /// Creates a pod on this node, or an unscheduled one.
    pub(crate) fn create(&self, name: &str, bound: bool, change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = ApiServer::pod(self.fixture.name, name);
        if bound {
            pod["spec"]["nodeName"] = json!(self.fixture.name);
        }
        change(&mut pod);
        Pod::from_object(&self.fixture.api.create_pod(&pod))
    }

    /// Reports the pod as running, as its kubelet does.
    pub(crate) fn tell(&self, name: &str, manifest: &Value) {
        self.fixture.api.admin().patch_status(&self.path(name), &manifest["status"]);
    }

    pub(crate) fn mark_of(&self, name: &str) -> Value {
        self.fixture.api.admin().get(&self.path(name))["metadata"]["annotations"][MARK].clone()
    }

    pub(crate) fn ztunnel(&self, daemon: &mut Daemon) -> Ztunnel {
        let pod = self.create("ztunnel-a", true, |pod| {
            pod["metadata"]["labels"]["app"] = json!("ztunnel");
            pod["spec"]["serviceAccountName"] = json!("ztunnel");
        });
        let ztunnel = Ztunnel::start_in(self.fixture.node.pod(pod, &[]), ZtunnelOptions::default());
        self.tell("ztunnel-a", &ztunnel.pod_manifest(true, "2026-01-01T00:00:00Z"));
        daemon.wait_for("the ztunnel is used", |daemon| {
            daemon.logged(crate::fixtures::ambient::SWITCHED, "") > 0 && daemon.is_ready()
        });
        ztunnel
    }

    fn add(&self, pod: Pod) -> Result<PodSandbox, Box<kit::ChainError>> {
        let plugin = json!({
            "type": "istio-cni",
            "log_level": "debug",
            "ambient_enabled": true,
            "agent_socket": self.fixture.node.run_dir().join("agent.sock"),
            "ambient_config": self.config.path().join("config.json"),
            "kubernetes": {"exclude_namespaces": ["kube-system"]},
        });
        let node = &self.fixture.node;
        node.add_pod(&node.runtime(), &node.conflist(&[plugin]), pod)
    }

    pub(crate) fn started(&self, pod: Pod) -> PodSandbox {
        self.add(pod).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Whether both families' sets have the pod: each changes at a different moment.
    pub(crate) fn is_enrolled(&self, sandbox: &PodSandbox) -> bool {
        kit::until("both families are alike", || {
            let sets = self.fixture.node.netns().sh("ipset save");
            let entry = |ip: &IpAddr| {
                let set = if ip.is_ipv6() { "ztunnel-pods-ips-v6" } else { "ztunnel-pods-ips" };
                format!("add {set} {ip} comment \"{}\"", sandbox.pod.uid)
            };
            let has = |ip: &IpAddr| kit::has_line(&sets, &entry(ip));
            let all: Vec<bool> = sandbox.ips().iter().map(has).collect();
            all.iter().all(|one| *one == all[0]).then_some(all[0])
        })
    }

    fn is_captured(&self, sandbox: &PodSandbox) -> bool {
        let target = (self.fixture.node.outside_ip(false), PORT).into();
        let seen = kit::connect(&sandbox.netns, kit::Proto::Tcp, target).unwrap();
        (16000..30000).contains(&seen.peer.port())
    }

    fn asked(&self, what: &str) -> usize {
        self.fixture.requests().iter().filter(|one| one.verb == "get" && one.uri.contains(what)).count()
    }
}

#[test]
fn pods_are_followed_and_marked_when_the_kernel_captures_them() {
    let Some(cluster) = Cluster::start("ambient-marks") else { return };
    let mut daemon = cluster.fixture.daemon();
    let _outside = Echo::tcp(cluster.fixture.node.outside(), PORT);
    let _ztunnel = cluster.ztunnel(&mut daemon);
    // It runs before it is labelled.
    let web = cluster.started(cluster.create("web", true, |_| {}));
    cluster.tell("web", &web.manifest());
    let out = cluster.started(cluster.create("out", true, |pod| {
        pod["metadata"]["annotations"][MARK] = json!("disabled");
    }));
    cluster.tell("out", &out.manifest());
    assert!(!cluster.is_captured(&web) && cluster.mark_of("web").is_null());
    for round in 0..3 {
        cluster.label("ambient");
        kit::until("the mark", || {
            let marked = cluster.mark_of("web") == json!("enabled");
            assert!(!marked || cluster.is_enrolled(&web), "marked, and not captured");
            marked
        });
        assert!(cluster.is_captured(&web), "{round}");
        cluster.label("none");
        kit::until("the mark is gone", || {
            let marked = cluster.mark_of("web") == json!("enabled");
            assert!(marked || !cluster.is_enrolled(&web), "captured, and the mark is gone");
            !marked
        });
        assert!(!cluster.is_captured(&web), "{round}");
    }
    cluster.label("ambient");
    kit::until("the mark again", || cluster.mark_of("web") == json!("enabled"));
    // A new pod: captured immediately, and annotated when the API knows its addresses.
    let new = cluster.started(cluster.create("new", true, |_| {}));
    assert!(cluster.is_enrolled(&new) && cluster.is_captured(&new));
    cluster.tell("new", &new.manifest());
    kit::until("the mark of the new one", || cluster.mark_of("new") == json!("enabled"));
    assert_eq!(cluster.mark_of("out"), json!("disabled"));
    assert!(!cluster.is_enrolled(&out) && !cluster.is_captured(&out));
    // The user overwrites the annotation.
    let word = |word: Value| json!({"metadata": {"annotations": {MARK: word}}});
    cluster.fixture.api.admin().patch(&cluster.path("web"), &word(json!("disabled")));
    kit::until("it leaves", || !cluster.is_enrolled(&web));
    cluster.fixture.api.admin().patch(&cluster.path("out"), &word(Value::Null));
    kit::until("it joins", || cluster.is_enrolled(&out));
    kit::until("its mark", || cluster.mark_of("out") == json!("enabled"));
    assert_eq!(cluster.mark_of("web"), json!("disabled"));
    // An annotation that is removed is restored.
    cluster.fixture.api.admin().patch(&cluster.path("new"), &word(Value::Null));
    kit::until("the mark of the new one again", || cluster.mark_of("new") == json!("enabled"));
    let log = daemon.log();
    assert!(!kit::has_logged(&log, "cannot annotate the pod", &[]), "{log}");
    // It does not know pods on other nodes.
    let watches = cluster.fixture.requests();
    let of_pods: Vec<_> =
        watches.iter().filter(|one| one.verb == "watch" && one.resource == "pods").collect();
    assert!(
        !of_pods.is_empty()
            && of_pods
                .iter()
                .all(|one| one.parameter("fieldSelector").as_deref() == Some("spec.nodeName=ambient-marks")),
        "{of_pods:?}"
    );
}

#[test]
fn a_pod_that_is_not_known_yet_is_waited_for_or_asked_for() {
    let Some(cluster) = Cluster::start("ambient-unseen") else { return };
    let mut daemon = cluster.fixture.daemon();
    let _outside = Echo::tcp(cluster.fixture.node.outside(), PORT);
    let _ztunnel = cluster.ztunnel(&mut daemon);
    cluster.label("ambient");
    kit::until("the label is known", || {
        let pod = cluster.started(cluster.create("probe", true, |_| {}));
        cluster.fixture.api.admin().delete(&cluster.path("probe"));
        cluster.is_enrolled(&pod)
    });
    // Shown by the watch: no request, however young the pod is. Only a watch that takes longer, as on a busy machine, is not waited
    // for.
    const WAITED: &str = "istio_cni_ambient_add_seconds_sum{phase=\"facts\"}";
    let mut unasked = false;
    for number in 0..30 {
        let before = daemon.metric(WAITED).unwrap();
        let quick = cluster.started(cluster.create(&format!("quick-{number}"), true, |_| {}));
        let waited = daemon.metric(WAITED).unwrap() - before;
        assert!(cluster.is_enrolled(&quick));
        match cluster.asked(&format!("/pods/quick-{number}")) {
            0 => {
                unasked = true;
                break;
            }
            asked => {
                assert!(asked == 1 && waited >= 0.3, "{asked} requests after {waited} s\n{}", daemon.log());
            }
        }
    }
    assert!(unasked, "{}", daemon.log());
    // Never shown by it.
    let before = daemon.metric(WAITED).unwrap();
    let unseen = cluster.started(cluster.create("unseen", false, |_| {}));
    let waited = daemon.metric(WAITED).unwrap() - before;
    assert!(cluster.is_enrolled(&unseen) && cluster.is_captured(&unseen));
    assert!((0.3..10.0).contains(&waited), "{waited} s\n{}", daemon.log());
    assert_eq!(cluster.asked("/pods/unseen"), 1);
    let sidecar =
        cluster.create("sidecar", false, |pod| *pod = istio::injected_pod(cluster.fixture.name, "sidecar"));
    let sidecar = cluster.started(sidecar);
    let rules = sidecar.netns.sh("iptables-save");
    let redirect = "-A ISTIO_REDIRECT -p tcp -j REDIRECT --to-ports 15001";
    assert!(kit::has_line(&rules, redirect), "{rules}\n{}", daemon.log());
    assert!(!cluster.is_enrolled(&sidecar), "{}", daemon.log());
    // A pass over all pods does not make it a member either, while the watch has not shown it.
    let later = cluster.started(cluster.create("later", true, |_| {}));
    assert!(cluster.is_enrolled(&later));
    let leaves = json!({"metadata": {"labels": {MODE: "none"}}});
    cluster.fixture.api.admin().patch(&cluster.path("later"), &leaves);
    kit::until("it leaves", || !cluster.is_enrolled(&later));
    assert!(!cluster.is_enrolled(&sidecar), "{}", daemon.log());
    // A pod that does not exist.
    let error = cluster.add(Pod::new(cluster.fixture.name, "nobody")).unwrap_err();
    assert_eq!(error.code(), Some(11), "{error}");
    let pod = format!("{}/nobody", cluster.fixture.name);
    let why = format!("cannot get pod {pod}: pods \"nobody\" not found (404)");
    assert_eq!(error.error["msg"], format!("the node agent failed to handle pod {pod}: {why}"));
}

#[test]
fn while_the_api_server_is_away_what_is_known_goes_on() {
    let Some(cluster) = Cluster::start("ambient-outage") else { return };
    let mut daemon = cluster.fixture.daemon();
    let _outside = Echo::tcp(cluster.fixture.node.outside(), PORT);
    let _ztunnel = cluster.ztunnel(&mut daemon);
    cluster.label("ambient");
    let web = cluster.started(cluster.create("web", true, |_| {}));
    cluster.tell("web", &web.manifest());
    kit::until("the mark", || cluster.mark_of("web") == json!("enabled"));
    let known = cluster.create("known", true, |_| {});
    let gone = cluster.started(cluster.create("gone", true, |_| {}));
    assert!(cluster.is_enrolled(&gone));
    let marker = cluster.started(cluster.create("marker", true, |_| {}));
    kit::until("the watch has shown it", || {
        let (_, state) = ask(&cluster.fixture.node.run_dir().join("debug.sock"), "/debug/state");
        let state: Value = serde_json::from_str(&state).unwrap_or_default();
        state["pods"].as_array().into_iter().flatten().any(|pod| pod["name"] == "known")
    });
    cluster.fixture.cut_off("REJECT --reject-with tcp-reset");
    let known = cluster.started(known);
    let mut gone = gone;
    gone.delete().unwrap();
    assert!(cluster.is_enrolled(&known) && cluster.is_captured(&known) && cluster.is_captured(&web));
    assert!(!cluster.is_enrolled(&gone));
    assert!(daemon.is_ready());
    web.check().unwrap_or_else(|error| panic!("{error}"));
    let began = Instant::now();
    let error = cluster.add(Pod::new(cluster.fixture.name, "unknown")).unwrap_err();
    assert_eq!(error.code(), Some(11), "{error}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    cluster.fixture.connect();
    cluster.tell("known", &known.manifest());
    kit::until("the mark of what was started meanwhile", || cluster.mark_of("known") == json!("enabled"));
    assert!(cluster.is_captured(&known) && cluster.is_captured(&marker));
}

#[test]
fn when_the_daemon_set_takes_no_part_in_ambient_mode_any_more_the_node_is_let_go() {
    let Some(cluster) = Cluster::start("ambient-off") else { return };
    cluster.label("ambient");
    cluster.fixture.create_daemon_set(DAEMON_SET);
    let mut daemon = cluster.fixture.daemon_that_knows(DAEMON_SET);
    let _ztunnel = cluster.ztunnel(&mut daemon);
    let pod = cluster.create("web", true, |_| {});
    let sandbox = cluster.started(pod);
    cluster.tell("web", &sandbox.manifest());
    kit::until("it is marked", || cluster.mark_of("web") == json!("enabled"));
    let netns = cluster.fixture.node.netns();
    assert!(kit::has_line(&netns.sh("ip rule"), "105:\tfrom all fwmark 0x100/0x100 lookup 101"));
    // An upgrade leaves everything; here the operator disables it instead.
    let off = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "install-cni", "image": "install-cni", "env": [{"name": "AMBIENT_ENABLED", "value": "false"}]}]}}}});
    cluster.fixture.api.admin().patch(&cluster.fixture.daemon_set(), &off);
    let (status, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    assert!(
        kit::logged(&log, "the plugin stays installed", "still selects this node, without ambient mode") == 1,
        "{log}"
    );
    assert!(cluster.fixture.is_installed(), "the plugin stays: {log}");
    let left = [netns.sh("ip rule"), netns.sh("ipset save"), netns.sh("ip link")].concat();
    for ours in ["lookup 101", "ztunnel-pods-ips", "istioin"] {
        assert!(!left.contains(ours), "{ours}: {left}");
    }
    kit::until("its mark is gone", || cluster.mark_of("web") == Value::Null);
}
