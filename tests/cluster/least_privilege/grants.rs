//! Permissions of a manifest and the policy for a test's own namespace, with or without one verb.

use kit::{ApiServer, Auth, Client};
use serde_json::{Value, json};

use crate::install_manifests::documents::{documents_of, path, renamed};

/// The policies that restrict the rules.
pub(super) const POLICY: &str = "admission-policy.yaml";

/// One verb of one rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Verb {
    pub(super) verb: String,
    pub(super) resource: String,
}

/// Roles, bindings and policies in the API server; drop deletes them.
pub(super) struct Grants {
    api: &'static ApiServer,
    namespace: String,
    objects: Vec<Value>,
}

impl Drop for Grants {
    fn drop(&mut self) {
        for object in &self.objects {
            drop(self.api.admin().try_request("DELETE", &path(object), None));
        }
    }
}

/// Every verb of the roles among the documents.
pub(super) fn verbs(documents: &[Value]) -> Vec<Verb> {
    let mut verbs = Vec::new();
    for rule in documents.iter().filter(|one| is_role(one)).flat_map(|role| list(&role["rules"])) {
        for resource in list(&rule["resources"]) {
            verbs.extend(
                list(&rule["verbs"]).iter().map(|verb| Verb { verb: text(verb), resource: text(resource) }),
            );
        }
    }
    verbs.sort();
    verbs
}

fn is_role(document: &Value) -> bool {
    ["Role", "ClusterRole"].contains(&document["kind"].as_str().unwrap())
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// A role's rules without this verb of this resource.
fn without(rules: &Value, missing: &Verb) -> Value {
    let mut kept = Vec::new();
    for rule in list(rules) {
        for resource in list(&rule["resources"]) {
            let mut one = rule.clone();
            one["resources"] = json!([resource]);
            let is_kept = |verb: &&Value| *resource != missing.resource || **verb != missing.verb;
            one["verbs"] = list(&rule["verbs"]).iter().filter(is_kept).cloned().collect();
            if !list(&one["verbs"]).is_empty() {
                kept.push(one);
            }
        }
    }
    Value::Array(kept)
}

impl Grants {
    /// Creates the roles of a manifest, and waits until they are in force.
    pub(super) fn roles(
        api: &'static ApiServer,
        file: &str,
        namespace: &str,
        missing: Option<&Verb>,
    ) -> Grants {
        let mut objects = renamed(documents_of(file), namespace);
        objects.retain(|one| is_role(one) || one["kind"].as_str().unwrap().ends_with("RoleBinding"));
        for role in objects.iter_mut().filter(|one| is_role(one)) {
            if let Some(missing) = missing {
                role["rules"] = without(&role["rules"], missing);
            }
        }
        let grants = Grants::create(api, namespace, objects);
        grants.wait_until_allowed();
        grants
    }

    /// Creates the policies, and waits until they are in force.
    pub(super) fn policy(api: &'static ApiServer, namespace: &str) -> Grants {
        let text = serde_json::to_string(&documents_of(POLICY)).unwrap();
        let text = text.replace("serviceaccount:kube-system:", &format!("serviceaccount:{namespace}:"));
        let text = text.replace("\"istio-cni-", &format!("\"{namespace}-"));
        let objects: Vec<Value> = serde_json::from_str(&text).unwrap();
        Grants::create(api, namespace, objects)
    }

    fn create(api: &'static ApiServer, namespace: &str, objects: Vec<Value>) -> Grants {
        for object in &objects {
            crate::install_manifests::documents::create(api, object, "");
        }
        Grants { api, namespace: namespace.to_owned(), objects }
    }

    fn wait_until_allowed(&self) {
        let user = format!("system:serviceaccount:{}:istio-cni", self.namespace);
        for role in self.objects.iter().filter(|one| is_role(one)) {
            for rule in list(&role["rules"]) {
                let (resource, part) = split(&rule["resources"][0]);
                let attributes = json!({
                    "verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": resource, "subresource": part,
                    "name": rule["resourceNames"][0], "namespace": role["metadata"]["namespace"],
                });
                let review = json!({"spec": {"user": user, "resourceAttributes": attributes}});
                let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
                kit::until(format_args!("{rule} in force"), || {
                    self.api.admin().create(reviews, &review)["status"]["allowed"] == json!(true)
                });
            }
        }
    }
}

fn split(resource: &Value) -> (String, String) {
    let resource = text(resource);
    let (resource, part) = resource.split_once('/').unwrap_or((&resource, ""));
    (resource.to_owned(), part.to_owned())
}

/// Creates an agent's pod on a node, and a token as the kubelet requests it: bound to the pod, so that it names the node.
pub(super) fn token(api: &ApiServer, namespace: &str, node: &str, pod: &str) -> String {
    let mut object = ApiServer::pod(namespace, pod);
    object["spec"]["nodeName"] = json!(node);
    object["spec"]["serviceAccountName"] = json!("istio-cni");
    let pod = api.create_pod(&object);
    let bound = json!({
        "kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
    });
    let request = json!({"spec": {"expirationSeconds": 3607, "boundObjectRef": bound}});
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/istio-cni/token");
    text(&api.admin().create(&path, &request)["status"]["token"])
}

/// A client with such a token.
pub(super) fn client(api: &ApiServer, token: &str) -> Client {
    api.client(&Auth::Token(token.to_owned()))
}
