//! The agent with exactly the settings, mounts, capabilities and rights that our chart gives it.

use serde_json::{Value, json};

use super::helm::{Helm, each, object};
use crate::istio_charts::chart::Chart;
use crate::istio_charts::every_case::live;

/// Converts objects to the form of the recordings, which the tests of Istio's charts use.
fn recorded(name: &str, objects: &[Value]) -> Chart {
    let daemon_set = object(objects, "DaemonSet", "istio-cni-node");
    let template = &daemon_set["spec"]["template"];
    let spec = &template["spec"];
    let (mut container, mut volumes) = (spec["containers"][0].clone(), spec["volumes"].clone());
    // A file, which the kit's container already has.
    for list in [&mut container["volumeMounts"], &mut volumes] {
        list.as_array_mut().unwrap().retain(|one| one["name"] != "xtables-lock");
    }
    let of = |kind: &'static str| objects.iter().filter(move |one| one["kind"] == kind);
    let maps: serde_json::Map<_, _> = of("ConfigMap")
        .map(|one| (one["metadata"]["name"].as_str().unwrap().to_owned(), one["data"].clone()))
        .collect();
    let mut rbac: Vec<Value> = of("ClusterRole")
        .map(|one| json!({"kind": "ClusterRole", "name": one["metadata"]["name"], "rules": one["rules"]}))
        .collect();
    // All of its rules name their objects, so it does not matter that these rules apply to every namespace.
    rbac.extend(of("Role").map(|one| json!({"kind": "ClusterRole", "name": "own", "rules": one["rules"]})));
    Chart::new(
        name,
        json!({
            "configmaps": maps, "rbac": rbac, "test": object(objects, "Pod", "istio-cni-test")["spec"],
            "daemonset": {
                "name": "istio-cni-node", "containers": [container], "volumes": volumes,
                "hostNetwork": spec["hostNetwork"] == true, "tolerations": spec["tolerations"],
                "podLabels": template["metadata"]["labels"], "podAnnotations": template["metadata"]["annotations"],
                "terminationGracePeriodSeconds": spec["terminationGracePeriodSeconds"],
                "updateStrategy": daemon_set["spec"]["updateStrategy"],
            },
        }),
    )
}

#[test]
fn the_agent_lives_with_what_the_chart_gives_it_in_every_mode() {
    const OLD: &str = "compatibilityVersion=1.20";
    let Some(helm) = Helm::find() else { return };
    let cases: Vec<(&str, &[&str])> = vec![
        ("sidecar", &["repair.enabled=false"]),
        ("inspected", &["repair.enabled=false", "millrace.inspectSidecars=true"]),
        ("repair", &[]),
        ("delete", &["repair.repairPods=false", "repair.deletePods=true"]),
        ("label", &["repair.repairPods=false", "repair.labelPods=true"]),
        ("ambient", &["profile=ambient"]),
        ("owned", &["profile=ambient", "istioOwnedCNIConfig=true"]),
        ("minikube", &["profile=ambient", "platform=minikube"]),
        ("standalone", &["chained=false", "cniConfFileName=istio-cni.conf"]),
        ("old", &[OLD]),
        ("old-node", &[OLD, "cni.ambient.enabled=true"]),
        ("old-in-pod", &[OLD, "ambient.enabled=true", "millrace.ambientCapture=in-pod"]),
        ("options", &["profile=ambient", "millrace.existingConnections=reset", "millrace.debugPort=0"]),
    ];
    each(cases, |(name, set)| {
        let objects = helm.template(set).unwrap();
        live(recorded(&format!("chart-{name}"), &objects))
    });
}
