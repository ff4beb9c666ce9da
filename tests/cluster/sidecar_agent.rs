//! An agent without ambient mode: it answers the plugin, and the API server does where it cannot.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use kit::{Daemon, Netns, Pod, PodSandbox, istio};
use report::{Proof, ProofResult};
use serde_json::{Value, json};

use crate::explain_cli::{comes_to_say, explain, list, says, verify};
use crate::fixtures::plugin::{Call, V4, bare_pod, plugin_auth};
use crate::install_api::fixture::{ClusterFixture, our_rules};

/// Arguments that Istio's plugin derives from a pod without annotations about ports.
const EARLIER_PLUGIN: [&str; 14] = [
    "-p",
    "15001",
    "-z",
    "15006",
    "-u",
    "1337",
    "-m",
    "REDIRECT",
    "-i",
    "*",
    "-b",
    "*",
    "-d",
    "15090,15021,15020",
];
const REFUSED: &str = "no permission to watch the node's pods; getting each pod that starts";
/// Time that an ADD without any source waits for the next agent, plus an allowance for a busy machine.
const SUCCESSOR: Duration = Duration::from_secs(8);
const BUSY: Duration = Duration::from_secs(20);
/// Seconds that an agent waits for a pod that its watch has not shown yet.
const UNSEEN: f64 = 0.3;

/// A node with an agent, and its own namespace in the API server.
struct Cluster {
    fixture: ClusterFixture,
}

/// Verbs for pods in the manifest `istio-cni.yaml`.
fn get_only() -> Value {
    allowing(&json!(["get"]))
}

/// The rules of our manifests with these verbs for pods.
fn allowing(verbs: &Value) -> Value {
    let mut rules = our_rules();
    rules[0]["resources"] = json!(["nodes"]);
    let rules_of_pods = json!({"apiGroups": [""], "resources": ["pods"], "verbs": verbs});
    if !verbs.as_array().unwrap().is_empty() {
        rules.as_array_mut().unwrap().push(rules_of_pods);
    }
    rules
}

impl Cluster {
    fn allowed(name: &'static str, rules: &Value) -> Option<Self> {
        Some(Self { fixture: ClusterFixture::allowed(name, rules)? })
    }

    /// A cluster whose agent sees the pods' network namespaces.
    fn with_netns(name: &'static str, rules: &Value) -> Option<Self> {
        let mut cluster = Self::allowed(name, rules)?;
        let ClusterFixture { node, container, .. } = &mut cluster.fixture;
        container.add_mount(Path::new("/run/netns"), "/var/run/netns");
        container.add_mount(&node.netns_dir(), "/netns");
        cluster.fixture = cluster.fixture.with_env("NETNS_DIR", "/netns");
        Some(cluster)
    }

    /// Running pods without a record: one with all rules, one without any, and one without a sidecar.
    fn pods_from_before(&self) -> Vec<PodSandbox> {
        let pods = ["whole", "bare", "plain"].map(|name| {
            let mut object = istio::injected_pod(self.fixture.name, name);
            object["spec"]["nodeName"] = json!(self.fixture.name);
            if name == "plain" {
                object["metadata"]["annotations"] = json!({});
            }
            let object = self.fixture.api.create_pod(&object);
            let sandbox = self.fixture.node.pod(Pod::from_object(&object), &[]);
            let mut status = sandbox.manifest()["status"].clone();
            status["phase"] = json!("Running");
            self.fixture.api.admin().patch_status(&self.fixture.path("v1", "pods", name), &status);
            if name == "whole" {
                let mut redirect = Command::new(kit::binary("istio-iptables"));
                let done = sandbox.netns.output(redirect.args(EARLIER_PLUGIN));
                assert!(done.status.success(), "{done:?}");
            }
            sandbox
        });
        pods.into()
    }

    /// Creates an injected pod on this node; returns its UID.
    fn create(&self, name: &str) -> String {
        let mut pod = istio::injected_pod(self.fixture.name, name);
        pod["spec"]["nodeName"] = json!(self.fixture.name);
        self.fixture.api.create_pod(&pod)["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Creates an injected pod on this node, and waits until the agent answers without a request; returns its UID, and the number
    /// of the agent's requests until its watch had shown the pod.
    fn create_watched(&self, name: &str) -> (String, usize) {
        let uid = self.create(name);
        let requests = kit::until("the agent's watch shows the pod", || {
            let before = self.asked_by_agent(name);
            assert_eq!(self.ask(name, &uid)["pod"]["metadata"]["uid"], json!(uid));
            Some(before).filter(|before| self.asked_by_agent(name) == *before)
        });
        (uid, requests)
    }

    fn socket(&self) -> PathBuf {
        self.fixture.node.run_dir().join("agent.sock")
    }

    fn kubeconfig(&self) -> PathBuf {
        self.fixture.node.net_d().join("ZZZ-istio-cni-kubeconfig")
    }

    /// A call for a pod with the files that the agent installed, with paths on the node.
    fn call(&self, command: &str, netns: &Netns, name: &str, uid: &str) -> Call<'_> {
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={name};K8S_POD_UID={uid}",
            self.fixture.name
        );
        let mut call = Call::new(&self.fixture.node, command).netns(&netns.path()).env("CNI_ARGS", &args);
        call = call.with("agent_socket", json!(self.socket()));
        let named = self.fixture.entry()["kubernetes"]["kubeconfig"].is_string();
        if named { call.kubeconfig(&self.kubeconfig()) } else { call }
    }

    /// Runs an ADD that redirects.
    fn redirects(&self, name: &str, uid: &str) -> Duration {
        let netns = bare_pod(V4);
        let outcome = self.call("ADD", &netns, name, uid).run();
        outcome.ok();
        assert!(is_redirected(&netns), "{outcome}");
        outcome.wall()
    }

    /// Number of the plugin's requests to the API server.
    fn asked_by_plugin(&self) -> usize {
        self.fixture.requests().iter().filter(|request| request.user_agent.starts_with("istio-cni")).count()
    }

    /// Number of the agent's requests for one pod.
    fn asked_by_agent(&self, name: &str) -> usize {
        let path = format!("/pods/{name}");
        let is_get = |request: &&kit::Request| request.verb == "get" && request.uri.contains(&path);
        self.fixture.requests().iter().filter(is_get).count()
    }

    /// The agent's answer to a request about a pod.
    fn ask(&self, name: &str, uid: &str) -> Value {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        let request = json!({"verb": "add", "namespace": self.fixture.name, "name": name, "uid": uid, "container": "c"});
        writeln!(stream, "{request}").unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    fn wait_until_refused(daemon: &mut Daemon) {
        daemon.wait_for("it does not watch pods", |daemon| daemon.logged(REFUSED, "") > 0);
    }
}

fn is_redirected(netns: &Netns) -> bool {
    kit::plugin_rules::is_redirected(netns, "iptables-save")
}

#[test]
fn a_pod_that_the_agent_watches_is_redirected_without_any_request() {
    let Some(cluster) = Cluster::allowed("sidecar-watch", &our_rules()) else { return };
    let daemon = cluster.fixture.daemon();
    cluster.fixture.wait_until_watched("pods");
    for name in ["one", "two"] {
        let (uid, requests) = cluster.create_watched(name);
        cluster.redirects(name, &uid);
        let netns = bare_pod(V4);
        cluster.call("ADD", &netns, name, &uid).run().ok();
        cluster.call("CHECK", &netns, name, &uid).run().ok();
        assert_eq!(cluster.asked_by_agent(name), requests, "{}", daemon.log());
    }
    assert_eq!(cluster.asked_by_plugin(), 0, "{}", daemon.log());
    // Two ADDs of two pods each.
    for (metric, least) in [
        (r#"istio_cni_plugin_requests_total{response_code="200"}"#, 4.0),
        (r#"istio_cni_ambient_add_seconds_count{phase="total"}"#, 4.0),
    ] {
        assert!(daemon.metric(metric) >= Some(least), "{metric}: {:?}", daemon.metric(metric));
    }
    let watched = |request: &kit::Request| request.resource == "namespaces";
    assert!(!cluster.fixture.requests().iter().any(watched), "namespaces mean nothing without ambient mode");
    // Ambient mode is off, whatever a pod requests.
    let mut pod = istio::injected_pod(cluster.fixture.name, "labelled");
    pod["spec"]["nodeName"] = json!(cluster.fixture.name);
    pod["metadata"]["labels"]["istio.io/dataplane-mode"] = json!("ambient");
    let uid = cluster.fixture.api.create_pod(&pod)["metadata"]["uid"].as_str().unwrap().to_owned();
    let answer = cluster.ask("labelled", &uid);
    assert_eq!((&answer["enrolled"], &answer["error"]), (&json!(false), &Value::Null), "{answer}");
}

/// Pods without a record, as an earlier plugin leaves none, and their objects in the API server.
#[test]
fn pods_from_before_the_plugin_are_known_where_the_agent_may_watch_pods() {
    let Some(cluster) = Cluster::with_netns("sidecar-before", &our_rules()) else { return };
    let pods = cluster.pods_from_before();
    let mut daemon = cluster.fixture.daemon();
    cluster.fixture.wait_until_watched("pods");
    let container = &cluster.fixture.container;
    let title = |name: &str| format!("{}/{name}", cluster.fixture.name);
    let captured = ("captured-sidecar", "captured", "sidecar", 0);
    comes_to_say(container, &title("whole"), captured);
    let bare = ("sidecar-rules-missing", "bypassing", "sidecar", 1);
    says(container, &title("bare"), bare);
    let plain = ("not-injected", "outside", "-", 0);
    says(container, &title("plain"), plain);
    assert_eq!(explain(container, &title("nobody")).code, "no-such-pod");
    assert_eq!(list(container, &["--bypassing"]), (1, vec![title("bare")]));
    let (status, text) = verify(container);
    let row = "pod         sidecar-before/bare  no rule redirects IPv4 or IPv6 outbound traffic";
    assert_eq!((status, text), (1, format!("DIFFERENCE  OF                   WHAT\n{row}\n")));
    prove_each(&cluster, &pods);
    daemon.wait_for("they are counted", |daemon| {
        let number = |state| daemon.metric(&format!("istio_cni_sidecar_pods{{state=\"{state}\"}}"));
        (number("captured"), number("bypassing"), number("unknown")) == (Some(1.0), Some(1.0), Some(0.0))
    });
    drop(pods);
}

/// Asserts that packets have the same result as the rules.
fn prove_each(cluster: &Cluster, pods: &[PodSandbox]) {
    let prove = |name: &str| {
        let pod = format!("{}/{name}", cluster.fixture.name);
        let output = cluster.fixture.container.exec(&["prove", &pod, "-o", "json"]);
        let proof: Proof = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let results: Vec<_> = proof.paths.iter().map(|path| (path.name.clone(), path.result)).collect();
        (output.status.code().unwrap(), results, proof)
    };
    let both = |application, proxy| {
        let results = [
            ("application-tcp", application),
            ("proxy-tcp", proxy),
            ("inbound-tcp", application),
            ("inbound-excluded", ProofResult::Proven),
        ];
        results.map(|(name, result)| (name.to_owned(), result)).to_vec()
    };
    let (status, results, proof) = prove("whole");
    assert_eq!((status, results), (2, both(ProofResult::Held, ProofResult::Proven)), "{proof:#?}");
    let listen = |port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
    let listeners = pods[0].netns.run(|| [15001, 15006].map(listen));
    let (status, results, proof) = prove("whole");
    assert_eq!((status, results), (0, both(ProofResult::Proven, ProofResult::Proven)), "{proof:#?}");
    for listener in listeners {
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "the proxy sees no connection");
    }
    let (status, results, proof) = prove("bare");
    assert_eq!((status, results), (1, both(ProofResult::Bypasses, ProofResult::Proven)), "{proof:#?}");
    let (status, results, proof) = prove("plain");
    assert_eq!((status, results), (2, Vec::new()), "{proof:#?}");
    assert_eq!(prove("nobody").0, 3);
}

/// An ADD fails, another program removes our entry, and the kubelet's next attempt succeeds without the plugin. And a record of an
/// earlier pod with the same name.
#[test]
fn a_record_of_another_add_hides_no_pod_that_runs_without_rules() {
    let Some(cluster) = Cluster::with_netns("sidecar-retried", &our_rules()) else { return };
    let pods = cluster.pods_from_before();
    let _daemon = cluster.fixture.daemon();
    cluster.fixture.wait_until_watched("pods");
    let sandbox = |name: &str| pods.iter().find(|pod| pod.pod.name == name).unwrap();
    let gone = bare_pod(V4);
    let mut failed = cluster.call("ADD", &gone, "bare", &sandbox("bare").pod.uid);
    let _ = failed.conf.as_object_mut().unwrap().remove("agent_socket");
    let failed = failed.with("log_uds_address", json!(cluster.fixture.node.run_dir().join("log.sock")));
    let _ = failed.kubernetes("kubeconfig", json!("/nowhere")).run().refused();
    let former = json!({"namespace": cluster.fixture.name, "name": "whole", "uid": "a-former-one", "container": "former",
        "netns": "/var/run/netns/former", "ips": ["10.9.9.9"], "at": "2026-01-01T00:00:00Z", "decision": "not-injected"});
    std::fs::write(cluster.fixture.node.run_dir().join("pods/former"), former.to_string()).unwrap();
    let container = &cluster.fixture.container;
    let title = |name: &str| format!("{}/{name}", cluster.fixture.name);
    let bare = ("sidecar-rules-missing", "bypassing", "sidecar", 1);
    let answer = comes_to_say(container, &title("bare"), bare);
    let last = |text: &String| text.starts_with("Last error: its last ADD failed at ");
    assert!(answer.details.iter().any(last), "{answer}");
    assert_eq!(list(container, &["--bypassing"]), (1, vec![title("bare")]));
    says(container, &title("whole"), ("captured-sidecar", "captured", "sidecar", 0));
    assert_eq!(list(container, &["--state", "pending"]).1, Vec::<String>::new());
    assert_eq!(verify(container).0, 1);
}

/// Charts up to 1.20 name the namespaces in the plugin's entry alone.
#[test]
fn pods_from_before_the_plugin_are_outside_where_its_entry_excludes_their_namespace() {
    let Some(mut cluster) = Cluster::with_netns("sidecar-excluded", &our_rules()) else { return };
    let template = kit::NETWORK_CONFIG.replace("kube-system", cluster.fixture.name);
    cluster.fixture = cluster.fixture.with_env("CNI_NETWORK_CONFIG", &template);
    let pods = cluster.pods_from_before();
    let _daemon = cluster.fixture.daemon();
    let outside = ("excluded-namespace", "outside", "-", 0);
    let container = &cluster.fixture.container;
    comes_to_say(container, &format!("{}/bare", cluster.fixture.name), outside);
    assert_eq!(list(container, &["--bypassing"]), (0, Vec::new()));
    drop(pods);
}

/// Pods without a source are unknown.
#[test]
fn pods_from_before_the_plugin_are_unknown_where_the_agent_may_not_watch_pods() {
    let Some(cluster) = Cluster::with_netns("sidecar-unseen", &get_only()) else { return };
    let pods = cluster.pods_from_before();
    let mut daemon = cluster.fixture.daemon();
    Cluster::wait_until_refused(&mut daemon);
    let container = &cluster.fixture.container;
    assert_eq!(explain(container, &format!("{}/bare", cluster.fixture.name)).code, "no-record");
    let (status, text) = verify(container);
    let unseen = "3 network namespaces in /netns have no record of an ADD: only the API server knows whether their pods belong \
                  to the mesh";
    let line = format!("Unknown: Pods that started before the plugin was installed: {unseen}.");
    assert!(status == 2 && kit::has_line(&text, &line), "{status}: {text}");
    drop(pods);
}

/// Without a UID the known pod may be a predecessor of the same name.
#[test]
fn the_api_server_has_the_last_word_on_a_pod_without_a_uid() {
    let Some(cluster) = Cluster::allowed("sidecar-no-uid", &our_rules()) else { return };
    let _daemon = cluster.fixture.daemon();
    cluster.fixture.wait_until_watched("pods");
    let (uid, requests) = cluster.create_watched("one");
    assert_eq!(cluster.ask("one", "")["pod"]["metadata"]["uid"], json!(uid));
    assert_eq!(cluster.asked_by_agent("one"), requests + 1);
}

#[test]
fn where_the_role_grants_only_get_the_agent_gets_each_pod_at_once() {
    let Some(cluster) = Cluster::allowed("sidecar-get", &get_only()) else { return };
    let mut daemon = cluster.fixture.daemon();
    Cluster::wait_until_refused(&mut daemon);
    let waited = |daemon: &Daemon| {
        daemon.metric(r#"istio_cni_ambient_add_seconds_sum{phase="facts"}"#).unwrap_or_default()
    };
    let mut fastest = f64::MAX;
    for name in ["one", "two", "three", "four"] {
        let (uid, before) = (cluster.create(name), waited(&daemon));
        cluster.redirects(name, &uid);
        fastest = fastest.min(waited(&daemon) - before);
        assert_eq!(cluster.asked_by_agent(name), 1, "{}", daemon.log());
    }
    assert!(fastest < UNSEEN, "there is no watch to wait for: {fastest} s");
    assert_eq!(cluster.asked_by_plugin(), 0, "{}", daemon.log());
    assert_eq!(daemon.logged(REFUSED, ""), 1, "{}", daemon.log());
    let refused = |request: &&kit::Request| {
        request.resource == "pods" && ["list", "watch"].contains(&request.verb.as_str())
    };
    assert_eq!(cluster.fixture.requests().iter().filter(refused).count(), 1, "{}", daemon.log());
    assert!(daemon.is_ready());
}

#[test]
fn while_no_agent_runs_the_plugin_asks_the_api_server_at_once() {
    let Some(cluster) = Cluster::allowed("sidecar-killed", &our_rules()) else { return };
    cluster.fixture.daemon().kill();
    let uid = cluster.create("one");
    let wall = cluster.redirects("one", &uid);
    assert!(wall < SUCCESSOR, "{wall:?}");
    assert_eq!(cluster.asked_by_plugin(), 1);
}

#[test]
fn an_agent_that_may_not_get_pods_leaves_it_to_the_plugins_own_credential() {
    let Some(cluster) = Cluster::allowed("sidecar-forbidden", &allowing(&json!([]))) else { return };
    let mut daemon = cluster.fixture.daemon();
    Cluster::wait_until_refused(&mut daemon);
    let auth = plugin_auth(cluster.fixture.api);
    let kubeconfig =
        istio::write_file(&cluster.fixture.node, "other", &cluster.fixture.api.kubeconfig(&auth));
    let (uid, netns) = (cluster.create("one"), bare_pod(V4));
    let outcome = cluster.call("ADD", &netns, "one", &uid).kubeconfig(&kubeconfig).run();
    outcome.ok();
    assert!(is_redirected(&netns), "{outcome}");
    let forbidden = "pods \"one\" is forbidden: User \"system:serviceaccount:sidecar-forbidden:istio-cni\" cannot get resource \
                     \"pods\" in API group \"\" in the namespace \"sidecar-forbidden\"";
    let failed = format!("the node agent failed (cannot get pod sidecar-forbidden/one: {forbidden} (403))");
    assert!(outcome.has_logged(&format!("{failed}; asked the API server")), "{outcome}");
    assert_eq!(cluster.asked_by_agent("one"), 1, "{}", daemon.log());

    // The plugin's credential in the kubeconfig is the agent's own: no source is left.
    let netns = bare_pod(V4);
    let refusal = cluster.call("ADD", &netns, "one", &uid).run().refused();
    assert_eq!(refusal.code, 11);
    let expected = format!(
        "cannot determine whether pod sidecar-forbidden/one belongs to the mesh: {failed}, and cannot GET pods \
         sidecar-forbidden/one at the API server https://10.96.0.1:6443: it forbids this (403): {forbidden}"
    );
    assert_eq!(refusal.cause(), expected);
    assert!(daemon.is_ready(), "the installer needs none of this");
}

#[test]
fn without_a_kubeconfig_the_agent_is_the_only_source_and_is_waited_for() {
    let Some(cluster) = Cluster::allowed("sidecar-no-file", &get_only()) else { return };
    let cluster = Cluster { fixture: cluster.fixture.with_env("WRITE_KUBECONFIG", "false") };
    let daemon = cluster.fixture.daemon();
    let uid = cluster.create("one");
    cluster.redirects("one", &uid);
    assert!(!cluster.kubeconfig().exists());
    daemon.kill();

    let netns = bare_pod(V4);
    let outcome = cluster.call("ADD", &netns, "one", &uid).run();
    let refusal = outcome.refused();
    assert_eq!(refusal.code, 11, "{outcome}");
    for words in ["the node agent is unavailable (nothing is listening on", "check whether the node agent"] {
        assert!(refusal.msg.contains(words), "{outcome}");
    }
    assert!(outcome.wall() >= SUCCESSOR && outcome.wall() < SUCCESSOR + BUSY, "{outcome}");
    assert!(kit::plugin_rules::is_bare(&netns, "iptables-save"));
    // Neither needs a source.
    let excluded = cluster.call("ADD", &netns, "one", &uid);
    excluded.kubernetes("exclude_namespaces", json!([cluster.fixture.name])).run().ok();
    cluster.call("ADD", &netns, "one", &uid).annotations(&json!({})).run().ok();
    let wall = cluster.call("DEL", &netns, "one", &uid).run().wall();
    assert!(wall < SUCCESSOR, "{wall:?}");

    thread::scope(|scope| {
        let waiting = scope.spawn(|| cluster.redirects("one", &uid));
        let _daemon = cluster.fixture.daemon();
        waiting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert_eq!(cluster.asked_by_plugin(), 0);
}

/// The container has no directory of the node for the socket, or cannot write there.
#[test]
fn an_agent_that_cannot_serve_the_socket_warns_once_and_the_plugin_asks_the_api_server() {
    let Some(cluster) = Cluster::allowed("sidecar-no-sock", &our_rules()) else { return };
    let cluster = Cluster { fixture: cluster.fixture.with_env("AGENT_SOCKET", "/proc/agent.sock") };
    let daemon = cluster.fixture.daemon();
    let warned = "cannot serve the plugin, which asks the API server instead";
    assert_eq!(daemon.logged(warned, "/proc/agent.sock"), 1, "{}", daemon.log());
    let uid = cluster.create("one");
    cluster.redirects("one", &uid);
    assert_eq!(cluster.asked_by_plugin(), 1);
}

/// An agent that is replaced removes nothing that its successor serves, and an agent that uninstalls leaves nothing.
#[test]
fn the_socket_goes_with_an_uninstallation() {
    let Some(cluster) = Cluster::allowed("sidecar-removed", &our_rules()) else { return };
    let cluster = Cluster { fixture: cluster.fixture.with_env("CLEANUP_ON_EXIT", "always") };
    let daemon = cluster.fixture.daemon();
    kit::until("the socket", || cluster.socket().exists());
    let (status, log) = daemon.terminate();
    assert!(status.success(), "{log}");
    assert!(!cluster.socket().exists(), "{log}");
}
