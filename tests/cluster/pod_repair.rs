//! Repair of broken pods, with the API server and with exactly the permissions that Istio's chart grants for each mode.

mod by_api;
mod in_place;
mod running;

use kit::{Daemon, istio};
use serde_json::{Value, json};

use crate::install_api::fixture::ClusterFixture;

/// Rights of Istio's ClusterRoles `istio-cni` and `istio-cni-repair-role`; the latter's last rule depends on the mode.
fn rights(of_mode: Option<Value>) -> Value {
    let mut rules = vec![
        json!({"apiGroups": [""], "resources": ["pods", "nodes", "namespaces"], "verbs": ["get", "list", "watch"]}),
        json!({"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}),
    ];
    rules.extend(of_mode);
    Value::Array(rules)
}

fn label_rights() -> Value {
    rights(Some(json!({"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch", "update"]})))
}

fn delete_rights() -> Value {
    rights(Some(json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]})))
}

struct RepairNode(ClusterFixture);

impl RepairNode {
    fn start(name: &'static str, rights: &Value, mode: &str) -> Option<Self> {
        let fixture = ClusterFixture::allowed(name, rights)?;
        Some(Self(
            fixture
                .with_env("REPAIR_ENABLED", "true")
                .with_env(mode, "true")
                .with_env("REPAIR_NODE_NAME", name),
        ))
    }

    /// Creates an injected pod on the node; returns it as stored.
    fn create(&self, name: &str, change: impl FnOnce(&mut Value)) -> Value {
        let mut pod = istio::injected_pod(self.0.name, name);
        pod["spec"]["nodeName"] = json!(self.0.name);
        pod["spec"]["initContainers"] = json!([{"name": "istio-validation", "image": "proxyv2"}]);
        change(&mut pod);
        self.0.api.create_pod(&pod)
    }

    /// Reports that the pod's validation has failed with this exit code, as the kubelet does.
    fn fail(&self, name: &str, code: i32) {
        let ended = json!({"terminated": {"exitCode": code, "reason": "Error"}});
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        self.tell(name, &json!({"state": waiting, "lastState": ended}));
    }

    fn tell(&self, name: &str, states: &Value) {
        let mut status = json!({"name": "istio-validation", "image": "i", "imageID": "i", "ready": false, "restartCount": 1});
        let members = states.as_object().unwrap().clone();
        status.as_object_mut().unwrap().extend(members);
        self.0.api.admin().patch_status(&self.path(name), &json!({"initContainerStatuses": [status]}));
    }

    fn broken(&self, name: &str) -> Value {
        let pod = self.create(name, |_| {});
        self.fail(name, 126);
        pod
    }

    fn path(&self, name: &str) -> String {
        self.0.path("v1", "pods", name)
    }

    fn get(&self, name: &str) -> Value {
        self.0.api.admin().get(&self.path(name))
    }

    fn version(&self, name: &str) -> Value {
        self.get(name)["metadata"]["resourceVersion"].clone()
    }

    /// Events with this reason about the pod with this UID.
    fn events(&self, uid: &Value, reason: &str) -> Vec<Value> {
        let fields = format!("fieldSelector=reason={reason},involvedObject.uid={}", uid.as_str().unwrap());
        let path = format!("{}?{fields}", self.0.path("v1", "events", ""));
        self.0.api.admin().get(&path)["items"].as_array().unwrap().clone()
    }

    /// Asserts that the API server has refused no request of repair.
    fn assert_allowed(&self) {
        let mut refused = self.0.refused();
        let is_repairs =
            |request: &String| ["pods", "events"].iter().any(|kind| kit::has_segment(request, kind));
        refused.retain(is_repairs); // the others are the installer's
        assert_eq!(refused, Vec::<String>::new());
    }
}

fn repairs(daemon: &Daemon, kind: &str, result: &str) -> f64 {
    let sample = format!(r#"istio_cni_repair_pods_repaired_total{{type="{kind}",result="{result}"}}"#);
    daemon.metric(&sample).unwrap_or_default()
}
