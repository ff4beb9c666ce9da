//! The agent: it installs the plugin, repairs the node, follows its ConfigMap, and leaves nothing behind.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use kit::Daemon;
use serde_json::{Value, json};

use crate::{
    cluster::{CONFIG_MAP, Cluster, DAEMON_SET},
    show::Show,
};

/// A first start, on a node that has only its primary network.
pub(crate) fn install(cluster: &Cluster, show: &mut Show) -> Daemon {
    show.chapter("install-cni starts on the node");
    let started = Instant::now();
    let mut daemon = cluster.daemon();
    daemon.wait_until_ready();
    show.note(format!("/readyz says 200 after {:.0?}, the container's start included", started.elapsed()));
    let (net_d, bin) = (cluster.node.net_d(), cluster.container.bin_dir());
    show.check(names(&bin) == "istio-cni", format!("the node's bin dir has {}", names(&bin)));
    show.check(
        net_d.join("ZZZ-istio-cni-kubeconfig").is_file(),
        format!("its conf dir has {}", names(&net_d)),
    );
    show.check(chain(cluster) == "ptp istio-cni", format!("the chain is {}", chain(cluster)));
    daemon
}

/// Damages, and the time until their repair.
pub(crate) fn damage(cluster: &Cluster, daemon: &mut Daemon, show: &mut Show) {
    show.chapter("the node is damaged, and heals");
    let plugin = cluster.container.bin_dir().join("istio-cni");
    let kubeconfig = cluster.node.net_d().join("ZZZ-istio-cni-kubeconfig");
    let without = cluster.node.conflist(&[]);
    let mut behind = cluster.conflist();
    behind["plugins"].as_array_mut().unwrap().push(json!({"type": "tuning"}));
    let write = |network: &Value| fs::write(&cluster.conflist_path, network.to_string()).unwrap();
    heals(
        daemon,
        show,
        "the plugin was deleted",
        || fs::remove_file(&plugin).unwrap(),
        || fs::metadata(&plugin).is_ok_and(|found| found.len() > 0),
    );
    heals(
        daemon,
        show,
        "the plugin was overwritten",
        || fs::write(&plugin, "x").unwrap(),
        || fs::metadata(&plugin).is_ok_and(|found| found.len() > 1),
    );
    heals(
        daemon,
        show,
        "the kubeconfig was deleted",
        || fs::remove_file(&kubeconfig).unwrap(),
        || kubeconfig.exists(),
    );
    heals(
        daemon,
        show,
        "the primary network was written anew without us",
        || write(&without),
        || chain(cluster) == "ptp istio-cni",
    );
    heals(
        daemon,
        show,
        "another plugin was put behind ours",
        || write(&behind),
        || chain(cluster) == "ptp tuning istio-cni",
    );
    write(&without);
    daemon.wait_for("our entry is back", |daemon| chain(cluster) == "ptp istio-cni" && daemon.is_ready());
}

fn heals(daemon: &mut Daemon, show: &mut Show, what: &str, damage: impl Fn(), is_healed: impl Fn() -> bool) {
    damage();
    let began = Instant::now();
    daemon.wait_for(what, |daemon| is_healed() && daemon.is_ready());
    let took = began.elapsed();
    show.check(
        took < Duration::from_secs(1),
        format!("{what}: put right, and ready again, after {took:.0?}"),
    );
}

/// The operator edits the ConfigMap.
pub(crate) fn reconfigure(cluster: &Cluster, daemon: &mut Daemon, show: &mut Show) {
    show.chapter("the operator edits the ConfigMap");
    let admin = cluster.api.admin();
    let template = admin.get(CONFIG_MAP)["data"]["cni_network_config"].as_str().unwrap().to_owned();
    let edit = |text: &str| admin.patch(CONFIG_MAP, &json!({"data": {"cni_network_config": text}}));
    edit(&template.replace("\"istio-system\"", "\"istio-system\", \"quiet\""));
    let began = Instant::now();
    daemon.wait_for("the node follows", |_| is_excluded(cluster, "quiet"));
    show.check(
        true,
        format!("a namespace more in exclude_namespaces: on the node after {:.0?}", began.elapsed()),
    );
    edit("{ not JSON");
    daemon.wait_for("it is refused", |daemon| {
        daemon.metric(r#"istio_cni_config_updates_total{result="refused"}"#) == Some(1.0)
    });
    let events = || admin.get("/api/v1/namespaces/default/events?fieldSelector=reason%3DCNIConfigRefused");
    daemon.wait_for("there is an Event", |_| !events()["items"].as_array().unwrap().is_empty());
    let stays = is_excluded(cluster, "quiet") && daemon.is_ready();
    let message = events()["items"][0]["message"].as_str().unwrap_or_default().to_owned();
    show.check(stays, "a value that is no JSON is refused, the last good one stays, and so does readiness");
    show.note(format!("Event on the node: {message}"));
    edit(&template);
    daemon.wait_for("the node follows", |_| !is_excluded(cluster, "quiet"));
}

/// Log lines of the plugin arrive in the agent's log.
pub(crate) fn log(daemon: &mut Daemon, show: &mut Show) {
    show.chapter("the plugin's log lines, in the daemon's log");
    let lines = |daemon: &Daemon| {
        let mut lines = kit::log_lines(&daemon.log());
        lines.retain(|line| {
            line.scope == "cni" && line.field("pod").is_some_and(|pod| pod.starts_with("shop/"))
        });
        lines
    };
    daemon.wait_for("lines about pods of shop", |daemon| !lines(daemon).is_empty());
    let lines = lines(daemon);
    lines.iter().take(2).for_each(|line| {
        let pod = line.field("pod").unwrap_or_default();
        show.note(format!("{}  {}  pod={pod}", line.level, line.message));
    });
    show.check(lines.len() >= 4, format!("{} lines about pods of namespace shop have come in", lines.len()));
}

/// An upgrade, and an uninstallation.
pub(crate) fn end(cluster: &Cluster, daemon: Daemon, show: &mut Show) {
    show.chapter("an upgrade, and an uninstallation");
    let (status, _) = daemon.terminate();
    let stays = status.success() && chain(cluster) == "ptp istio-cni";
    show.check(stays, "the pod ends and its DaemonSet is still there: everything stays");
    let started = Instant::now();
    let mut daemon = cluster.daemon();
    daemon.wait_until_ready();
    show.note(format!("the next one is ready after {:.0?}", started.elapsed()));
    daemon.wait_for("it follows its DaemonSet", |_| watches(cluster) >= 2);
    cluster.api.admin().delete(&format!("{DAEMON_SET}/istio-cni-node"));
    let (status, _) = daemon.terminate();
    let left = format!("{} {}", names(&cluster.node.net_d()), names(&cluster.container.bin_dir()));
    let clean =
        status.success() && left == "10-kit.conflist " && cluster.conflist() == cluster.node.conflist(&[]);
    show.check(
        clean,
        format!("the DaemonSet is deleted and the pod ends: the node has {left}, as it was before"),
    );
}

/// Number of started watches of the DaemonSet.
fn watches(cluster: &Cluster) -> usize {
    let requests = cluster.api.requests();
    requests.iter().filter(|request| request.resource == "daemonsets" && request.verb == "watch").count()
}

fn chain(cluster: &Cluster) -> String {
    let conflist = cluster.conflist();
    let types =
        conflist["plugins"].as_array().into_iter().flatten().filter_map(|plugin| plugin["type"].as_str());
    types.collect::<Vec<_>>().join(" ")
}

/// Whether the plugin's entry excludes this namespace.
fn is_excluded(cluster: &Cluster, namespace: &str) -> bool {
    let conflist = cluster.conflist();
    let entry = conflist["plugins"].as_array().and_then(|plugins| plugins.last());
    let excluded = entry.and_then(|entry| entry["kubernetes"]["exclude_namespaces"].as_array());
    excluded.is_some_and(|names| names.iter().any(|name| name == namespace))
}

fn names(directory: &Path) -> String {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names.join(" ")
}
