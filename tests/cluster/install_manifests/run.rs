//! All of `deploy/`, from `kubectl apply` to `kubectl delete`, as far as one node is concerned.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::chown;

use kit::{ApiServer, Auth, Container, Daemon, Node, NodeOptions};
use serde_json::{Value, json};

use super::documents::{create, document, documents, path, wait_for_kube_system};
use super::image;
use crate::istio_charts::chart::Chart;

const NODE: &str = "deploy-node";
const TOKEN: &str = "/api/v1/namespaces/kube-system/serviceaccounts/istio-cni/token";

/// The container's environment, as the kubelet creates it from the manifest.
fn environment() -> BTreeMap<String, String> {
    let maps = json!({"istio-cni-config": document("ConfigMap")["data"]});
    let data = json!({"configmaps": maps, "daemonset": document("DaemonSet")["spec"]["template"]["spec"]});
    Chart::new("kube-system", data).environment(NODE, "istio-cni-node-x7k2p")
}

/// The kit's container with that environment alone, plus the kubelet's additions.
fn in_manifest(node: &Node) -> Container {
    let own = ["CNI_NETWORK_CONFIG", "CNI_NET_DIR", "REPAIR_ENABLED", "NODE_NAME", "LOG_LEVEL"];
    let bare = own.into_iter().fold(Container::new(node), Container::without_env);
    let bare = bare.with_mount(&node.netns_dir(), "/host/var/run/netns");
    environment().iter().fold(bare, |container, (name, value)| container.with_env(name, value))
}

fn start(container: &Container) -> Daemon {
    let manifest = super::documents::container();
    let arguments = manifest["args"].as_array().unwrap().clone();
    let arguments: Vec<&str> = arguments.iter().map(|argument| argument.as_str().unwrap()).collect();
    let mut daemon = container.start_with(&arguments, &[]);
    daemon.wait_until_ready();
    daemon
}

fn entry(node: &Node) -> Value {
    let text = fs::read(node.net_d().join("10-kit.conflist")).unwrap();
    let conflist: Value = serde_json::from_slice(&text).unwrap();
    conflist["plugins"].as_array().unwrap().last().unwrap().clone()
}

/// Changes the owner of the node's directories, as several installers do.
fn give_away(container: &Container) {
    if kit::has_other_users() {
        for directory in [container.bin_dir(), container.net_d()] {
            chown(&directory, Some(1000), Some(1000)).unwrap();
        }
    }
}

/// The account's own token, as the kubelet requests it.
fn token(api: &ApiServer) -> String {
    let request = json!({"spec": {"expirationSeconds": 3600}});
    let answer = api.admin().create(TOKEN, &request);
    answer["status"]["token"].as_str().unwrap().to_owned()
}

#[test]
fn it_installs_follows_tells_and_uninstalls_in_the_image_with_no_more_than_the_manifest_gives() {
    let Some(api) = ApiServer::shared() else { return };
    wait_for_kube_system(api);
    api.admin().create(
        "/api/v1/nodes",
        &json!({"metadata": {"name": NODE, "labels": {"kubernetes.io/os": "linux"}}}),
    );
    let documents = documents();
    documents.iter().for_each(|document| create(api, document, ""));
    let node = Node::new(NodeOptions::default());
    let original = node.write_conflist("10-kit.conflist", &node.conflist(&[]));
    let before = fs::read(&original).unwrap();
    let container = image::enter(in_manifest(&node));
    container.set_account(&token(api), api.ca_pem());
    // The image's plugin is installed, not the kit's, which is for other tests.
    fs::remove_dir_all(container.source_dir()).and_then(|()| fs::create_dir(container.source_dir())).unwrap();
    give_away(&container);

    let mut daemon = start(&container);
    assert_eq!(entry(&node)["pod_namespace"], "kube-system");
    assert_eq!(entry(&node)["kubernetes"]["kubeconfig"], "/etc/cni/net.d/ZZZ-istio-cni-kubeconfig");
    assert_eq!(daemon.get(8000, "/healthz").unwrap().0, 200);
    confined(&daemon);
    let (status, log) = daemon.terminate();
    assert!(
        kit::logged(
            &log,
            "the plugin stays installed",
            "reason=\"DaemonSet kube-system/istio-cni-node still selects this node"
        ) == 1,
        "{status}: {log}"
    );
    assert_eq!(entry(&node)["type"], "istio-cni", "an upgrade");

    daemon = start(&container);
    daemon.wait_for("it knows its DaemonSet", |daemon| {
        daemon.logged("found the agent's DaemonSet", "istio-cni-node") > 0
    });
    follows_and_tells(api, &node, &mut daemon);
    let log = daemon.log();
    assert!(!log.contains("(403)") && !log.to_lowercase().contains("forbidden"), "{log}");

    for document in &documents {
        api.admin().delete(&path(document));
    }
    daemon.wait_for("it sees that", |daemon| {
        daemon.logged("the agent's DaemonSet has been deleted or is being deleted", "daemon_set=") > 0
    });
    let (status, log) = daemon.terminate();
    assert!(status.success(), "{status}: {log}");
    assert_eq!(
        (fs::read(&original).unwrap() == before, fs::read_dir(node.net_d()).unwrap().count()),
        (true, 1),
        "{log}"
    );
    assert_eq!(fs::read_dir(container.bin_dir()).unwrap().count(), 0, "{log}");
    api.admin().delete(&format!("/api/v1/nodes/{NODE}"));
}

/// Asserts that the agent has only what the manifest gives: otherwise this test would prove nothing.
fn confined(daemon: &Daemon) {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    // DAC_OVERRIDE, NET_ADMIN, SYS_ADMIN
    const ALL: &str = "0000000000201002";
    assert_eq!((line("CapEff:").as_str(), line("CapBnd:").as_str()), (ALL, ALL));
    assert_eq!(line("NoNewPrivs:"), "1");
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", daemon.pid())).unwrap();
    let root = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|words| words[4] == "/");
    assert!(root.unwrap()[5].split(',').any(|option| option == "ro"), "{mounts}");
}

fn follows_and_tells(api: &ApiServer, node: &Node, daemon: &mut Daemon) {
    let config_map = path(&document("ConfigMap"));
    let edit = |value: &str| {
        api.admin().patch(&config_map, &json!({"data": {"cni_network_config": value}}));
    };
    let mut template: Value =
        serde_json::from_str(document("ConfigMap")["data"]["cni_network_config"].as_str().unwrap()).unwrap();
    template["log_level"] = json!("warn");
    edit(&template.to_string());
    daemon.wait_for("the edit", |_| entry(node)["log_level"] == "warn");
    edit("nonsense");
    let events = format!("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={NODE}");
    kit::until("an Event", || {
        api.admin().get(&events)["items"]
            .as_array()
            .unwrap()
            .iter()
            .any(|event| event["reason"] == "CNIConfigRefused")
    });
}

#[test]
fn the_account_of_a_live_token_is_that_of_the_manifest() {
    const NAMESPACE: &str = "deploy-token";
    let Some(api) = ApiServer::shared() else { return };
    api.create_namespace(NAMESPACE);
    let documents = super::documents::documents_for(NAMESPACE);
    documents.iter().for_each(|document| create(api, document, ""));
    let request = json!({"spec": {"expirationSeconds": 3600}});
    let answer = api.admin().create(&TOKEN.replace("kube-system", NAMESPACE), &request);
    let client = api.client(&Auth::Token(answer["status"]["token"].as_str().unwrap().to_owned()));
    let watched = |resource: &str, name: &str| format!("{resource}?fieldSelector=metadata.name%3D{name}");
    let own = |group: &str, rest: &str| format!("{group}/namespaces/{NAMESPACE}/{rest}");
    for (path, status) in [
        (own("/api/v1", &watched("configmaps", "istio-cni-config")), 200),
        (own("/api/v1", "configmaps"), 403),
        (own("/apis/apps/v1", &watched("daemonsets", "istio-cni-node")), 200),
        (own("/apis/apps/v1", "daemonsets/istio-cni-node"), 200),
        (own("/apis/apps/v1", "daemonsets"), 403),
        (own("/api/v1", "secrets"), 403),
        (own("/api/v1", "pods"), 403),
        (own("/api/v1", "pods/none"), 404),
    ] {
        let seen = || client.request("GET", &path, None).status;
        kit::until(format_args!("{status} for {path}"), || seen() == status);
    }
    documents.iter().for_each(|document| drop(api.admin().delete(&path(document))));
}
