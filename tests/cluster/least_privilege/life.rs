//! The life of an agent in which it uses all permissions of its account, and the features that failed.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use kit::{ApiServer, Daemon, InpodOptions, InpodZtunnel, Pod, istio};
use serde_json::{Value, json};

use super::grants::{Grants, Verb, token};
use crate::install_api::fixture::{ClusterFixture, DAEMON_SET};
use crate::install_manifests::documents::{AMBIENT, IN_POD, SIDECAR};

/// Time limit of each feature, of which one is expected to fail: all complete within a second on an idle machine.
const LIMIT: Duration = Duration::from_secs(8);
/// The same if all are expected to complete.
const LONG_LIMIT: Duration = Duration::from_secs(60);
const MARK: &str = "ambient.istio.io/redirection";

/// Observations of an agent's life.
pub(super) struct Life {
    /// Names of failed features.
    pub(super) failed: BTreeSet<&'static str>,
    /// Logs of the agent.
    pub(super) log: String,
    /// Time limit of each feature.
    limit: Duration,
}

/// A node with its own namespace.
enum Cluster {
    Sidecar(ClusterFixture),
    Ambient(crate::ambient_api::Cluster),
    InPod(crate::inpod_api::Cluster),
}

impl Cluster {
    fn new(file: &str, name: &'static str) -> Option<Cluster> {
        let none = json!([]);
        Some(match file {
            SIDECAR => Cluster::Sidecar(ClusterFixture::allowed(name, &none)?),
            AMBIENT => Cluster::Ambient(crate::ambient_api::Cluster::allowed(name, &none)?),
            IN_POD => Cluster::InPod(crate::inpod_api::Cluster::allowed(name, &none)?),
            other => panic!("{other}"),
        })
    }

    fn fixture(&self) -> &ClusterFixture {
        match self {
            Cluster::Sidecar(fixture) => fixture,
            Cluster::Ambient(cluster) => &cluster.fixture,
            Cluster::InPod(cluster) => &cluster.fixture,
        }
    }

    fn scene_mut(&mut self) -> &mut ClusterFixture {
        match self {
            Cluster::Sidecar(fixture) => fixture,
            Cluster::Ambient(cluster) => &mut cluster.fixture,
            Cluster::InPod(cluster) => &mut cluster.fixture,
        }
    }
}

/// The plugin's entry with paths outside the container, where the tests run it.
fn template(fixture: &ClusterFixture, ambient: bool, level: &str) -> String {
    let mut template: Value = serde_json::from_str(kit::NETWORK_CONFIG).unwrap();
    template["log_level"] = json!(level);
    template["log_uds_address"] = json!(fixture.node.run_dir().join("log.sock"));
    if ambient {
        template["ambient_enabled"] = json!(true);
        template["agent_socket"] = json!(fixture.node.run_dir().join("agent.sock"));
    }
    template.to_string()
}

/// Whether the API server shows that a pod is captured.
fn is_marked(fixture: &ClusterFixture, pod: &str) -> bool {
    fixture.api.admin().get(pod)["metadata"]["annotations"][MARK] == json!("enabled")
}

/// Runs an agent's life with the rules of a manifest, without one verb, and with the policy.
pub(super) fn live(file: &str, name: &'static str, missing: Option<&Verb>) -> Option<Life> {
    let mut cluster = Cluster::new(file, name)?;
    let ambient = file != SIDECAR;
    let fixture = cluster.scene_mut();
    let api = fixture.api;
    let _grants = [Grants::roles(api, file, name, missing), Grants::policy(api, name)];
    fixture.container.set_account(&token(api, name, name, "agent-x7k2p"), api.ca_pem());
    let net_d = fixture.node.net_d();
    let first = template(fixture, ambient, "debug");
    for (key, value) in [("CNI_NET_DIR", net_d.to_str().unwrap()), ("CNI_NETWORK_CONFIG", &first)] {
        fixture.container.set_env(key, value);
    }
    fixture.container.set_env("POD_NAME", "agent-x7k2p");
    fixture.container.set_env("NODE_CONDITION", "false");
    fixture.configure(&first);

    let limit = if missing.is_some() { LIMIT } else { LONG_LIMIT };
    let mut life = Life { failed: BTreeSet::new(), log: String::new(), limit };
    let daemon = cluster.fixture().container.start();
    life.expects("ready", || daemon.is_ready());
    life.follows(cluster.fixture(), ambient, &daemon);
    life.captures(&cluster);
    life.log += &daemon.log();
    drop(daemon); // SIGKILL: the plugin acts alone
    life.starts_a_pod(cluster.fixture());
    life.cleans_up(cluster.fixture());
    Some(life)
}

impl Life {
    fn expects(&mut self, what: &'static str, holds: impl FnMut() -> bool) {
        if kit::found_within(self.limit, holds).is_none() {
            self.failed.insert(what);
        }
    }

    /// Watches: ConfigMap, DaemonSet, Events.
    fn follows(&mut self, fixture: &ClusterFixture, ambient: bool, daemon: &Daemon) {
        // Its request at startup may already return the DaemonSet: only a watch shows the deletion.
        fixture.create_daemon_set(DAEMON_SET);
        self.expects("its DaemonSet", || daemon.logged("found the agent's DaemonSet", DAEMON_SET) > 0);
        fixture.api.admin().delete(&fixture.daemon_set());
        self.expects("its DaemonSet", || {
            daemon.logged("the agent's DaemonSet has been deleted or is being deleted", "daemon_set=") > 0
        });
        fixture.create_daemon_set(DAEMON_SET);
        let level = || {
            let text = fs::read(fixture.conflist()).unwrap_or_default();
            let conflist: Value = serde_json::from_slice(&text).unwrap_or_default();
            conflist["plugins"].as_array().and_then(|all| all.last()?.get("log_level").cloned())
        };
        fixture.edit(&template(fixture, ambient, "warn"));
        self.expects("its ConfigMap", || level() == Some(json!("warn")));
        let refused = |count: u64| {
            fixture.events("CNIConfigRefused").iter().any(|event| event["count"].as_u64() >= Some(count))
        };
        fixture.edit("nonsense");
        self.expects("an Event", || refused(1));
        fixture.edit(&template(fixture, ambient, "info"));
        let _ = kit::found_within(self.limit / 4, || level() == Some(json!("info")));
        fixture.edit("nonsense");
        self.expects("an Event that is counted", || refused(2));
    }

    /// Captures a pod of the mesh, with ambient mode.
    fn captures(&mut self, cluster: &Cluster) {
        match cluster {
            Cluster::Sidecar(_) => {}
            Cluster::Ambient(cluster) => {
                let pod = cluster.create("web", true, |_| ());
                let web = cluster.fixture.node.pod(pod, &[]);
                cluster.tell("web", &web.manifest());
                cluster.label("ambient");
                self.expects("capture", || {
                    cluster.fixture.node.netns().sh("ipset save").contains(&web.pod.uid)
                });
                self.expects("its mark", || is_marked(&cluster.fixture, &cluster.path("web")));
            }
            Cluster::InPod(cluster) => {
                let socket = cluster.sockets.path().join("ztunnel.sock");
                let ztunnel =
                    InpodZtunnel::start(&cluster.fixture.node, "ztunnel-a", &socket, InpodOptions::default());
                let web = cluster.fixture.node.pod(cluster.create("web"), &[]);
                cluster.runs(&web, 11);
                cluster.label("ambient");
                self.expects("capture", || ztunnel.workload(&web.pod.uid).is_some());
                self.expects("its mark", || is_marked(&cluster.fixture, &cluster.path("web")));
                self.looks_up(&cluster.fixture);
            }
        }
    }

    /// Starts a pod of the mesh whose ADD precedes its event in the watch: the API server does not show it on this node.
    fn looks_up(&mut self, fixture: &ClusterFixture) {
        let object = fixture.api.create_pod(&ApiServer::pod(fixture.name, "early"));
        let plugin = json!({
            "type": "istio-cni", "ambient_enabled": true, "agent_socket": fixture.node.run_dir().join("agent.sock"),
        });
        let conflist = fixture.node.conflist(&[plugin]);
        if let Err(error) =
            fixture.node.add_pod(&fixture.node.runtime(), &conflist, Pod::from_object(&object))
        {
            self.log += &error.to_string();
            self.failed.insert("an early pod's start");
        }
    }

    /// Starts a pod with a sidecar through the plugin, the kubeconfig and the entry that the agent installed.
    fn starts_a_pod(&mut self, fixture: &ClusterFixture) {
        let object = fixture.api.create_pod(&istio::injected_pod(fixture.name, "app"));
        let runtime = fixture.node.runtime().with_plugins(&fixture.container.bin_dir());
        let conflist: Value = serde_json::from_slice(&fs::read(fixture.conflist()).unwrap()).unwrap();
        match fixture.node.add_pod(&runtime, &conflist, Pod::from_object(&object)) {
            Ok(pod) => {
                self.expects("a pod's start", || {
                    kit::plugin_rules::is_redirected(&pod.netns, "iptables-save")
                });
            }
            Err(error) => {
                self.log += &error.to_string();
                self.failed.insert("a pod's start");
            }
        }
    }

    /// At its end an agent finds that its DaemonSet no longer selects the node.
    fn cleans_up(&mut self, fixture: &ClusterFixture) {
        let node = format!("/api/v1/nodes/{}", fixture.name);
        fixture.api.admin().patch(&node, &json!({"metadata": {"labels": {"kubernetes.io/os": null}}}));
        let daemon = fixture.container.start();
        let _ = kit::found_within(self.limit, || {
            daemon.is_ready() && daemon.logged("found the agent's DaemonSet", DAEMON_SET) > 0
        });
        let (_, log) = daemon.terminate();
        if kit::logged(&log, "the plugin is removed", "") == 0 {
            self.failed.insert("its cleanup");
        }
        self.log += &log;
    }
}
