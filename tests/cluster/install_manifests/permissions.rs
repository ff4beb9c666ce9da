//! Permissions of the manifests' account: those that agent and plugin use, and no more.

use std::time::Duration;

use kit::ApiServer;
use serde_json::{Value, json};

use super::documents::{AMBIENT, IN_POD, SIDECAR, create, documents_for, path, rules_of};

/// Group, resource, name; an empty name means any.
type What = (&'static str, &'static str, &'static str);

const OWN_CONFIG: What = ("", "configmaps", "istio-cni-config");
const OWN_DAEMON_SET: What = ("apps", "daemonsets", "istio-cni-node");

/// Namespace `own` stands for the daemon's.
const ALLOWED: [(&str, &[&str], What); 6] = [
    ("own", &["list", "watch"], OWN_CONFIG),
    ("own", &["get", "list", "watch"], OWN_DAEMON_SET),
    ("default", &["get"], ("", "pods", "")),
    ("", &["get"], ("", "nodes", "")),
    ("default", &["create", "patch"], ("", "events", "")),
    ("", &["create", "patch"], ("", "events", "")),
];

const WRITES: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];
const ALL: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

const DENIED: [(&str, &[&str], What); 23] = [
    ("own", WRITES, OWN_CONFIG),
    ("own", &["get"], OWN_CONFIG),
    ("default", &["list", "watch"], ("", "pods", "")),
    ("", &["list", "watch"], ("", "pods", "")),
    ("", &["list", "watch"], ("", "nodes", "")),
    ("own", WRITES, OWN_DAEMON_SET),
    ("own", ALL, ("", "configmaps", "")),
    ("own", ALL, ("", "configmaps", "kube-root-ca.crt")),
    ("default", ALL, OWN_CONFIG),
    ("own", ALL, ("apps", "daemonsets", "")),
    ("own", ALL, ("apps", "daemonsets", "kube-proxy")),
    ("default", ALL, OWN_DAEMON_SET),
    ("own", ALL, ("", "secrets", "")),
    ("", ALL, ("", "secrets", "")),
    ("default", WRITES, ("", "pods", "")),
    ("default", ALL, ("", "pods/exec", "")),
    ("default", ALL, ("", "pods/status", "")),
    ("", WRITES, ("", "nodes", "")),
    ("", WRITES, ("", "nodes/status", "")),
    ("", ALL, ("", "namespaces", "")),
    ("default", &["get", "list", "watch", "update", "delete"], ("", "events", "")),
    ("own", ALL, ("", "serviceaccounts/token", "")),
    ("", ALL, ("rbac.authorization.k8s.io", "clusterroles", "")),
];

struct Account {
    api: &'static ApiServer,
    namespace: &'static str,
}

impl Account {
    fn may(&self, verb: &str, namespace: &str, (group, resource, name): What) -> bool {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let namespace = if namespace == "own" { self.namespace } else { namespace };
        let attributes = json!({
            "verb": verb, "namespace": namespace, "name": name,
            "group": group, "resource": resource, "subresource": subresource,
        });
        let user = format!("system:serviceaccount:{}:istio-cni", self.namespace);
        let groups = ["system:serviceaccounts", "system:authenticated"];
        let review = json!({"spec": {"user": user, "groups": groups, "resourceAttributes": attributes}});
        let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        self.api.admin().create(reviews, &review)["status"]["allowed"] == json!(true)
    }

    /// Waits for the authorizer, which receives rules a moment after they are stored.
    fn gets_to(&self, verb: &str, namespace: &str, what: What) -> bool {
        kit::found_within(Duration::from_secs(20), || self.may(verb, namespace, what)).is_some()
    }
}

#[test]
fn the_account_may_do_what_the_daemon_does_and_no_more() {
    const NAMESPACE: &str = "deploy-rbac";
    let Some(api) = ApiServer::shared() else { return };
    api.create_namespace(NAMESPACE);
    let is_pod_maker = |document: &Value| document["kind"] == "DaemonSet";
    let mut documents = documents_for(NAMESPACE);
    documents.retain(|document| !is_pod_maker(document));
    documents.iter().for_each(|document| create(api, document, ""));
    let account = Account { api, namespace: NAMESPACE };
    for (namespace, verbs, what) in ALLOWED {
        for verb in verbs {
            assert!(account.gets_to(verb, namespace, what), "may not {verb} {what:?} in {namespace:?}");
        }
    }
    for (namespace, verbs, what) in DENIED {
        for verb in verbs {
            assert!(!account.may(verb, namespace, what), "may {verb} {what:?} in {namespace:?}");
        }
    }
    documents.iter().for_each(|document| drop(api.admin().delete(&path(document))));
}

/// The node's condition needs one more rule, which the user uncomments.
#[test]
fn the_condition_of_the_node_needs_one_rule_more() {
    for file in [SIDECAR, AMBIENT, IN_POD] {
        let rules = |whole: bool| rules_of(file, whole).as_array().unwrap().clone();
        let more: Vec<Value> = rules(true).into_iter().filter(|rule| !rules(false).contains(rule)).collect();
        let wanted = json!({"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]});
        assert_eq!(more, [wanted], "{file}");
        let events = json!({"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]});
        assert!(rules(false).contains(&events), "{file}");
    }
}
