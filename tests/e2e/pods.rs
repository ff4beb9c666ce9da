//! The pods of the test. What each does first is to connect to a server beyond the node, and to write down who answered.

use serde_json::{Value, json};

use crate::{
    agent::AGENT_IMAGE,
    machine::{IMAGE, OUTSIDE},
};

/// Port of the server outside, and of every pod.
pub(crate) const PORT: u16 = 8080;
/// How the sidecar stub names itself.
pub(crate) const SIDECAR: &str = "sidecar";
/// And the server outside.
pub(crate) const BEYOND: &str = "outside";

/// A pod that does nothing but that.
pub(crate) fn plain(namespace: &str, name: &str) -> Value {
    // Until the first answer; attempts without one are in the log, too. Then it serves.
    let connect = format!("kit-traffic connect tcp --to {OUTSIDE}:{PORT} --timeout-ms 5000");
    let script = format!(
        "while :; do answer=$({connect}); echo \"$answer\"; case $answer in *server*) break ;; esac; \
         busybox sleep 0.05; done; exec kit-traffic serve tcp --bind 0.0.0.0:{PORT} --name {name}"
    );
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}, "annotations": {}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "app", "image": IMAGE, "imagePullPolicy": "Never",
                "command": ["/bin/busybox", "sh", "-c", script],
            }],
        },
    })
}

/// A pod as the injector leaves it. Its init container tries what the application tries, when there is no proxy yet.
pub(crate) fn injected(namespace: &str, name: &str) -> Value {
    let mut pod = plain(namespace, name);
    pod["metadata"]["annotations"]["sidecar.istio.io/status"] =
        json!(r#"{"initContainers":["istio-validation"],"containers":["istio-proxy"]}"#);
    let attempt =
        ["/bin/kit-traffic", "connect", "tcp", "--timeout-ms", "500", "--to", &format!("{OUTSIDE}:{PORT}")];
    pod["spec"]["initContainers"] = json!([
        {"name": "first", "image": IMAGE, "imagePullPolicy": "Never", "command": attempt},
    ]);
    let listen = |port: u16| ["--bind".to_owned(), format!("0.0.0.0:{port}")];
    let mut command: Vec<String> =
        ["/bin/kit-traffic", "serve", "tcp", "--name", SIDECAR].map(String::from).into();
    command.extend([15001, 15006].into_iter().flat_map(listen));
    let proxy = json!({
        "name": "istio-proxy", "image": IMAGE, "imagePullPolicy": "Never", "command": command,
        "args": ["proxy", "sidecar"], "securityContext": {"runAsUser": 1337, "runAsGroup": 1337},
    });
    pod["spec"]["containers"].as_array_mut().expect("a list").push(proxy);
    pod
}

/// The same without an init container, which alone takes the kubelet a second.
pub(crate) fn injected_at_once(namespace: &str, name: &str) -> Value {
    let mut pod = injected(namespace, name);
    pod["spec"]["initContainers"] = json!([]);
    pod
}

/// The same with the proxy as a sidecar container of Kubernetes: an init container that goes on, which starts after `first`.
pub(crate) fn native(mut pod: Value) -> Value {
    let mut proxy = pod["spec"]["containers"].as_array_mut().and_then(Vec::pop).expect("it is injected");
    proxy["restartPolicy"] = json!("Always");
    pod["spec"]["initContainers"].as_array_mut().expect("it is injected").push(proxy);
    pod["metadata"]["annotations"]["sidecar.istio.io/status"] =
        json!(r#"{"initContainers":["istio-validation","istio-proxy"],"containers":null}"#);
    pod
}

/// The same with the init container that Istio's injector gives it where the CNI plugin is in use, as it is there but for the image.
pub(crate) fn validated(namespace: &str, name: &str) -> Value {
    let mut pod = injected(namespace, name);
    let command = [
        "istio-iptables",
        "-p",
        "15001",
        "-z",
        "15006",
        "-u",
        "1337",
        "-m",
        "REDIRECT",
        "-i",
        "*",
        "-x",
        "",
        "-b",
        "*",
        "-d",
        "15090,15021,15020",
        "--run-validation",
        "--skip-rule-apply",
    ];
    pod["spec"]["initContainers"] = json!([{
        "name": "istio-validation", "image": AGENT_IMAGE, "imagePullPolicy": "Never", "command": command,
        "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "privileged": false,
            "readOnlyRootFilesystem": true, "runAsGroup": 1337, "runAsNonRoot": true, "runAsUser": 1337,
        },
    }]);
    pod
}

/// The same pod with this label.
pub(crate) fn labelled(mut pod: Value, key: &str, value: &str) -> Value {
    pod["metadata"]["labels"][key] = json!(value);
    pod
}

/// The same pod with this annotation.
pub(crate) fn annotated(mut pod: Value, key: &str, value: &str) -> Value {
    pod["metadata"]["annotations"][key] = json!(value);
    pod
}

/// The same pod with a port of the node that leads to its application.
pub(crate) fn with_host_port(mut pod: Value, port: u16) -> Value {
    pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": PORT, "hostPort": port}]);
    pod
}

/// The same pod, ready when the kubelet can connect to its application.
pub(crate) fn probed(mut pod: Value) -> Value {
    pod["spec"]["containers"][0]["readinessProbe"] = json!({"tcpSocket": {"port": PORT}, "periodSeconds": 1});
    pod
}

/// Returns the pod in a user namespace of its own.
pub(crate) fn in_user_namespace(mut pod: Value) -> Value {
    pod["spec"]["hostUsers"] = json!(false);
    pod
}

/// The same pod in the node's network, where nothing of the node's may be in its place.
pub(crate) fn on_host(mut pod: Value) -> Value {
    pod["spec"]["hostNetwork"] = json!(true);
    pod
}
