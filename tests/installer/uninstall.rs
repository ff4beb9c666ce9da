//! The end of an installation: by an agent that has just started, and by the command for files that an agent left.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kit::{Container, FakeApi, FakeReply, Node, NodeOptions, Pki};
use rustix::process::Signal;
use serde_json::json;

use crate::fixtures::install::InstallFixture;

const OWN_POD: &str = "/api/v1/namespaces/kube-system/pods/istio-cni-node-1";

fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

fn container(node: &Node, address: SocketAddr) -> Container {
    let container = Container::new(node)
        .with_env("KUBERNETES_SERVICE_HOST", &address.ip().to_string())
        .with_env("KUBERNETES_SERVICE_PORT", &address.port().to_string())
        .with_env("POD_NAME", "istio-cni-node-1");
    container.set_account("token", Pki::shared().server_ca_pem());
    container
}

/// An API server that is ready, returns the agent's pod once, and refuses everything else; after half a second, while it is slow.
fn revoking(node: &Node, is_slow: impl Fn() -> bool + Send + Sync + 'static) -> (FakeApi, SocketAddr) {
    let address = SocketAddr::from((node.outside_ip(false), 6443));
    let owner = json!({"kind": "DaemonSet", "name": "istio-cni-node"});
    let pod = json!({"metadata": {"name": "istio-cni-node-1", "ownerReferences": [owner]}});
    let answered = AtomicBool::new(false);
    let api = FakeApi::start(node.outside(), address, move |request| {
        if request.path == OWN_POD && !answered.swap(true, Ordering::Relaxed) {
            return FakeReply::Json(200, pod.clone());
        }
        let forbidden = json!({"kind": "Status", "status": "Failure", "message": "forbidden", "code": 403});
        let is_probe = request.path == "/readyz";
        let refused =
            if is_probe { FakeReply::Json(200, json!({})) } else { FakeReply::Json(403, forbidden) };
        let late = Duration::from_millis(500);
        if is_slow() { FakeReply::Late(late, Box::new(refused)) } else { refused }
    });
    (api, address)
}

/// Answers 401 to every token, as when the service account is deleted, and `anonymous` to requests without one.
fn unknowing(node: &Node, anonymous: u16) -> (FakeApi, SocketAddr) {
    let address = SocketAddr::from((node.outside_ip(false), 6443));
    let pod = json!({"metadata": {"name": "istio-cni-node-1"}});
    let answered = AtomicBool::new(false);
    let api = FakeApi::start(node.outside(), address, move |request| {
        if request.path == OWN_POD && !answered.swap(true, Ordering::Relaxed) {
            return FakeReply::Json(200, pod.clone());
        }
        let has_token =
            request.headers.iter().any(|header| header.to_lowercase().starts_with("authorization:"));
        let code = if has_token { 401 } else { anonymous };
        FakeReply::Json(code, json!({"kind": "Status", "status": "Failure", "message": "no", "code": code}))
    });
    (api, address)
}

/// An API server that cannot read the service account from its storage answers 401, too, and so does one for an expired token.
#[test]
fn a_token_that_is_not_accepted_counts_only_if_the_server_is_ready_and_the_token_has_not_expired() {
    let expired = "e30.eyJpYXQiOjEsImV4cCI6Mn0.c2ln"; // in 1970
    for (token, anonymous, is_removed) in [
        ("token", 200, true),
        ("token", 403, false), // a server that has not read its roles
        ("token", 401, true),  // where anonymous requests are forbidden
        ("token", 500, false),
        (expired, 200, false),
    ] {
        let node = Node::new(NodeOptions::default());
        let original = node.write_conflist("10-kit.conflist", &node.conflist(&[]));
        let before = fs::read(&original).unwrap();
        let (api, address) = unknowing(&node, anonymous);
        let container = container(&node, address);
        container.set_account(token, Pki::shared().server_ca_pem());
        let mut daemon = container.start();
        daemon.wait_until_ready();
        daemon.wait_for("its first request", |_| !api.requests().is_empty());
        daemon.signal(Signal::TERM);
        let (status, log) = (daemon.wait(), daemon.log());
        assert!(status.success(), "{status}: {log}");
        assert_eq!(fs::read(&original).unwrap() == before, is_removed, "{token} {anonymous}: {log}");
    }
}

/// The API server answers the last request of each round after 1.5 s. Old charts grant five seconds, which a stalled machine may
/// exceed, but not each time.
#[test]
fn permissions_that_are_gone_count_also_if_the_api_server_is_slow() {
    let mut times = (0..3).map(|_| uninstall_beside_slow_server());
    assert!(times.any(|took| took < Duration::from_secs(5)), "it never ends in time");
}

/// Ends an agent whose permissions are gone, which must remove the plugin; returns the time that it takes.
fn uninstall_beside_slow_server() -> Duration {
    let node = Node::new(NodeOptions::default());
    let original = node.write_conflist("10-kit.conflist", &node.conflist(&[]));
    let before = fs::read(&original).unwrap();
    let is_slow = Arc::new(AtomicBool::new(false));
    let slow = Arc::clone(&is_slow);
    let (api, address) = revoking(&node, move || slow.load(Ordering::Relaxed));
    let container = container(&node, address);
    let mut daemon = container.start();
    daemon.wait_until_ready();
    daemon.wait_for("its first request", |_| !api.requests().is_empty());
    is_slow.store(true, Ordering::Relaxed);
    daemon.signal(Signal::TERM);
    let began = Instant::now();
    let (status, log) = (daemon.wait(), daemon.log());
    assert!(status.success(), "{status}: {log}");
    assert!(fs::read(&original).unwrap() == before, "the plugin stays: {log}");
    println!("ended after {:?}", began.elapsed());
    began.elapsed()
}

/// While the agent waits for its predecessor, it has a handler: as a container's first process it would lose the signal.
#[test]
fn a_sigterm_during_the_first_moments_of_a_start_counts() {
    let fixture = InstallFixture::new(&[("CLEANUP_ON_EXIT", "never")]);
    let lock = fs::File::create(fixture.node.run_dir().join("agent.lock")).unwrap();
    lock.lock().unwrap();
    let mut daemon = fixture.container.start();
    daemon.wait_for("it starts", |daemon| daemon.logged("install-cni (Millrace) starts", "") > 0);
    daemon.signal(Signal::TERM);
    drop(lock);
    let (status, log) = (daemon.wait(), daemon.log());
    assert!(status.success(), "{status}: {log}");
    assert!(daemon.logged("shutting down", "SIGTERM") > 0, "{log}");
}

/// The kubelet restarts the container.
#[test]
fn an_agent_whose_socket_is_removed_ends_and_keeps_the_plugin() {
    let fixture = InstallFixture::new(&[]);
    let mut daemon = fixture.start_ready();
    let installed = fixture.files();
    fs::remove_file(fixture.node.run_dir().join("agent.sock")).unwrap();
    assert_eq!(daemon.wait().code(), Some(1), "{}", daemon.log());
    assert_eq!(fixture.files(), installed);
    let _next = fixture.start_ready();
    assert!(fixture.node.run_dir().join("agent.sock").exists());
}

/// Wraps the tools, which block until the gate is opened.
const GATE: &str = "#!/bin/bash
while [ -e /gate/shut ]; do sleep 0.01; done
exec \"/usr/sbin/${0##*/}\" \"$@\"
";

/// As `helm uninstall` right after the start: SIGTERM arrives while the agent waits for a tool.
#[test]
fn an_agent_asks_for_its_own_pod_before_it_does_anything_that_takes_time() {
    let node = Node::new(NodeOptions::default());
    let original = node.write_conflist("10-kit.conflist", &node.conflist(&[]));
    let before = fs::read(&original).unwrap();
    node.netns().sh("iptables-legacy -w -t mangle -A FORWARD -j ACCEPT"); // without rules, nothing is saved
    let (gate, empty) = (node.dir().join("gate"), node.dir().join("empty"));
    [&gate, &empty].into_iter().for_each(|directory| fs::create_dir(directory).unwrap());
    fs::write(gate.join("shut"), "").unwrap();
    fs::write(node.run_dir().join("history.jsonl.tmp.aZ09bcde"), "").unwrap(); // of a killed agent
    kit::write_script(&gate.join("iptables-legacy-save"), GATE);
    let (api, address) = revoking(&node, || false);
    let container = [
        ("AMBIENT_ENABLED", "true"),
        ("AMBIENT_CAPTURE", "in-pod"),
        ("FORCE_IPTABLES_BINARY", "legacy"),
        ("HOST_PROC", "/empty"),
        ("ZTUNNEL_UDS_ADDRESS", "/gate/ztunnel.sock"),
        ("PATH", "/gate:/usr/sbin:/usr/bin:/sbin:/bin"),
    ]
    .into_iter()
    .fold(container(&node, address), |container, (key, value)| container.with_env(key, value))
    .with_mount(&gate, "/gate")
    .with_mount(&empty, "/empty");
    let mut daemon = container.start();
    let has_asked = || api.requests().iter().any(|request| request.path == OWN_POD);
    daemon.wait_for("it asks for its own pod, while the tool waits", |_| has_asked());
    daemon.signal(Signal::TERM);
    fs::remove_file(gate.join("shut")).unwrap();
    let status = daemon.wait();
    let log = daemon.log();
    assert!(
        status.success()
            && kit::logged(&log, "the plugin is removed", "reason=\"permissions that we had are gone") == 1,
        "{status}: {log}"
    );
    assert_eq!((fs::read(&original).unwrap(), names(&node.net_d()).len()), (before, 1), "{log}");
    assert_eq!((names(&node.run_dir()).len(), names(&container.bin_dir()).len()), (0, 0), "{log}");
}

/// After a reboot the directory shared by plugin and agent is missing, and with it every lock file. The entry still exists, and no
/// pod can start.
#[test]
fn the_command_removes_an_orphaned_entry_after_a_reboot() {
    let node = Node::new(NodeOptions::default());
    let original = node.write_conflist("10-kit.conflist", &node.conflist(&[]));
    let before = fs::read(&original).unwrap();
    let mut container = Container::new(&node);
    let mut daemon = container.start();
    daemon.wait_until_ready();
    daemon.kill();
    assert_ne!(fs::read(&original).unwrap(), before);
    container.set_env("CNI_AGENT_RUN_DIR", "/var/run/istio-cni/gone/with/it");
    for attempt in ["at first", "again"] {
        let mut command = container.start_with(&["uninstall"], &[]);
        let (status, log) = (command.wait(), command.log());
        assert!(
            status.success()
                && kit::logged(&log, "no file or rule of Millrace remains on this node", "") == 1,
            "{attempt}: {log}"
        );
        assert_eq!((fs::read(&original).unwrap(), names(&node.net_d()).len()), (before.clone(), 1), "{log}");
        assert_eq!(names(&container.bin_dir()), [""; 0], "{log}");
        assert!(!node.run_dir().join("gone").exists(), "{attempt}: {log}");
    }
}

/// Neither the mode nor the names of its files are settings that outlive a reboot.
#[test]
fn the_command_removes_what_another_mode_left_before_a_reboot() {
    for (mode, listed) in [
        (
            &[("CHAINED_CNI_PLUGIN", "false"), ("CNI_CONF_NAME", "istio-cni.conf")][..],
            "network /host/etc/cni/net.d/istio-cni.conf: all of it is ours",
        ),
        (
            &[("ISTIO_OWNED_CNI_CONFIG", "true"), ("ISTIO_OWNED_CNI_CONFIG_FILENAME", "00-istio.conflist")],
            "network /host/etc/cni/net.d/00-istio.conflist: all of it is ours",
        ),
        (&[("KUBECFG_FILE_NAME", "chosen-kubeconfig")], "kubeconfig /host/etc/cni/net.d/chosen-kubeconfig"),
    ] {
        let fixture = InstallFixture::new(&[]);
        let before = fixture.files();
        let fixture = fixture.again(mode);
        fixture.start_ready().kill();
        assert_ne!(fixture.files(), before);
        for entry in fs::read_dir(fixture.node.run_dir()).unwrap().map(Result::unwrap) {
            let is_directory = entry.file_type().unwrap().is_dir();
            let remove = if is_directory { fs::remove_dir_all } else { fs::remove_file };
            remove(entry.path()).unwrap();
        }
        let nothing = mode.iter().map(|(name, _)| (*name, "")).collect::<Vec<_>>();
        let fixture = fixture.again(&nothing);
        let shown = fixture.container.exec(&["uninstall", "--dry-run", "-o", "json"]);
        let plan: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert!(plan["files"].as_array().unwrap().iter().any(|file| file == listed), "{plan}");
        let mut command = fixture.container.start_with(&["uninstall"], &[]);
        let (status, log) = (command.wait(), command.log());
        assert!(status.success(), "{mode:?}: {log}");
        assert_eq!(fixture.files(), before, "{mode:?}: {log}");
        assert_eq!(names(&fixture.container.bin_dir()), [""; 0], "{mode:?}: {log}");
    }
}

/// As in a shell on the node: a missing directory does not prove that it has no files of ours.
#[test]
fn the_command_does_not_call_a_node_clean_whose_directories_it_does_not_see() {
    let node = Node::new(NodeOptions::default());
    let container = Container::new(&node).with_env("MOUNTED_CNI_NET_DIR", "/host/elsewhere");
    let mut command = container.start_with(&["uninstall"], &[]);
    let (status, log) = (command.wait(), command.log());
    let error = "what is in /host/elsewhere, which is not mounted here";
    assert!(status.code() == Some(1) && kit::has_logged(&log, "not removed", &[("error", error)]), "{log}");
}
