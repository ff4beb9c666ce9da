//! The pods of the test. Each first connects to a server outside the node, and logs the answer.

use serde_json::{Value, json};

use crate::{
    agent::AGENT_IMAGE,
    machine::{IMAGE, OUTSIDE},
};

/// Port of the external server, and of every pod.
pub(crate) const PORT: u16 = 8080;
/// Name of the sidecar stub in its answers.
pub(crate) const SIDECAR: &str = "sidecar";
/// Name of the external server in its answers.
pub(crate) const BEYOND: &str = "outside";

/// A plain pod.
pub(crate) fn plain(namespace: &str, name: &str) -> Value {
    // Until the first answer; attempts without one are logged, too. Then it serves.
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

/// A pod as the injector leaves it. Its init container makes the application's connection before the proxy runs.
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

/// As [`injected`], without an init container, which alone takes the kubelet a second.
pub(crate) fn injected_at_once(namespace: &str, name: &str) -> Value {
    let mut pod = injected(namespace, name);
    pod["spec"]["initContainers"] = json!([]);
    pod
}

/// Turns the proxy into a native sidecar: an init container that keeps running, which starts after `first`.
pub(crate) fn native(mut pod: Value) -> Value {
    let mut proxy = pod["spec"]["containers"].as_array_mut().and_then(Vec::pop).expect("it is injected");
    proxy["restartPolicy"] = json!("Always");
    pod["spec"]["initContainers"].as_array_mut().expect("it is injected").push(proxy);
    pod["metadata"]["annotations"]["sidecar.istio.io/status"] =
        json!(r#"{"initContainers":["istio-validation","istio-proxy"],"containers":null}"#);
    pod
}

/// As [`injected`], with the init container that Istio's injector adds for the CNI plugin, unchanged except for the image.
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

/// Adds a label to a pod.
pub(crate) fn labelled(mut pod: Value, key: &str, value: &str) -> Value {
    pod["metadata"]["labels"][key] = json!(value);
    pod
}

/// Adds an annotation to a pod.
pub(crate) fn annotated(mut pod: Value, key: &str, value: &str) -> Value {
    pod["metadata"]["annotations"][key] = json!(value);
    pod
}

/// Maps a port of the node to a pod's application.
pub(crate) fn with_host_port(mut pod: Value, port: u16) -> Value {
    pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": PORT, "hostPort": port}]);
    pod
}

/// Makes a pod ready when the kubelet can connect to its application.
pub(crate) fn probed(mut pod: Value) -> Value {
    pod["spec"]["containers"][0]["readinessProbe"] = json!({"tcpSocket": {"port": PORT}, "periodSeconds": 1});
    pod
}

/// Gives a pod its own user namespace.
pub(crate) fn in_user_namespace(mut pod: Value) -> Value {
    pod["spec"]["hostUsers"] = json!(false);
    pod
}

/// Moves a plain pod to the node's network, on a port that is free there.
pub(crate) fn on_host(mut pod: Value) -> Value {
    let script = &mut pod["spec"]["containers"][0]["command"][3];
    let text = script.as_str().expect("a plain pod has a script");
    *script = json!(text.replace(&format!("0.0.0.0:{PORT}"), "0.0.0.0:0"));
    pod["spec"]["hostNetwork"] = json!(true);
    pod
}
