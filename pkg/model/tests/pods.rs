//! Pods and namespaces from the API's JSON, and through our own sockets and back.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test: a panic is its failure")]

use model::{Namespace, Pod, PodName, condition_status};
use serde_json::{Value, json};

fn parse(object: &Value) -> Pod {
    serde_json::from_value(object.clone()).unwrap()
}

/// A pod as the API has it, with many fields that we do not read.
fn full() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web-0", "namespace": "shop", "uid": "u1", "resourceVersion": "77", "generateName": "web-",
            "creationTimestamp": "2026-01-31T23:59:59Z", "deletionTimestamp": "2026-02-01T00:00:00Z",
            "labels": {"app": "web"}, "annotations": {"sidecar.istio.io/status": "{}"},
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}]},
        "spec": {"nodeName": "n1", "serviceAccountName": "web", "serviceAccount": "web", "hostNetwork": true,
            "initContainers": [{"name": "init", "restartPolicy": "Always"}],
            "containers": [{"name": "istio-proxy", "image": "x", "args": ["proxy", "sidecar"],
                "env": [{"name": "A", "value": ""}, {"name": "B", "valueFrom": {"fieldRef": {}}}],
                "securityContext": {"runAsUser": 1337, "runAsGroup": 0}}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "hostIP": "192.0.2.1", "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null}],
            "containerStatuses": [{"name": "istio-proxy", "ready": true, "restartCount": 0}],
            "initContainerStatuses": [{"name": "init", "ready": false}]}})
}

#[test]
fn everything_that_is_kept_is_read() {
    let pod = parse(&full());
    assert_eq!(pod.name(), PodName { namespace: "shop".into(), name: "web-0".into() });
    assert_eq!(pod.metadata.created, "2026-01-31T23:59:59Z");
    assert_eq!(pod.metadata.deleted.as_deref(), Some("2026-02-01T00:00:00Z"));
    assert_eq!((pod.spec.node_name.as_str(), pod.spec.service_account_name.as_str()), ("n1", "web"));
    let condition = |kind| condition_status(&pod.status.conditions, kind);
    assert_eq!((pod.status.phase.as_str(), condition("Ready")), ("Running", Some("True")));
    assert_eq!(condition("Initialized"), None);
    assert!(pod.status.container_statuses[0].ready && !pod.status.init_container_statuses[0].ready);
}

#[test]
fn pods_and_namespaces_survive_our_own_sockets() {
    for object in [full(), json!({}), json!({"metadata": {"name": "x"}, "status": null})] {
        let pod = parse(&object);
        let text = serde_json::to_string(&pod).unwrap();
        assert_eq!(serde_json::from_str::<Pod>(&text).unwrap(), pod, "{text}");
    }
    let namespace = json!({"metadata": {"name": "shop", "labels": {"istio.io/dataplane-mode": "ambient"}}});
    let namespace: Namespace = serde_json::from_value(namespace).unwrap();
    let text = serde_json::to_string(&namespace).unwrap();
    assert_eq!(serde_json::from_str::<Namespace>(&text).unwrap(), namespace);
    assert_eq!(text, r#"{"metadata":{"name":"shop","labels":{"istio.io/dataplane-mode":"ambient"}}}"#);
    let name = PodName { namespace: "shop".into(), name: "web-0".into() };
    assert_eq!(serde_json::to_string(&name).unwrap(), r#"{"namespace":"shop","name":"web-0"}"#);
}

/// Written fields have the API's names, so that a reader of the API can read them.
#[test]
fn what_is_written_is_a_part_of_what_was_read() {
    let object = full();
    is_part(&serde_json::to_value(parse(&object)).unwrap(), &object, "");
}

fn is_part(part: &Value, whole: &Value, path: &str) {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => {
            part.iter().for_each(|(key, value)| is_part(value, &whole[key], &format!("{path}.{key}")));
        }
        (Value::Array(part), Value::Array(whole)) => {
            assert_eq!(part.len(), whole.len(), "{path}");
            part.iter().zip(whole).for_each(|(part, whole)| is_part(part, whole, path));
        }
        _ => assert_eq!(part, whole, "{path}"),
    }
}

#[test]
fn addresses_come_from_the_list_and_else_from_the_single_one() {
    for (status, expected) in [
        (json!({}), &[][..]),
        (json!({"podIP": "10.0.0.1"}), &["10.0.0.1"]),
        (json!({"podIP": "10.0.0.1", "podIPs": null}), &["10.0.0.1"]),
        (json!({"podIP": "10.0.0.1", "podIPs": []}), &["10.0.0.1"]),
        (json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}), &["10.0.0.1", "fd00::1"]),
        (json!({"podIP": "10.0.0.9", "podIPs": [{"ip": "fd00:0::1"}]}), &["fd00::1"]),
        (
            json!({"podIPs": [{"ip": "fd00::1"}, {"ip": "FD00:0::1"}, {"ip": "10.0.0.1"}]}),
            &["fd00::1", "10.0.0.1"],
        ),
        (json!({"podIPs": [{"ip": "nonsense"}, {}, {"ip": "10.0.0.1"}]}), &["10.0.0.1"]),
        (json!({"podIP": "", "podIPs": [{"ip": ""}]}), &[]),
    ] {
        let ips: Vec<_> =
            parse(&json!({"status": status})).status.ips().iter().map(ToString::to_string).collect();
        assert_eq!(ips, expected, "{status}");
    }
}
