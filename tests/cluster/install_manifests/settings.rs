//! The agent knows all settings of the DaemonSet.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::{Value, json};

use super::ambient;
use super::documents::{AMBIENT, IN_POD, SIDECAR, container, document};

/// Still set by Istio's chart, and without effect since 1.19.
const WITHOUT_FLAG: [&str; 1] = ["REPAIR_RUN_AS_DAEMON"];

fn texts(list: &Value, key: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|item| item[key].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_variable_is_one_of_the_daemons() {
    let help = Command::new(kit::binary("install-cni")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let word = |c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    let known: BTreeSet<&str> = help.split(word).collect();
    for file in [SIDECAR, AMBIENT, IN_POD] {
        let spec = &ambient::document(file, "DaemonSet")["spec"]["template"]["spec"];
        for name in texts(&spec["containers"][0]["env"], "name") {
            assert!(known.contains(name.as_str()) || WITHOUT_FLAG.contains(&name.as_str()), "{name}: {help}");
        }
    }
    let names = texts(&container()["env"], "name");
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "twice: {names:?}");
    for name in ["CNI_NETWORK_CONFIG", "CNI_CONFIG_MAP", "NODE_NAME", "POD_NAME", "POD_NAMESPACE"] {
        assert!(names.iter().any(|found| found == name), "{name}");
    }
}

#[test]
fn every_volume_is_mounted_where_the_daemon_looks_and_none_else_is_there() {
    let pod = &document("DaemonSet")["spec"]["template"]["spec"];
    let mounts = &container()["volumeMounts"];
    let places: BTreeMap<_, _> = texts(mounts, "name").into_iter().zip(texts(mounts, "mountPath")).collect();
    let volumes = pod["volumes"].as_array().unwrap();
    let sources: BTreeMap<_, _> =
        volumes.iter().map(|volume| (volume["name"].as_str().unwrap(), volume)).collect();
    assert_eq!(places.len(), volumes.len(), "each once");
    let mut found = BTreeMap::new();
    for (name, place) in &places {
        let host = &sources[name.as_str()]["hostPath"];
        assert_eq!(host["type"], "DirectoryOrCreate", "a node that lacks one shall have an agent, too");
        found.insert(place.as_str(), host["path"].as_str().unwrap());
    }
    let expected = BTreeMap::from([
        ("/host/opt/cni/bin", "/opt/cni/bin"),
        ("/host/etc/cni/net.d", "/etc/cni/net.d"),
        ("/var/run/istio-cni", "/var/run/istio-cni"),
        ("/host/var/run/netns", "/var/run/netns"),
    ]);
    assert_eq!(found, expected);
    let mounts = mounts.as_array().unwrap();
    let netns = mounts.iter().find(|mount| mount["name"] == "cni-netns-dir").unwrap();
    assert_eq!(netns["mountPropagation"], "HostToContainer", "namespaces come and go while it runs");
}

/// The pods are critical: without a limit, all other pods of the node would be killed before them.
#[test]
fn memory_is_limited_with_room() {
    for (file, limit) in [(SIDECAR, "256Mi"), (AMBIENT, "512Mi"), (IN_POD, "512Mi")] {
        let daemon_set = ambient::document(file, "DaemonSet");
        let resources = &daemon_set["spec"]["template"]["spec"]["containers"][0]["resources"];
        assert_eq!(
            resources["limits"],
            json!({"memory": limit}),
            "{file}: and no limit of CPU, which slows ADDs"
        );
        assert_eq!(resources["requests"], json!({"cpu": "100m", "memory": "100Mi"}), "{file}: as Istio's");
    }
}

#[test]
fn the_pods_are_where_and_what_istios_are() {
    let daemon_set = document("DaemonSet");
    assert_eq!(daemon_set["metadata"]["name"], "istio-cni-node", "the plugin knows the agent's pods by this");
    let labels = json!({"k8s-app": "istio-cni-node"});
    assert_eq!(daemon_set["spec"]["selector"]["matchLabels"], labels, "it cannot be changed on an upgrade");
    let pod = &daemon_set["spec"]["template"]["spec"];
    let tolerations = json!([
        {"effect": "NoSchedule", "operator": "Exists"},
        {"key": "CriticalAddonsOnly", "operator": "Exists"},
        {"effect": "NoExecute", "operator": "Exists"},
    ]);
    assert_eq!(pod["tolerations"], tolerations);
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
    assert_eq!((pod.get("hostNetwork"), pod.get("hostPID")), (None, None));
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() >= 5);
    let container = container();
    let probe = |name: &str| container[name]["httpGet"].clone();
    assert_eq!(probe("readinessProbe"), json!({"path": "/readyz", "port": 8000}));
    for file in [SIDECAR, AMBIENT, IN_POD] {
        let daemon_set = ambient::document(file, "DaemonSet");
        let probe = &daemon_set["spec"]["template"]["spec"]["containers"][0]["readinessProbe"];
        assert!(probe["periodSeconds"].as_u64().is_some_and(|seconds| seconds <= 2), "{file}: {probe}");
    }
    assert_eq!(probe("livenessProbe"), json!({"path": "/healthz", "port": 8000}));
    assert_eq!((&container["name"], &container["command"]), (&json!("install-cni"), &json!(["install-cni"])));
}
