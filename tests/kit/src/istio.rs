//! Objects and settings that an Istio control plane creates in a cluster, as far as pods and the plugin's configuration show them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{ApiServer, Auth, Node};

/// User and group of an injected proxy.
pub const PROXY_ID: u32 = 1337;
/// Port of a proxy's outbound listener.
pub const OUTBOUND: u16 = 15001;
/// Port of a proxy's inbound listener.
pub const INBOUND: u16 = 15006;

/// A pod as the injector leaves it: an `istio-proxy` beside the application, and the annotation that reports it.
#[must_use]
pub fn injected_pod(namespace: &str, name: &str) -> Value {
    let mut pod = ApiServer::pod(namespace, name);
    pod["metadata"]["annotations"]["sidecar.istio.io/status"] = json!(r#"{"containers":["istio-proxy"]}"#);
    let proxy = json!({
        "name": "istio-proxy", "image": "proxyv2",
        "args": ["proxy", "sidecar", "--domain", "$(POD_NAMESPACE).svc.cluster.local"],
        "env": [],
    });
    pod["spec"]["containers"].as_array_mut().expect("a list").push(proxy);
    pod
}

/// Adds an annotation to a pod.
#[must_use]
pub fn annotated(mut pod: Value, key: &str, value: &str) -> Value {
    pod["metadata"]["annotations"][key] = json!(value);
    pod
}

/// Adds a variable to the environment of a pod's proxy.
#[must_use]
pub fn with_proxy_env(mut pod: Value, name: &str, value: &str) -> Value {
    let containers = pod["spec"]["containers"].as_array_mut().expect("a list");
    let proxy = containers.iter_mut().find(|container| container["name"] == "istio-proxy");
    let env = proxy.expect("the pod has a proxy")["env"].as_array_mut().expect("a list");
    env.push(json!({"name": name, "value": value}));
    pod
}

/// Permissions of the plugin's account, as in the chart's ClusterRole.
#[must_use]
pub fn plugin_rules() -> Value {
    json!([{"apiGroups": [""], "resources": ["pods", "nodes", "namespaces"], "verbs": ["get", "list", "watch"]}])
}

/// Writes a kubeconfig with this credential into the node's CNI configuration directory, as the installer would.
pub fn write_kubeconfig(node: &Node, api: &ApiServer, auth: &Auth) -> PathBuf {
    write_file(node, "ZZZ-istio-cni-kubeconfig", &api.kubeconfig(auth))
}

/// Writes a file into the node's CNI configuration directory.
pub fn write_file(node: &Node, name: &str, text: &str) -> PathBuf {
    let path = node.net_d().join(name);
    std::fs::write(&path, text).expect("cannot write into the conf dir");
    path
}

/// The plugin's conflist entry as the chart writes it, with the capability that saves API requests.
#[must_use]
pub fn plugin_entry(kubeconfig: &Path) -> Value {
    json!({
        "name": "istio-cni",
        "type": "istio-cni",
        "log_level": "debug",
        "capabilities": {"io.kubernetes.cri.pod-annotations": true},
        "kubernetes": {
            "kubeconfig": kubeconfig,
            "cni_bin_dir": "/opt/cni/bin",
            "exclude_namespaces": ["istio-system", "kube-system"],
        },
    })
}
