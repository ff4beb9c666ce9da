//! Requests with a stolen token of the account that the policies refuse, although the rules alone would allow them.

use kit::{ApiServer, Client};
use serde_json::{Value, json};

use super::grants::{Grants, client, token};
use crate::install_manifests::documents::IN_POD;

const MARK: &str = "ambient.istio.io/redirection";

/// Two nodes with a pod on each, and the stolen credential of the first node's agent.
struct Theft {
    api: &'static ApiServer,
    thief: Client,
    name: &'static str,
    _account: Vec<Grants>,
}

impl Drop for Theft {
    fn drop(&mut self) {
        for node in self.nodes() {
            drop(self.api.admin().try_request("DELETE", &format!("/api/v1/nodes/{node}"), None));
        }
    }
}

impl Theft {
    fn new(name: &'static str, more: &[&str]) -> Option<Theft> {
        let api = ApiServer::shared()?;
        api.create_namespace(name);
        let rules: Vec<Value> = more
            .iter()
            .map(|part| json!({"apiGroups": [""], "resources": [part], "verbs": ["patch"]}))
            .collect();
        let _ = api.service_account(name, "istio-cni", &json!(rules));
        let account = vec![Grants::roles(api, IN_POD, name, None), Grants::policy(api, name)];
        let thief = client(api, &token(api, name, &format!("{name}-own"), "agent"));
        let theft = Theft { api, thief, name, _account: account };
        for node in theft.nodes() {
            let object = json!({"metadata": {"name": node, "labels": {"kubernetes.io/os": "linux"}}});
            api.admin().create("/api/v1/nodes", &object);
        }
        for (pod, node) in [("mine", "own"), ("theirs", "other")] {
            let mut object = ApiServer::pod(name, pod);
            object["spec"]["nodeName"] = json!(format!("{name}-{node}"));
            object["metadata"]["annotations"] = json!({"team": "shop"});
            object["metadata"]["labels"] = json!({"app": "shop"});
            api.create_pod(&object);
            let status = json!({"phase": "Running", "podIP": "10.9.9.9", "podIPs": [{"ip": "10.9.9.9"}],
                "conditions": [{"type": "Ready", "status": "True"}]});
            api.admin().patch_status(&theft.pod(pod), &status);
        }
        // The server applies policies a moment after they are stored.
        kit::until("the policies in force", || {
            theft.status(&theft.pod("theirs"), &mark("enabled"), true) == 422
        });
        Some(theft)
    }

    fn nodes(&self) -> [String; 2] {
        ["own", "other"].map(|node| format!("{}-{node}", self.name))
    }

    fn pod(&self, name: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{name}", self.name)
    }

    /// Patches a status with the stolen token; returns the response's status.
    fn status(&self, path: &str, patch: &Value, dry: bool) -> u16 {
        let dry = if dry { "?dryRun=All" } else { "" };
        self.thief.request("PATCH", &format!("{path}/status{dry}"), Some(patch)).status
    }

    fn object(&self, path: &str) -> Value {
        let mut object = self.api.admin().get(path);
        for field in ["managedFields", "resourceVersion"] {
            object["metadata"].as_object_mut().unwrap().remove(field);
        }
        object
    }
}

fn mark(value: &str) -> Value {
    json!({"metadata": {"annotations": {MARK: value}}})
}

#[test]
fn a_stolen_token_changes_one_annotation_of_pods_of_its_node() {
    let Some(theft) = Theft::new("policy-pods", &[]) else { return };
    let (mine, theirs) = (theft.pod("mine"), theft.pod("theirs"));
    let before = [&mine, &theirs].map(|path| theft.object(path));
    let refused = [
        (&theirs, mark("enabled"), "a pod of another node"),
        (&mine, mark("anything"), "a value that is none"),
        (&mine, json!({"metadata": {"annotations": {"team": "evil"}}}), "another annotation"),
        (&mine, json!({"metadata": {"annotations": {"new": "evil"}}}), "a new annotation"),
        (&mine, json!({"metadata": {"annotations": {"team": null}}}), "an annotation removed"),
        (&mine, json!({"metadata": {"labels": {"app": "bank"}}}), "a label, by which a Service chooses"),
        (&mine, json!({"metadata": {"finalizers": ["evil.example/stay"]}}), "a finalizer"),
        (&mine, json!({"status": {"podIP": "10.6.6.6", "podIPs": [{"ip": "10.6.6.6"}]}}), "its address"),
        (&mine, json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}), "its readiness"),
        (&mine, json!({"status": {"phase": "Failed"}}), "its phase"),
    ];
    for (path, patch, what) in &refused {
        assert_eq!(theft.status(path, patch, false), 422, "{what}");
    }
    assert_eq!([&mine, &theirs].map(|path| theft.object(path)), before);
    for value in [json!("pending"), json!("enabled"), Value::Null] {
        let patch = json!({"metadata": {"annotations": {MARK: value}}});
        assert_eq!(theft.status(&mine, &patch, false), 200, "{value}");
        assert_eq!(theft.object(&mine)["metadata"]["annotations"].get(MARK).unwrap_or(&Value::Null), &value);
    }
}

/// An unbound token, as old kubelets and `kubectl create token` create it, names no node.
#[test]
fn a_token_that_names_no_node_changes_nothing() {
    let Some(theft) = Theft::new("policy-nodeless", &[]) else { return };
    let path = format!("/api/v1/namespaces/{}/serviceaccounts/istio-cni/token", theft.name);
    let answer = theft.api.admin().create(&path, &json!({"spec": {"expirationSeconds": 3607}}));
    let thief = client(theft.api, answer["status"]["token"].as_str().unwrap());
    let path = format!("{}/status", theft.pod("mine"));
    assert_eq!(thief.request("PATCH", &path, Some(&mark("enabled"))).status, 422);
}

#[test]
fn a_stolen_token_publishes_events_of_its_node_alone() {
    let Some(theft) = Theft::new("policy-events", &[]) else { return };
    let [own, other] = theft.nodes();
    let event = |name: &str, host: &str, kind: &str, about: &str, namespace: &str| {
        json!({
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {"kind": kind, "name": about, "namespace": if kind == "Pod" { namespace } else { "" }},
            "reason": "Evil", "message": "m", "type": "Warning", "source": {"component": "istio-cni", "host": host},
        })
    };
    let create = |event: &Value| {
        let namespace = event["metadata"]["namespace"].as_str().unwrap();
        theft.thief.request("POST", &format!("/api/v1/namespaces/{namespace}/events"), Some(event)).status
    };
    let of_own_pod = event("a", &own, "Pod", "mine", theft.name);
    kit::until("the policies in force", || {
        theft
            .thief
            .request(
                "POST",
                &format!("/api/v1/namespaces/{}/events?dryRun=All", theft.name),
                Some(&event("x", &other, "Pod", "mine", theft.name)),
            )
            .status
            == 422
    });
    assert_eq!(create(&event("b", &other, "Pod", "mine", theft.name)), 422, "of another node's agent");
    assert_eq!(create(&event("c", &own, "Node", &other, "default")), 422, "about another node");
    assert_eq!(create(&event("d", &own, "Deployment", "shop", theft.name)), 422, "about something else");
    assert_eq!(create(&of_own_pod), 201);
    assert_eq!(create(&event(theft.name, &own, "Node", &own, "default")), 201);
    let patch = |name: &str, patch: Value| {
        theft
            .thief
            .request("PATCH", &format!("/api/v1/namespaces/{}/events/{name}", theft.name), Some(&patch))
            .status
    };
    assert_eq!(patch("a", json!({"count": 2})), 200);
    assert_eq!(patch("a", json!({"message": "all is well"})), 422);
    // An Event of the kubelet.
    let mut others = event("k", &own, "Pod", "mine", theft.name);
    others["source"]["component"] = json!("kubelet");
    theft.api.admin().create(&format!("/api/v1/namespaces/{}/events", theft.name), &others);
    assert_eq!(patch("k", json!({"count": 99})), 422);
    theft.api.admin().delete(&format!("/api/v1/namespaces/default/events/{}", theft.name));
}

#[test]
fn a_stolen_token_changes_one_condition_of_its_node() {
    let Some(theft) = Theft::new("policy-nodes", &["nodes/status"]) else { return };
    let [own, other] = theft.nodes().map(|node| format!("/api/v1/nodes/{node}"));
    let condition = |kind: &str| json!({"type": kind, "status": "False", "reason": "Evil", "message": "m"});
    let ready = json!({"status": {"conditions": [condition("Ready")]}});
    for path in [&own, &other] {
        let path = format!("{path}/status");
        assert_eq!(theft.api.admin().request("PATCH", &path, Some(&ready)).status, 200);
    }
    let ours = json!({"status": {"conditions": [condition("Ready"), condition("IstioCNIReady")]}});
    let without = json!({"status": {"conditions": [condition("IstioCNIReady")]}});
    kit::until("the policies in force", || theft.status(&other, &ours, true) == 422);
    assert_eq!(theft.status(&other, &ours, false), 422, "another node");
    assert_eq!(theft.status(&own, &without, false), 422, "another condition is lost");
    assert_eq!(theft.status(&own, &json!({"metadata": {"labels": {"zone": "evil"}}}), false), 422, "a label");
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "none", "uid": "none"});
    assert_eq!(
        theft.status(&own, &json!({"metadata": {"ownerReferences": [owner]}}), false),
        422,
        "an owner"
    );
    let others = [
        json!({"phase": "Terminated"}),
        json!({"runtimeHandlers": [{"name": "evil"}]}),
        json!({"features": {"supplementalGroupsPolicy": true}}),
        json!({"capacity": {"cpu": "1000"}}),
    ];
    for status in others {
        assert_eq!(theft.status(&own, &json!({"status": status}), false), 422, "{status}");
    }
    let addresses = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.6.6.6"}]}});
    assert_eq!(theft.status(&own, &addresses, false), 422, "an address");
    assert_eq!(theft.status(&own, &ours, false), 200);
}
