//! The plugin, called with the files that the agent wrote, and its log lines in the agent's log.

use std::fs;

use kit::{Daemon, Pod, PodSandbox, istio};
use serde_json::Value;

use super::fixture::ClusterFixture;

/// A fixture in which the plugin finds the paths that the agent writes into the entry.
fn fixture(name: &'static str) -> Option<ClusterFixture> {
    let fixture = ClusterFixture::start(name)?;
    let (net_d, socket) = (fixture.node.net_d(), fixture.node.run_dir().join("log.sock"));
    let (net_d, socket) = (net_d.to_str().unwrap().to_owned(), socket.to_str().unwrap().to_owned());
    // The socket's directory has another path in the container than here, where the plugin runs.
    let template = kit::NETWORK_CONFIG.replace("__LOG_UDS_ADDRESS__", &socket);
    Some(fixture.with_env("CNI_NET_DIR", &net_d).with_env("CNI_NETWORK_CONFIG", &template))
}

/// A sidecar pod, started with the agent's binaries and conflist.
fn pod(fixture: &ClusterFixture, name: &str) -> PodSandbox {
    let conflist: Value = serde_json::from_slice(&fs::read(fixture.conflist()).unwrap()).unwrap();
    let object = fixture.api.create_pod(&istio::injected_pod(fixture.name, name));
    let runtime = fixture.node.runtime().with_plugins(&fixture.container.bin_dir());
    let added = fixture.node.add_pod(&runtime, &conflist, Pod::from_object(&object));
    added.unwrap_or_else(|error| panic!("{error}"))
}

/// What the plugin has said about a pod itself.
fn stderr_of(pod: &PodSandbox) -> String {
    pod.calls.last().unwrap().output.stderr_text()
}

/// A pod whose lines the daemon has taken within the plugin's 100 ms: on a busy machine, not the first one.
fn quiet_pod(fixture: &ClusterFixture) -> PodSandbox {
    let mut pods = (0..10).map(|number| pod(fixture, &format!("web-{number}")));
    pods.find(|pod| stderr_of(pod).is_empty()).expect("what the daemon has need not be said twice")
}

/// The agent's log line about the pod.
fn line(daemon: &mut Daemon, pod: &PodSandbox) -> String {
    let (words, container) = ("redirected to its sidecar", &pod.pod.container_id);
    let is_line = |line: &&str| line.contains(words) && line.contains(container);
    daemon.wait_for("the plugin's line", |daemon| daemon.log().lines().any(|line| is_line(&line)));
    let log = daemon.log();
    log.lines().find(is_line).unwrap().to_owned()
}

fn is_time(text: &str) -> bool {
    text.len() == "2026-11-21T09:31:16.425736Z".len() && text.ends_with('Z') && text.starts_with("20")
}

#[test]
fn the_plugins_lines_are_in_the_daemons_log() {
    let Some(fixture) = fixture("lines-text") else { return };
    let mut daemon = fixture.daemon();
    let pod = quiet_pod(&fixture);
    assert!(kit::plugin_rules::is_redirected(&pod.netns, "iptables-save"), "it is captured");
    let line = line(&mut daemon, &pod);
    let columns: Vec<&str> = line.split('\t').collect();
    let [time, level, scope, message, labels] = columns.as_slice() else { panic!("{line}") };
    assert!(is_time(time), "{line}");
    assert_eq!((*level, *scope), ("info", "cni"));
    assert!(message.starts_with("redirected to its sidecar"), "{line}");
    let labels: Vec<&str> = labels.split(' ').collect();
    for label in [
        "command=ADD",
        "decision=sidecar",
        "if=eth0",
        &format!("pod=lines-text/{}", pod.pod.name),
        &format!("container={}", pod.pod.container_id),
    ] {
        assert!(labels.contains(&label), "no {label}: {line}");
    }
    let times: Vec<&str> = labels.iter().filter_map(|label| label.strip_prefix("plugin_time=")).collect();
    assert!(matches!(times.as_slice(), [time] if is_time(time)), "{line}");
}

#[test]
fn the_plugins_lines_are_json_where_the_daemons_are() {
    let Some(fixture) = fixture("lines-json") else { return };
    let mut daemon = fixture.container.start_with(&["--log_as_json"], &[]);
    daemon.wait_until_ready();
    let pod = quiet_pod(&fixture);
    let line = line(&mut daemon, &pod);
    let record: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let text = |key: &str| record[key].as_str().unwrap_or_else(|| panic!("no {key}: {line}"));
    let name = format!("lines-json/{}", pod.pod.name);
    assert_eq!((text("level"), text("scope"), text("pod")), ("info", "cni", name.as_str()));
    assert_eq!((text("command"), text("decision")), ("ADD", "sidecar"));
    assert_eq!(text("container"), pod.pod.container_id);
    assert!(is_time(text("time")) && is_time(text("plugin_time")), "{line}");
    let log = daemon.log();
    assert!(log.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{log}");
}

#[test]
fn what_the_plugin_says_goes_to_stderr_when_the_daemon_has_ended() {
    let Some(fixture) = fixture("lines-ended") else { return };
    let (status, log) = fixture.daemon().terminate();
    assert!(status.success(), "{log}");
    assert!(!fixture.node.run_dir().join("log.sock").exists(), "nobody shall connect in vain");
    let stderr = stderr_of(&pod(&fixture, "web"));
    let record: Value = serde_json::from_str(&stderr).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    assert_eq!((&record["command"], &record["decision"]), (&"ADD".into(), &"sidecar".into()), "{stderr}");
}
