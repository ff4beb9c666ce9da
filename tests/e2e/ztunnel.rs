//! ztunnel as a DaemonSet of the kit's stubs.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::machine::IMAGE;

pub(crate) const NAMESPACE: &str = "istio-system";
const DAEMON_SETS: &str = "/apis/apps/v1/namespaces/istio-system/daemonsets";

/// Capture mode of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaptureState {
    /// The node's rules redirect their traffic to ztunnel's pod: up to 1.22.
    Node,
    /// ztunnel listens in their own network namespaces: since 1.23.
    InPod,
}

/// Deploys ztunnel, and waits until it is ready.
pub(crate) fn deploy(fixture: &mut Fixture, capture: CaptureState) {
    fixture.control.apply(DAEMON_SETS, &daemon_set(capture));
    let ready = kit::found_within(Duration::from_secs(30), || pod(fixture).filter(Fixture::is_ready));
    fixture.checks.check(ready.is_some(), format!("ztunnel ({capture:?}) is ready"));
}

/// Removes ztunnel.
pub(crate) fn remove(fixture: &mut Fixture) {
    fixture.control.delete(&format!("{DAEMON_SETS}/ztunnel"));
    let gone = kit::found_within(Duration::from_secs(40), || pod(fixture).is_none().then_some(()));
    fixture.checks.check(gone.is_some(), "ztunnel is gone");
}

/// ztunnel's pod, if one exists that is not terminating.
pub(crate) fn pod(fixture: &Fixture) -> Option<Value> {
    let pods = fixture.pods(NAMESPACE);
    pods.into_iter().find(|pod| {
        pod["metadata"]["labels"]["app"] == "ztunnel" && pod["metadata"]["deletionTimestamp"].is_null()
    })
}

/// Number of a pod's connections to the external server that ztunnel relayed.
pub(crate) fn carried(fixture: &Fixture, of: &Value) -> usize {
    carried_after(fixture, of, 0)
}

/// Number of connections to a pod that ztunnel accepted.
pub(crate) fn received(fixture: &Fixture, of: &Value) -> usize {
    relayed(fixture, of, "inbound", 0)
}

/// Number of a pod's relayed connections after the first `lines` lines of ztunnel's log.
pub(crate) fn carried_after(fixture: &Fixture, of: &Value, lines: usize) -> usize {
    relayed(fixture, of, "outbound", lines)
}

fn relayed(fixture: &Fixture, of: &Value, via: &str, lines: usize) -> usize {
    let (uid, ip) = (&of["metadata"]["uid"], of["status"]["podIP"].as_str().unwrap_or("none"));
    let from_pod = |line: &Value| {
        let source = line["src"].as_str().and_then(|address| address.rsplit_once(':'));
        // With node-level capture the stub knows only addresses.
        line["uid"] == *uid || (line["uid"].is_null() && source.is_some_and(|(source, _)| source == ip))
    };
    let log = log(fixture);
    let new = log.iter().skip(lines);
    new.filter(|line| line["via"] == via && line["error"].is_null() && from_pod(line)).count()
}

/// ztunnel's log, of all runs of its container.
pub(crate) fn log(fixture: &Fixture) -> Vec<Value> {
    let text: String =
        fixture.machines().map(|machine| machine.logs_of(NAMESPACE, "ztunnel-", "istio-proxy")).collect();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn daemon_set(capture: CaptureState) -> Value {
    let labels =
        json!({"app": "ztunnel", "istio.io/dataplane-mode": "none", "sidecar.istio.io/inject": "false"});
    let name = "$(POD_NAME)";
    let command = match capture {
        CaptureState::Node => json!(["/bin/kit-traffic", "ztunnel", "--name", name, "--dns"]),
        CaptureState::InPod => json!([
            "/bin/kit-traffic",
            "inpod-ztunnel",
            "--name",
            name,
            "--dns",
            "--socket",
            "/var/run/ztunnel/ztunnel.sock",
            "--drain-ms",
            "500",
            "--ready-port",
            "15021",
        ]),
    };
    // ztunnel is not ready before it has a snapshot.
    let probe = match capture {
        CaptureState::Node => Value::Null,
        CaptureState::InPod => json!({"tcpSocket": {"port": 15021}, "periodSeconds": 1}),
    };
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"namespace": NAMESPACE, "name": "ztunnel"},
        "spec": {
            "selector": {"matchLabels": {"app": "ztunnel"}},
            "template": {
                "metadata": {"labels": labels, "annotations": {"sidecar.istio.io/inject": "false"}},
                "spec": {
                    "terminationGracePeriodSeconds": 5, "serviceAccountName": "ztunnel",
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{
                        "name": "istio-proxy", "image": IMAGE, "imagePullPolicy": "Never", "command": command,
                        "args": ["proxy", "ztunnel"],
                        // The stub reads commands, and ends at the end of stdin.
                        "stdin": true,
                        "readinessProbe": probe,
                        "env": [
                            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                            {"name": "ISTIO_META_DNS_CAPTURE", "value": "true"},
                            // Istio's chart still sets this, by which an agent detects the mode before ztunnel connects.
                            {"name": "INPOD_ENABLED", "value": (capture == CaptureState::InPod).to_string()},
                        ],
                        "securityContext": {
                            "privileged": false,
                            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "SYS_ADMIN", "NET_RAW"]},
                        },
                        "volumeMounts": [{"name": "sockets", "mountPath": "/var/run/ztunnel"}],
                    }],
                    "volumes": [
                        {"name": "sockets", "hostPath": {"path": "/var/run/ztunnel", "type": "DirectoryOrCreate"}},
                    ],
                },
            },
        },
    })
}
