//! Metrics of a running agent, after all events that it counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::{fs, thread};

use kit::{Daemon, InpodOptions, NodeOptions, Pod, SetOnDrop};
use serde_json::json;

use crate::fixtures::ambient::{Ambient, MESH, PLAIN};
use crate::fixtures::inpod::InPod;
use crate::install_api::events::contend;
use crate::install_api::fixture::template;

/// Metrics, their labels, and the labels' values.
pub(super) type Catalogue = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Adds the samples of `/metrics`.
fn add(catalogue: &mut Catalogue, text: &str) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (sample, _value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let known = catalogue.entry(name.to_owned()).or_default();
        // Our values contain neither commas nor quotes.
        for pair in labels.trim_end_matches('}').split(',').filter(|pair| !pair.is_empty()) {
            let (label, value) = pair.split_once('=').unwrap_or_else(|| panic!("{line}"));
            known.entry(label.to_owned()).or_default().insert(value.trim_matches('"').to_owned());
        }
    }
}

fn metrics(daemon: &Daemon) -> String {
    let (status, text) = daemon.get(15014, "/metrics").unwrap();
    assert_eq!(status, 200);
    text
}

/// Metrics of a node with each capture mode.
pub(super) fn exported() -> Catalogue {
    let mut catalogue = Catalogue::new();
    add(&mut catalogue, &on_the_node());
    add(&mut catalogue, &from_within());
    // `enrolment` defines the reasons of refusals, not all of which occur here.
    let reasons = enrolment::SkipReason::ALL.into_iter().filter(|reason| reason.is_refusal());
    let refused = catalogue.get_mut("istio_cni_ambient_refused_pods").unwrap();
    refused.get_mut("reason").unwrap().extend(reasons.map(|reason| reason.code().to_owned()));
    // Repair watches pods at an API server, of which there is none here.
    let of = |values: &[&str]| values.iter().map(ToString::to_string).collect();
    let results = ("result".to_owned(), of(&["success", "skip", "fail"]));
    let repaired = BTreeMap::from([("type".to_owned(), of(&["delete", "label", "repair"])), results]);
    catalogue.insert("istio_cni_repair_pods_repaired_total".to_owned(), repaired);
    catalogue.extend(of_kube_state_metrics());
    catalogue
}

/// From its documentation: an agent that does not run exports nothing.
fn of_kube_state_metrics() -> Catalogue {
    let names = || ["namespace", "pod"].map(|label| (label.to_owned(), BTreeSet::new()));
    let only = |label: &str, value: &str| (label.to_owned(), BTreeSet::from([value.to_owned()]));
    let owner = [only("created_by_kind", "DaemonSet"), only("created_by_name", "istio-cni-node")];
    Catalogue::from([
        ("kube_pod_info".to_owned(), names().into_iter().chain(owner).collect()),
        (
            "kube_pod_status_ready".to_owned(),
            names().into_iter().chain([only("condition", "true")]).collect(),
        ),
    ])
}

fn on_the_node() -> String {
    let env = [("CNI_NETWORK_CONFIG_FILE", "/etc/template")];
    let mut fixture = Ambient::stopped(NodeOptions::default(), &env);
    let file = fixture.container.root().join("etc/template");
    fs::write(&file, template("info")).unwrap();
    fixture.start();
    let conflist = fixture.container.net_d().join("10-kit.conflist");
    let original = serde_json::to_string(&fixture.node.conflist(&[])).unwrap();
    fs::write(&file, template("warn")).unwrap();
    fixture.daemon().wait_for("a new configuration", |daemon| {
        daemon.metric(r#"istio_cni_config_updates_total{result="applied"}"#) >= Some(1.0)
    });
    // A component that undoes each repair immediately is a conflicting writer.
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        scope.spawn(|| contend(&conflist, original.as_bytes(), &stop));
        fixture.daemon().wait_for("a conflict", |daemon| {
            daemon.metric(r#"istio_cni_conflicts_total{file="network configuration"}"#) >= Some(1.0)
        });
    });
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _pod = fixture.pod(MESH, "web");
    let mut refused = Pod::new(MESH, "refused").manifest(&["10.1.2.3".parse().unwrap()]);
    refused["spec"]["hostNetwork"] = json!(true);
    fixture.manifests.put_pod(&refused);
    fixture.settle();
    fixture.node.netns().sh("ip -4 rule del priority 101");
    // A pod outside the mesh starts a pass.
    fixture.manifests.put_pod(&Pod::new(PLAIN, "other").manifest(&["10.1.2.4".parse().unwrap()]));
    fixture.daemon().wait_for("a repair", |daemon| {
        daemon.metric(r#"istio_cni_ambient_repairs_total{place="node"}"#) == Some(1.0)
    });
    metrics(fixture.daemon())
}

fn from_within() -> String {
    let mut fixture = InPod::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let pod = fixture.mesh_pod("web");
    fixture.wait_captured(&pod);
    metrics(fixture.daemon())
}
