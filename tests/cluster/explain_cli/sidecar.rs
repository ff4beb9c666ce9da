//! Pods with a sidecar: with ambient mode, and without it, where only the plugin's records have data.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use kit::{Container, Daemon, FakeApi, FakeReply, Node, NodeOptions, Pod, PodSandbox, istio};
use serde_json::{Value, json};

use super::{Expected, assert_words, call, comes_to_say, comes_to_say_after, list, says, verify};
use crate::debug_state::injected;
use crate::fixtures::ambient::{Ambient, PLAIN, starting};
use crate::fixtures::plugin::{fake_api, token};
use crate::install_manifests::image;

const CAPTURED: Expected = ("captured-sidecar", "captured", "sidecar", 0);
const BROKEN: Expected = ("sidecar-rules-missing", "bypassing", "sidecar", 1);

/// The agent's own pod, of which the plugin has no record.
const AGENT: &str = "istio-cni-node-x7k2p";

/// Changes the object of an injected pod.
type Change = fn(Value) -> Value;

/// Reasons why the plugin does not redirect a pod: its name, the change, and the code.
const LEFT_ALONE: [(&str, Change, &str); 5] = [
    ("init", with_init, "istio-init"),
    ("envoyless", |pod| istio::with_proxy_env(pod, "DISABLE_ENVOY", "true"), "envoy-disabled"),
    ("unwilling", unwilling, "injection-refused"),
    ("gateway", gateway, "not-a-sidecar"),
    ("stripped", stripped, "no-proxy"),
];

fn with_init(mut pod: Value) -> Value {
    pod["spec"]["initContainers"] = json!([{"name": "istio-init", "image": "proxyv2"}]);
    pod
}

fn unwilling(mut pod: Value) -> Value {
    pod["metadata"]["labels"] = json!({"sidecar.istio.io/inject": "false"});
    pod
}

fn gateway(mut pod: Value) -> Value {
    pod["spec"]["containers"][1]["args"] = json!(["proxy", "router"]);
    pod
}

fn stripped(mut pod: Value) -> Value {
    pod["spec"]["containers"] = json!([{"name": "app"}]);
    pod
}

/// A node with an agent without ambient mode, and an API server for the plugin.
struct Plain {
    daemon: Daemon,
    container: Container,
    node: Node,
    pods: Arc<Mutex<BTreeMap<String, Value>>>,
    plugin: Value,
    _api: FakeApi,
}

impl Plain {
    fn new() -> Plain {
        Plain::in_container(|node, container| {
            container
                .with_mount(std::path::Path::new("/run/netns"), "/var/run/netns")
                .with_mount(&node.netns_dir(), "/netns")
                .with_env("NETNS_DIR", "/netns")
        })
    }

    /// A node whose container `change` completes.
    fn in_container(change: impl FnOnce(&Node, Container) -> Container) -> Plain {
        let node = Node::new(NodeOptions::default());
        let pods: Arc<Mutex<BTreeMap<String, Value>>> = Arc::default();
        let known = Arc::clone(&pods);
        let api = fake_api(&node, move |request| {
            let path = request.path.split('?').next().unwrap_or_default();
            match known.lock().unwrap().get(path) {
                Some(pod) => FakeReply::Json(200, pod.clone()),
                None => {
                    FakeReply::Json(404, json!({"kind": "Status", "code": 404, "message": "no such pod"}))
                }
            }
        });
        let kubeconfig = istio::write_file(&node, "kubeconfig", &api.kubeconfig(&token()));
        let mut plugin = istio::plugin_entry(&kubeconfig);
        plugin["log_uds_address"] = json!(node.run_dir().join("log.sock"));
        node.write_conflist("10-kit.conflist", &node.conflist(&[]));
        let container = Container::new(&node)
            .with_env("EXCLUDE_NAMESPACES", "istio-system,kube-system")
            .with_env("POD_NAMESPACE", "kube-system")
            .with_env("POD_NAME", AGENT);
        let container = change(&node, container);
        let mut daemon = container.start();
        daemon.wait_until_ready();
        Plain { daemon, container, node, pods, plugin, _api: api }
    }

    /// Starts a pod through the plugin, with its object in the API server.
    fn pod(&self, namespace: &str, name: &str, change: Change) -> Result<PodSandbox, Box<kit::ChainError>> {
        let mut object = change(istio::injected_pod(namespace, name));
        let pod = Pod::new(namespace, name);
        object["metadata"]["uid"] = json!(pod.uid);
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        self.pods.lock().unwrap().insert(path, object.clone());
        let pod = Pod::from_object(&object);
        self.node.add_pod(&self.node.runtime(), &self.node.conflist(std::slice::from_ref(&self.plugin)), pod)
    }

    fn answers_about_all_pods(&self) {
        says(&self.container, "shop/web", CAPTURED);
        says(&self.container, "shop/flushed", BROKEN);
        for (name, _, code) in LEFT_ALONE {
            says(&self.container, &format!("shop/{name}"), (code, "outside", "-", 0));
        }
        says(&self.container, "kube-system/dns", ("excluded-namespace", "outside", "-", 0));
        let strange = |pod| istio::annotated(pod, "traffic.sidecar.istio.io/excludeOutboundPorts", "http");
        // The agent removes the record of a pod whose namespace no longer exists, possibly before the request.
        let again = || drop(self.pod("shop", "strange", strange).unwrap_err());
        let failed = ("failed", "pending", "-", 1);
        comes_to_say_after(again, &self.container, "shop/strange", failed);
        says(&self.container, "shop/unknown", ("no-record", "-", "-", 2));
        let own = format!("kube-system/{AGENT}");
        says(&self.container, &own, ("agent-pod", "outside", "-", 0));
        assert_eq!(list(&self.container, &["--bypassing"]), (1, vec!["shop/flushed".to_owned()]));
        assert_eq!(verify(&self.container).0, 1);
    }
}

#[test]
fn without_ambient_mode_the_plugins_records_tell() {
    let plain = Plain::new();
    let _web = plain.pod("shop", "web", |pod| pod).unwrap();
    let flushed = plain.pod("shop", "flushed", |pod| pod).unwrap();
    flushed.netns.sh("iptables-nft -t nat -F ISTIO_OUTPUT");
    let _others = LEFT_ALONE.map(|(name, change, ..)| plain.pod("shop", name, change).unwrap());
    let _dns = plain.pod("kube-system", "dns", |pod| pod).unwrap();
    plain.answers_about_all_pods();
}

/// The image has no iptables tools, and the agent no more than the manifest gives: mounts, capabilities, environment.
#[test]
fn in_the_image_with_what_the_manifest_gives_pods_are_looked_at_as_well() {
    let mut plain =
        Plain::in_container(|node, container| image::enter_with(with_netns(node, container), &[NAMES]));
    let web = plain.pod("shop", "web", |pod| pod).unwrap();
    let flushed = plain.pod("shop", "flushed", |pod| pod).unwrap();
    says(&plain.container, "shop/web", CAPTURED);
    assert_eq!((list(&plain.container, &["--bypassing"]), verify(&plain.container).0), ((0, vec![]), 0));
    flushed.netns.sh("iptables-nft -t nat -F ISTIO_OUTPUT");
    says(&plain.container, "shop/flushed", BROKEN);
    assert_eq!(list(&plain.container, &["--bypassing"]), (1, vec!["shop/flushed".to_owned()]));
    let (status, text) = verify(&plain.container);
    let row = "pod         shop/flushed  IPv4 nat: chain ISTIO_OUTPUT lacks rule 1: -p tcp -m tcp --dport 15020 -j RETURN";
    assert_eq!((status, text), (1, format!("DIFFERENCE  OF            WHAT\n{row}\n")));
    // Foreign rules change nothing.
    web.netns.sh("iptables-nft -t nat -I OUTPUT -p udp --dport 9 -j RETURN");
    says(&plain.container, "shop/web", CAPTURED);
    let gauge = |state: &str| format!("istio_cni_sidecar_pods{{state=\"{state}\"}}");
    plain.daemon.end(); // before the next one, which needs its ports
    plain.daemon = plain.container.start(); // the first regular observation is soon after a start
    plain.daemon.wait_for("the patrol has been there", |daemon| {
        let number = |state| daemon.metric(&gauge(state));
        (number("captured"), number("bypassing"), number("unknown")) == (Some(1.0), Some(1.0), Some(0.0))
    });
    without_rules(&plain.node, &web);
    plain.daemon.end();
    plain.daemon = plain.container.start();
    plain.daemon.wait_until_ready();
    // Without the record, rules are compared with the pod's annotations.
    says(&plain.container, "shop/web", CAPTURED);
}

/// Rewrites a pod's record as an earlier version of the plugin wrote it.
fn without_rules(node: &Node, pod: &PodSandbox) {
    let path = node.run_dir().join("pods").join(&pod.pod.container_id);
    let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(record.as_object_mut().unwrap().remove("redirectRules").is_some(), "{record}");
    std::fs::write(&path, record.to_string()).unwrap();
}

/// Target of the links in the node's directory of network namespaces.
const NAMES: &str = "/var/run/netns";

fn with_netns(node: &Node, container: Container) -> Container {
    let container = container.with_mount(std::path::Path::new("/run/netns"), NAMES);
    container.with_mount(&node.netns_dir(), "/host/var/run/netns")
}

/// Limits the container's program to these capabilities.
fn confined(container: Container, capabilities: &str) -> Container {
    let program = container.root().join("confine");
    kit::copy_program(&kit::binary("install-cni"), &container.root().join("confined"));
    let set = format!("--bounding-set=-all,{capabilities} --inh-caps=-all");
    kit::write_script(&program, &format!("#!/bin/bash\nexec setpriv {set} /confined \"$@\"\n"));
    container.with_program(&program)
}

/// Without ambient mode, Istio's charts since 1.24 mount the node's `/proc` instead of a directory of network namespaces.
#[test]
fn with_the_processes_of_the_node_pods_are_found_as_well() {
    let capabilities = "+net_admin,+net_raw,+sys_ptrace,+sys_admin,+dac_override"; // those of the charts
    let proc = kit::TempDir::new().unwrap();
    let plain = Plain::in_container(|node, container| {
        let container = with_netns(node, container).with_mount(proc.path(), "/host/proc");
        confined(container, capabilities).with_env("NETNS_DIR", "/nowhere")
    });
    let pods = ["web", "flushed"].map(|name| plain.pod("shop", name, |pod| pod).unwrap());
    for (number, pod) in pods.iter().enumerate() {
        process(
            proc.path(),
            101 + number,
            &format!("kubepods.slice/kubepods-pod{}.slice", pod.pod.uid),
            &pod.netns,
        );
    }
    // Programs of the node may have their own network namespace, and pods that of the node.
    let service = kit::Netns::new("service");
    process(proc.path(), 201, "system.slice/some.service", &service);
    process(
        proc.path(),
        202,
        &format!("kubepods.slice/kubepods-pod{}.slice", pods[0].pod.uid),
        plain.node.netns(),
    );
    let (status, text) = verify(&plain.container);
    assert_eq!(status, 0, "nothing is unknown: {text}");
    pods[1].netns.sh("iptables-nft -t nat -F ISTIO_OUTPUT");
    says(&plain.container, "shop/web", CAPTURED);
    says(&plain.container, "shop/flushed", BROKEN);
    assert_eq!(list(&plain.container, &["--bypassing"]), (1, vec!["shop/flushed".to_owned()]));
}

/// Writes a process's entry of the node's `/proc`.
fn process(proc: &std::path::Path, pid: usize, cgroup: &str, netns: &kit::Netns) {
    let directory = proc.join(pid.to_string());
    std::fs::create_dir_all(directory.join("ns")).unwrap();
    std::fs::write(directory.join("cgroup"), format!("0::/{cgroup}/cri-containerd-0123.scope\n")).unwrap();
    std::os::unix::fs::symlink(std::path::Path::new(NAMES).join(netns.name()), directory.join("ns/net"))
        .unwrap();
}

/// With the capabilities of Istio's chart of 1.20 without ambient mode, no pod can be observed, and the reason is reported.
#[test]
fn without_the_capabilities_pods_are_unknown_and_the_reason_is_given() {
    let plain = Plain::in_container(|node, container| confined(with_netns(node, container), "+dac_override"));
    let _web = plain.pod("shop", "web", |pod| pod).unwrap();
    let unknown = ("netns-not-found", "unknown", "sidecar", 2);
    let answer = says(&plain.container, "shop/web", unknown);
    assert_words(&answer, &["cannot enter network namespace"]);
}

#[test]
fn with_ambient_mode_the_pods_objects_tell() {
    let mut fixture = Ambient::new(&[]);
    let web = injected(&fixture, "web");
    let sandboxes = LEFT_ALONE.map(|(name, change, ..)| {
        let sandbox = fixture.node.pod(Pod::new(PLAIN, name), &[]);
        let mut object = change(istio::injected_pod(PLAIN, name));
        let mut manifest = sandbox.manifest();
        manifest["metadata"]["annotations"] = object["metadata"]["annotations"].take();
        manifest["metadata"]["labels"] = object["metadata"]["labels"].take();
        manifest["spec"]["containers"] = object["spec"]["containers"].take();
        manifest["spec"]["initContainers"] = object["spec"]["initContainers"].take();
        fixture.manifests.put_pod(&manifest);
        sandbox
    });
    let mut new = starting(&Pod::new(PLAIN, "new").annotation("sidecar.istio.io/status", "{}"));
    new["spec"]["containers"] = json!([{"name": "app"}, {"name": "istio-proxy"}]);
    fixture.manifests.put_pod(&new);
    fixture.settle();
    says(&fixture.container, "plain/web", CAPTURED);
    for (name, _, code) in LEFT_ALONE {
        says(&fixture.container, &format!("plain/{name}"), (code, "outside", "-", 0));
    }
    says(&fixture.container, "plain/new", ("no-address", "pending", "sidecar", 1));
    let put_web = |phase: &str, ports: &str| {
        let mut manifest = web.sandbox.manifest();
        manifest["spec"]["containers"] = json!([{"name": "app"}, {"name": "istio-proxy"}]);
        manifest["status"]["phase"] = json!(phase);
        manifest["metadata"]["annotations"]["traffic.sidecar.istio.io/includeOutboundPorts"] = json!(ports);
        fixture.manifests.put_pod(&manifest);
    };
    let comes = |expected: Expected| comes_to_say(&fixture.container, "plain/web", expected);
    // Its rules are those of its ADD, whatever its annotations are now, and exist while its init containers run.
    put_web("Pending", "none");
    let answer = comes(("failed", "captured", "sidecar", 1));
    assert_words(&answer, &["its annotations cannot be read"]);
    put_web("Pending", "80");
    comes(CAPTURED);
    web.sandbox.netns.sh("nft flush ruleset");
    comes(("sidecar-rules-missing", "pending", "sidecar", 1));
    put_web("Running", "80");
    let answer = comes(BROKEN);
    assert!(answer.advice[0].starts_with("Delete the pod"), "{answer}");
    let (status, text) = call(&fixture.container, &["list", "--bypassing"]);
    let rows: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    assert_eq!((status, &rows[1..]), (1, &[vec!["plain/web", "bypassing", "sidecar"]][..]), "{text}");
    drop(sandboxes);
}

#[test]
fn the_agents_start_and_its_log_are_known_without_ambient_mode() {
    let plain = Plain::new();
    let (_, text) = call(&plain.container, &["state", "-o", "json"]);
    let state: report::StateReport =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(state.node.agent_started_at.is_some_and(|since| since.starts_with("20")), "{text}");
    let archive = plain.node.run_dir().join("bundle.tar.gz");
    std::fs::write(&archive, plain.container.exec(&["bundle", "-f", "-"]).stdout).unwrap();
    let mut tar = std::process::Command::new("tar");
    let log = tar.arg("xzOf").arg(&archive).args(["--wildcards", "*/logs/agent.log"]).output().unwrap();
    let log = String::from_utf8(log.stdout).unwrap();
    assert!(kit::has_logged(&log, "install-cni (Millrace) starts", &[]), "{log}");
    assert!(kit::has_logged(&log, "the plugin is installed", &[]), "{log}");
}
