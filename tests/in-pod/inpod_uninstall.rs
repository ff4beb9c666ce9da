//! In-pod capture: state that remains when the agent ends.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use kit::{Echo, FakeApi, FakeReply, InpodOptions, NodeOptions, Pki, Pod, PodSandbox};
use serde_json::{Value, json};

use crate::fixtures::ambient::{MESH, PLAIN, PORT, Peer, dump_of};
use crate::fixtures::inpod::InPod;

/// Policy rule of a captured pod, as `ip rule` lists it.
const POLICY_RULE: &str = "32764:\tfrom all fwmark 0x111/0xfff lookup 100";

#[test]
fn an_uninstallation_leaves_nothing_in_pods_and_on_the_node() {
    for backend in ["nft", "legacy"] {
        let env = [("CLEANUP_ON_EXIT", "always"), ("FORCE_IPTABLES_BINARY", backend)];
        let mut fixture = InPod::stopped(NodeOptions::default(), &env);
        let _echo = Echo::tcp(fixture.node.outside(), PORT);
        let (one, other) = (fixture.running_pod(MESH, "one"), fixture.running_pod(PLAIN, "other"));
        // A sidecar's rules have chains of the same names.
        let sidecar = Peer::new(fixture.node.pod(Pod::new(PLAIN, "sidecar"), &[]));
        sidecar.sandbox.netns.pipe(
            &format!("iptables-{backend}-restore --noflush"),
            "*nat\n:ISTIO_OUTPUT - [0:0]\n-A OUTPUT -p tcp -j ISTIO_OUTPUT\nCOMMIT\n",
        );
        let places = || {
            let pods = [&one, &other, &sidecar].map(|peer| dump_of(&peer.sandbox.netns));
            [vec![fixture.node.netns().sh("ipset save"), fixture.dump()], pods.to_vec()].concat()
        };
        let before = places();
        fixture.start();
        let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
        fixture.wait_captured(&one);
        // As the plugin leaves it when no agent reads its lines.
        fs::write(fixture.node.run_dir().join("istio-cni.log"), "a line").unwrap();
        assert!(fixture.is_ruled(&one) && fixture.is_probed(one.ip(false)));
        let (status, log) = fixture.daemon.take().unwrap().terminate();
        assert!(status.success(), "{log}");
        let places = || {
            let pods = [&one, &other, &sidecar].map(|peer| dump_of(&peer.sandbox.netns));
            [vec![fixture.node.netns().sh("ipset save"), fixture.dump()], pods.to_vec()].concat()
        };
        for (before, after) in before.iter().zip(places()) {
            assert_eq!(without_ztunnel(&after), without_ztunnel(before), "{backend}\n{log}");
        }
        let _ = one.tcp((fixture.node.outside_ip(false), PORT).into()).unwrap();
        let left: Vec<_> =
            fs::read_dir(fixture.node.run_dir()).unwrap().map(|entry| entry.unwrap()).collect();
        assert!(left.is_empty(), "sockets, logs, records: {left:?}");
        assert!(!fixture.socket().exists(), "the socket for ztunnel");
    }
}

/// Removes the ztunnel pod, which started meanwhile: its link, its route, and link indexes.
fn without_ztunnel(dump: &str) -> String {
    let mut lines: Vec<&str> =
        dump.lines().filter(|line| line.starts_with(['-', ':', '*']) || line.contains("lookup")).collect();
    lines.retain(|line| !line.starts_with("*") && !line.contains(" ACCEPT"));
    lines.join("\n")
}

/// State left by an agent that was killed while two pods were captured, and the node's state before.
struct Killed {
    fixture: InPod,
    pods: [Peer; 2],
    before: Vec<String>,
    conflist: Vec<u8>,
    /// The agent's debug state, which it writes after several seconds.
    state: Vec<u8>,
}

impl Killed {
    /// The variables for directories stay: without them, the directories of other tests would be used.
    fn without_settings() -> Self {
        Self::with_tools(&[], None)
    }

    fn with_tools(env: &[(&str, &str)], tools: Option<&Path>) -> Self {
        let mut fixture = InPod::stopped(NodeOptions::default(), env);
        tools.into_iter().for_each(|tools| fixture.mount(tools, "/tools"));
        let pods = ["one", "two"].map(|name| fixture.running_pod(MESH, name));
        let conflist = fs::read(fixture.node.net_d().join("10-kit.conflist")).unwrap();
        let mut killed = Self { fixture, pods, before: Vec::new(), conflist, state: Vec::new() };
        killed.before = killed.places();
        killed.fixture.start();
        let _ztunnel = killed.fixture.ztunnel("ztunnel-a", InpodOptions::default());
        for pod in &killed.pods {
            killed.fixture.wait_captured(pod);
        }
        killed.state = killed.fixture.container.exec(&["state", "-o", "json"]).stdout;
        killed.fixture.daemon.take().unwrap().kill();
        for setting in ["AMBIENT_ENABLED", "AMBIENT_CAPTURE", "FORCE_IPTABLES_BINARY", "NATIVE_NFTABLES"] {
            killed.fixture.container.set_env(setting, "");
        }
        // A shell on the node lacks the environment that the kubelet gives a container.
        killed.fixture.container.set_env("KUBERNETES_SERVICE_HOST", "");
        killed
    }

    fn places(&self) -> Vec<String> {
        let netns = self.fixture.node.netns();
        let dumps = self.pods.iter().map(|pod| &pod.sandbox.netns).chain([&**netns]);
        let dumps = dumps.map(|netns| without_ztunnel(&dump_of(netns)));
        [netns.sh("ipset save")].into_iter().chain(dumps).collect()
    }

    fn assert_removed(&self, log: &str) {
        assert_eq!(self.places(), self.before, "{log}");
        let conflist = fs::read(self.fixture.node.net_d().join("10-kit.conflist")).unwrap();
        assert!(conflist == self.conflist, "the entry stays: {log}");
        let left: Vec<_> = fs::read_dir(self.fixture.node.run_dir()).unwrap().collect();
        assert!(left.is_empty() && !self.fixture.socket().exists(), "{left:?}: {log}");
    }

    /// Starts the command, and kills it as soon as the condition holds. False if it has ended before.
    fn interrupted(&self, holds: impl Fn(&Self) -> bool) -> bool {
        let mut command = self.fixture.container.start_with(&["uninstall"], &[]);
        let deadline = Instant::now() + Duration::from_secs(20);
        // Without a pause: the exact moment is tested.
        while !holds(self) {
            if command.has_ended() {
                return false;
            }
            assert!(Instant::now() < deadline, "never interrupted: {}", command.log());
        }
        command.kill();
        true
    }
}

#[test]
fn the_command_finds_what_a_killed_agent_left_without_its_settings() {
    let killed = Killed::without_settings();
    for attempt in ["at first", "again"] {
        let mut command = killed.fixture.container.start_with(&["uninstall"], &[]);
        let status = command.wait();
        let log = command.log();
        assert!(
            status.success()
                && kit::logged(&log, "no file or rule of Millrace remains on this node", "") == 1,
            "{attempt}: {log}"
        );
        killed.assert_removed(&log);
    }
}

#[test]
fn an_agent_without_ambient_mode_removes_what_one_with_it_left() {
    let mut killed = Killed::without_settings();
    let container = &mut killed.fixture.container;
    container.set_env("KUBERNETES_SERVICE_HOST", "10.96.0.1");
    container.set_env("CLEANUP_ON_EXIT", "always");
    killed.fixture.start();
    let (status, log) = killed.fixture.daemon.take().unwrap().terminate();
    assert!(status.success(), "{log}");
    killed.assert_removed(&log);
}

#[test]
fn the_command_completes_what_it_began_wherever_it_was_interrupted() {
    let killed = Killed::without_settings();
    let entry = |killed: &Killed| {
        fs::read(killed.fixture.node.net_d().join("10-kit.conflist")).unwrap() == killed.conflist
    };
    let is_bare = |pod: &Peer| !kit::has_line(&pod.sandbox.netns.sh("ip -4 rule"), POLICY_RULE);
    let reached = [
        killed.interrupted(entry),
        killed.interrupted(|killed| killed.pods.iter().any(is_bare)),
        killed.interrupted(|killed| killed.fixture.node.netns().sh("ipset save") != killed.before[0]),
    ];
    println!("interrupted: {reached:?}");
    let mut command = killed.fixture.container.start_with(&["uninstall"], &[]);
    let status = command.wait();
    let log = command.log();
    assert!(status.success(), "{log}");
    killed.assert_removed(&log);
}

/// Only the last agent's settings have the path of the socket for ztunnel.
#[test]
fn the_command_takes_what_it_is_not_given_from_the_last_agents_settings() {
    let mut killed = Killed::without_settings();
    fs::write(killed.fixture.node.run_dir().join("last-state.json"), &killed.state).unwrap();
    killed.fixture.container.set_env("ZTUNNEL_UDS_ADDRESS", "");
    let shown = killed.fixture.container.exec(&["uninstall", "--dry-run"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    for part in ["istio-inpod-probes-v4", "network namespace of mesh/one", "  entry /host/etc/cni/net.d/"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let mut command = killed.fixture.container.start_with(&["uninstall"], &[]);
    let status = command.wait();
    assert!(status.success(), "{}", command.log());
    killed.assert_removed(&command.log());
}

/// Wraps the restore tools, which fail while a file makes them.
const BREAKABLE: &str = "#!/bin/sh
[ ! -e /tools/broken ] || exit 4
exec \"/usr/sbin/${0##*/}\" \"$@\"
";

/// The sets show the next agent that state remains, and the records show it to the next attempt.
#[test]
fn what_cannot_be_removed_keeps_the_evidence() {
    let tools = kit::TempDir::new().unwrap();
    for tool in ["iptables-legacy-restore", "ip6tables-legacy-restore"] {
        kit::write_script(&tools.path().join(tool), BREAKABLE);
    }
    // Legacy tables, because nothing can make the engine fail.
    let env = [("FORCE_IPTABLES_BINARY", "legacy"), ("PATH", "/tools:/usr/sbin:/usr/bin:/sbin:/bin")];
    let killed = Killed::with_tools(&env, Some(tools.path()));
    let last = killed.fixture.node.run_dir().join("last-state.json");
    fs::write(&last, &killed.state).unwrap();
    fs::write(tools.path().join("broken"), "").unwrap();
    let mut command = killed.fixture.container.start_with(&["uninstall"], &[]);
    assert_eq!(command.wait().code(), Some(1), "{}", command.log());
    let sets = killed.fixture.node.netns().sh("ipset save");
    let is_ours = |line: &str| line.starts_with("create istio-inpod-probes-");
    assert!(last.exists() && sets.lines().any(is_ours), "{sets}: {}", command.log());
    fs::remove_file(tools.path().join("broken")).unwrap();
    let mut command = killed.fixture.container.start_with(&["uninstall"], &[]);
    let status = command.wait();
    assert!(status.success(), "{}", command.log());
    killed.assert_removed(&command.log());
}

/// An API server with one pod of the mesh, which records whether the pod has its rules when its annotation is removed.
fn with_one_pod(fixture: &InPod, pod: &PodSandbox, withdrawn: mpsc::Sender<bool>) -> FakeApi {
    let address = SocketAddr::from((fixture.node.outside_ip(false), 6443));
    let mut manifest = pod.manifest();
    manifest["metadata"]["resourceVersion"] = json!("1");
    manifest["metadata"]["annotations"]["ambient.istio.io/redirection"] = json!("enabled");
    let labels = json!({"istio.io/dataplane-mode": "ambient"});
    let namespace = json!({"metadata": {"name": MESH, "uid": "m", "resourceVersion": "1", "labels": labels}});
    let list = |kind: &str, item: Value| json!({"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": [item]});
    let (pods, namespaces) = (list("PodList", manifest), list("NamespaceList", namespace));
    let failure =
        |code: u16| FakeReply::Json(code, json!({"kind": "Status", "status": "Failure", "code": code}));
    let (netns, withdrawn) = (pod.netns.second_handle(), Mutex::new(withdrawn));
    FakeApi::start(fixture.node.outside(), address, move |request| {
        let path = request.path.split('?').next().unwrap();
        match (request.method.as_str(), path) {
            ("PATCH", _) => {
                let is_ruled = kit::has_line(&netns.sh("ip -4 rule"), POLICY_RULE);
                withdrawn.lock().unwrap().send(is_ruled).unwrap();
                FakeReply::Json(200, json!({}))
            }
            _ if kit::is_streaming_list(&request.path) => failure(422),
            _ if kit::is_watch(&request.path) => FakeReply::Hang,
            (_, "/api/v1/pods") => FakeReply::Json(200, pods.clone()),
            (_, "/api/v1/namespaces") => FakeReply::Json(200, namespaces.clone()),
            _ => failure(404),
        }
    })
}

#[test]
fn annotations_are_withdrawn_before_rules_are_removed() {
    let mut fixture = InPod::stopped(NodeOptions::default(), &[("CLEANUP_ON_EXIT", "always")]);
    let pod = fixture.running_pod(MESH, "one");
    let (tell, withdrawn) = mpsc::channel();
    let _api = with_one_pod(&fixture, &pod.sandbox, tell);
    let address = fixture.node.outside_ip(false).to_string();
    fixture.container.set_account("token", Pki::shared().server_ca_pem());
    for (key, value) in [("POD_SOURCE", "api"), ("KUBERNETES_SERVICE_HOST", &address)] {
        fixture.container.set_env(key, value);
    }
    fixture.container.set_env("KUBERNETES_SERVICE_PORT", "6443");
    fixture.start();
    fixture.eventually("the pod has its rules", |_| fixture.is_ruled(&pod));
    let (status, log) = fixture.daemon.take().unwrap().terminate();
    assert!(status.success(), "{log}");
    assert!(fixture.is_bare(&pod), "{log}");
    assert_eq!(withdrawn.try_iter().last(), Some(true), "{log}");
}

#[test]
fn a_stopped_agent_leaves_pods_captured() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[]);
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let peer = fixture.mesh_pod("app");
    let (status, log) = fixture.daemon.take().unwrap().terminate();
    assert!(status.success(), "{log}");
    assert!(fixture.is_ruled(&peer) && fixture.is_probed(peer.ip(false)), "{log}");
    let _ = peer.tcp((fixture.node.outside_ip(false), PORT).into()).unwrap();
    let _ = ztunnel.wait_seen(|one| one.src.ip() == peer.ip(false));
    fixture.start();
    ztunnel.wait_for_snapshots(2);
    assert_eq!(ztunnel.workload(&peer.sandbox.pod.uid).unwrap().state, kit::WorkloadState::Up);
}
