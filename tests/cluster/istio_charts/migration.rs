//! From Istio's agent to ours under the same chart, and back: the steps of docs/migrate.md.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::chart::named;
use super::release::Release;

const FILE: &str = "10-kit.conflist";
/// Stands in for Istio's plugin.
const ISTIO_PLUGIN: &str = "#!/bin/sh\necho Istio\n";

/// Changes that Istio's agent makes to a node: in versions up to 1.20, and since 1.29.
#[derive(Clone, Copy, PartialEq)]
enum Istio {
    Old,
    New,
}

impl Istio {
    fn kubeconfig(self, release: &Release) -> PathBuf {
        match self {
            Istio::Old => release.container.net_d().join("ZZZ-istio-cni-kubeconfig"),
            Istio::New => release.node.run_dir().join("istio-cni-kubeconfig"),
        }
    }

    fn entry(self) -> Value {
        let common = json!({"name": "istio-cni", "type": "istio-cni", "ipam": {}, "dns": {}});
        let mut entry = common;
        match self {
            Istio::Old => {
                entry["log_level"] = json!("debug");
                entry["log_uds_address"] = json!("/var/run/istio-cni/log.sock");
                entry["kubernetes"] = json!({
                    "kubeconfig": "/etc/cni/net.d/ZZZ-istio-cni-kubeconfig", "cni_bin_dir": "/opt/cni/bin",
                    "exclude_namespaces": ["istio-system", "kube-system"],
                });
            }
            Istio::New => {
                entry["plugin_log_level"] = json!("info");
                entry["cni_agent_run_dir"] = json!("/var/run/istio-cni");
                entry["exclude_namespaces"] = json!(["kube-system"]);
                entry["pod_namespace"] = json!("istio-system");
            }
        }
        entry
    }

    fn install(self, release: &Release) {
        self.edit(release, Some(self.entry()));
        fs::write(self.kubeconfig(release), "apiVersion: v1\nkind: Config\n").unwrap();
        fs::write(release.container.bin_dir().join("istio-cni"), ISTIO_PLUGIN).unwrap();
    }

    /// Istio's own cleanup: the entry, the kubeconfig, the plugin.
    fn clean_up(self, release: &Release) {
        self.edit(release, None);
        fs::remove_file(self.kubeconfig(release)).unwrap();
        fs::remove_file(release.container.bin_dir().join("istio-cni")).unwrap();
    }

    /// Removes Istio's entry from the network, whichever agent added it, and appends it.
    fn edit(self, release: &Release, entry: Option<Value>) {
        let path = release.container.net_d().join(FILE);
        let mut network: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let plugins = network["plugins"].as_array_mut().unwrap();
        plugins.retain(|plugin| plugin["type"] != "istio-cni");
        plugins.extend(entry);
        fs::write(path, format!("{network:#}\n")).unwrap();
    }
}

fn entries(release: &Release) -> Vec<Value> {
    let network = fs::read(release.container.net_d().join(FILE)).unwrap();
    let network: Value = serde_json::from_slice(&network).unwrap();
    let plugins = network["plugins"].as_array().unwrap().iter();
    plugins.filter(|plugin| plugin["type"] == "istio-cni").cloned().collect()
}

fn names(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

/// Replaces only the image, there and back. Returns the files that remain after the cleanup of Istio's agent.
fn there_and_back(case: &str, istio: Istio) -> Option<Vec<String>> {
    let mut chart = named(case);
    chart.name = format!("migrate-{case}");
    let mut release = Release::install(chart)?;
    istio.install(&release);
    release.create_pod();
    let daemon = release.start();
    let [entry] = entries(&release).try_into().unwrap();
    assert_ne!(entry, istio.entry(), "the entry is ours: {entry}");
    let plugin = fs::read(release.container.bin_dir().join("istio-cni")).unwrap();
    assert!(plugin != ISTIO_PLUGIN.as_bytes(), "the plugin is ours");
    let kubeconfig = fs::read_to_string(istio.kubeconfig(&release)).unwrap();
    let parsed: Value = serde_saphyr::from_str(&kubeconfig).unwrap();
    assert!(parsed["users"][0]["user"]["token"].is_string(), "the kubeconfig is ours: {kubeconfig}");

    release.delete_pod();
    let (log, _) = release.stop(daemon);
    assert!(release.is_installed(), "{log}");
    release.finish_pod();
    istio.install(&release);
    assert_eq!(entries(&release), [istio.entry()], "Istio's agent finds nothing that it does not replace");
    istio.clean_up(&release);
    Some(names(&release.left_behind().into_iter().filter(|path| !path.ends_with(FILE)).collect::<Vec<_>>()))
}

#[test]
fn a_node_with_istios_agent_is_taken_over_in_place_and_given_back() {
    // The remaining files are listed in docs/migrate.md.
    for (case, istio, expected) in [
        ("1-20-8-default", Istio::Old, &["agent.lock", "agent.sock"][..]),
        ("1-24-6-default", Istio::New, &["agent.lock", "agent.sock"]),
        (
            "1-29-1-ambient",
            Istio::New,
            &["agent.lock", "agent.sock", "history.jsonl", "settings-before.json"],
        ),
    ] {
        let Some(left) = there_and_back(case, istio) else { return };
        assert_eq!(left, expected, "{case}");
    }
}

#[test]
fn what_istios_agent_left_is_removed_by_an_uninstallation_of_ours() {
    for (case, istio) in [("1-20-8-default", Istio::Old), ("1-29-1-default", Istio::New)] {
        let mut chart = named(case);
        chart.name = format!("takeover-{case}");
        let Some(mut release) = Release::install(chart) else { return };
        istio.install(&release);
        release.create_pod();
        let daemon = release.start();
        release.wait_until_pod_is_read();
        release.delete_daemon_set();
        release.delete_rest();
        release.delete_pod();
        let (log, _) = release.stop(daemon);
        let network = release.container.net_d().join(FILE);
        let left: Vec<_> = release.left_behind().into_iter().filter(|path| *path != network).collect();
        assert_eq!((entries(&release), left), (Vec::new(), Vec::new()), "{log}");
    }
}
