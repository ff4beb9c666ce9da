//! Pods outside the mesh: nothing is changed, and no request is sent if the decision needs none.

use std::time::Duration;

use kit::{ApiServer, NodeOptions, istio};
use serde_json::{Value, json};

use super::Cluster;
use crate::fixtures::plugin::{V4, bare_pod, tables};

/// Runs ADD, which must skip the pod for this reason; true if it sent a request to the API server.
fn passes(
    cluster: &Cluster,
    call: &crate::fixtures::plugin::Call<'_>,
    pod: &kit::Netns,
    reason: &str,
) -> bool {
    let before = cluster.asked().len();
    let outcome = call.run();
    outcome.ok();
    assert!(outcome.log().iter().any(|record| record["decision"] == reason), "{reason}: {outcome}");
    assert_eq!(tables(pod), "", "{reason}");
    cluster.asked().len() > before
}

/// Pods that are skipped even if the runtime passes no annotations, by reason.
fn pods_outside(cluster: &Cluster) -> Vec<(&'static str, Value)> {
    let injected = |name| istio::injected_pod(cluster.namespace, name);
    let changed = |name, change: fn(&mut Value)| {
        let mut pod = injected(name);
        change(&mut pod);
        pod
    };
    vec![
        (
            "not-injected",
            changed("not-injected", |pod| pod["metadata"]["annotations"] = json!({"note": "x"})),
        ),
        ("not-injected", ApiServer::pod(cluster.namespace, "plain")),
        ("no-proxy", changed("no-proxy", |pod| pod["spec"]["containers"][1]["name"] = json!("envoy"))),
        (
            "not-a-sidecar",
            changed("not-a-sidecar", |pod| pod["spec"]["containers"][1]["args"][1] = json!("router")),
        ),
        (
            "istio-init",
            changed("istio-init", |pod| {
                pod["spec"]["initContainers"] = json!([{"name": "istio-init", "image": "i"}]);
            }),
        ),
        (
            "injection-refused",
            changed("injection-refused", |pod| {
                pod["metadata"]["labels"]["sidecar.istio.io/inject"] = json!("false");
            }),
        ),
        ("envoy-disabled", istio::with_proxy_env(injected("envoy-disabled"), "DISABLE_ENVOY", "true")),
        (
            "interception-none",
            istio::annotated(injected("interception-none"), "sidecar.istio.io/interceptionMode", "NONE"),
        ),
        ("host-network", changed("host-network", |pod| pod["spec"]["hostNetwork"] = json!(true))),
    ]
}

#[test]
fn a_pod_that_is_not_in_the_mesh_is_left_alone() {
    let Some(cluster) = Cluster::start("outside", NodeOptions::default()) else { return };
    let pod = bare_pod(V4);
    for (reason, object) in pods_outside(&cluster) {
        let stored = cluster.api.create_pod(&object);
        let name = object["metadata"]["name"].as_str().unwrap();
        let asked = passes(&cluster, &cluster.add(&pod, name), &pod, reason);
        assert!(asked, "{reason}: without annotations from the runtime only the API server knows");
        let annotations = stored["metadata"]["annotations"].clone();
        let annotations = if annotations.is_null() { json!({}) } else { annotations };
        let told = cluster.add(&pod, name).annotations(&annotations);
        let spared = matches!(reason, "not-injected" | "interception-none");
        assert_eq!(!passes(&cluster, &told, &pod, reason), spared, "{reason}");
    }
}

#[test]
fn annotations_from_the_runtime_spare_the_request_even_without_an_api_server() {
    let Some(cluster) = Cluster::start("outside-told", NodeOptions::default()) else { return };
    let pod = bare_pod(V4);
    let nowhere = cluster.node.net_d().join("missing");
    let plain =
        cluster.add(&pod, "never-created").kubeconfig(&nowhere).annotations(&json!({"note": "plain"}));
    assert!(!passes(&cluster, &plain, &pod, "not-injected"));
    let ambient =
        cluster.add(&pod, "never-created").kubeconfig(&nowhere).with("ambient_enabled", json!(true));
    let opted_out = ambient.annotations(&json!({"ambient.istio.io/redirection": "disabled"}));
    assert!(!passes(&cluster, &opted_out, &pod, "not-injected"));
}

#[test]
fn an_excluded_namespace_needs_no_api_server() {
    let Some(cluster) = Cluster::start("outside-excluded", NodeOptions::default()) else { return };
    let dead = cluster.api.kubeconfig(&kit::Auth::Token("t".into())).replace(":6443", ":1");
    let dead = istio::write_file(&cluster.node, "dead", &dead);
    let pod = bare_pod(V4);
    let excluded = |names: &[&str]| {
        let call = cluster.add(&pod, "web").kubeconfig(&dead).kubernetes("api_timeout_seconds", json!(1));
        call.kubernetes("exclude_namespaces", json!(names))
    };
    let call = excluded(&["istio-system", cluster.namespace]);
    let is_quick = (0..3).any(|_| {
        let outcome = call.run();
        outcome.ok();
        outcome.wall() < Duration::from_secs(2)
    });
    assert!(is_quick, "it waits for the API server");
    assert!(!passes(&cluster, &call, &pod, "excluded-namespace"));
    // Even if the pod has a sidecar; and only by its exact name.
    passes(
        &cluster,
        &call.annotations(&json!({"sidecar.istio.io/status": "{}"})),
        &pod,
        "excluded-namespace",
    );
    for others in [&["outside"][..], &["outside-excluded2"], &["Outside-Excluded"], &["outside-*"], &[]] {
        assert_eq!(excluded(others).run().refused().code, 11, "{others:?}");
    }
}

#[test]
fn the_agents_own_pod_starts_before_anything_works() {
    let Some(cluster) = Cluster::start("outside-agent", NodeOptions::default()) else { return };
    let pod = bare_pod(V4);
    let missing = cluster.node.net_d().join("not-yet-written");
    let call = |name: &str| {
        let call = cluster.add(&pod, name).kubeconfig(&missing);
        call.with("pod_namespace", json!(cluster.namespace))
    };
    assert!(!passes(&cluster, &call("istio-cni-node-x7k2p"), &pod, "agent-pod"));
    assert_eq!(call("istio-cni-x7k2p").run().refused().code, 11);
    assert_eq!(call("istio-cni-node-x7k2p").pod("default", "istio-cni-node-x7k2p").run().refused().code, 11);
}

#[test]
fn a_call_that_names_no_pod_is_left_alone() {
    let Some(cluster) = Cluster::start("outside-nameless", NodeOptions::default()) else { return };
    let pod = bare_pod(V4);
    let call = || cluster.add(&pod, "web");
    for call in [
        call().unset("CNI_ARGS"),
        call().env("CNI_ARGS", ""),
        call().env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=web"),
        call().env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=;K8S_POD_NAMESPACE=x"),
    ] {
        assert!(!passes(&cluster, &call, &pod, "no-pod"));
    }
}
