//! A test's own nodes with pods, and controllers restricted to these nodes and to their own Lease: the tests share an API server.

use std::time::{Duration, SystemTime};

use kit::{ApiServer, Container, Daemon, Node, NodeOptions, binary, write_script};
use serde_json::{Value, json};

use crate::install_manifests::documents::{create, documents_of, path};

const MANIFEST: &str = "istio-cni-taint.yaml";
/// Namespace of all objects in the manifest.
const NAMESPACE: &str = "kube-system";

/// Permissions of the controllers' account.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rights {
    /// Permissions of our manifest.
    Manifest,
    /// Permissions of the ClusterRole of Istio's chart.
    Istio,
}

pub(super) struct TaintFixture {
    pub(super) api: &'static ApiServer,
    pub(super) name: &'static str,
    /// Container of the controllers.
    pub(super) container: Container,
    _node: Node,
    objects: Vec<Value>,
}

impl Drop for TaintFixture {
    fn drop(&mut self) {
        for object in &self.objects {
            drop(self.api.admin().try_request("DELETE", &path(object), None));
        }
        for resource in ["api/v1/nodes", "api/v1/namespaces/kube-system/pods"] {
            let all = format!("/{resource}?labelSelector=taint-test={}", self.name);
            let now = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0});
            drop(self.api.admin().try_request("DELETE", &all, Some(&now)));
        }
    }
}

/// The manifest's documents with this test's own names.
fn documents(name: &str) -> Vec<Value> {
    let text = serde_json::to_string(&documents_of(MANIFEST)).unwrap();
    let text = text.replace("istio-cni-taint", name).replace("istio-taint-lock", &lease(name));
    let text = text.replace("k8s-app=istio-cni-node", &format!("k8s-app={name}"));
    serde_json::from_str(&text).unwrap()
}

fn lease(name: &str) -> String {
    format!("{name}-lock")
}

fn config_map_name(name: &str) -> String {
    format!("{name}-configmap")
}

/// A container that starts the agent's program under the controller's name.
fn container(node: &Node, name: &str) -> Container {
    let program = binary("install-cni");
    let mut container = Container::new(node)
        .with_env("TAINT_CONFIGMAP-NAME", &config_map_name(name))
        .with_env("TAINT_LEASE-NAME", &lease(name))
        .with_env("TAINT_NODE-SELECTOR", &format!("taint-test={name}"));
    container.add_mount(program.parent().unwrap(), "/program");
    let script = container.root().join("start");
    write_script(&script, "#!/bin/bash\nexec -a istio-cni-taint /program/install-cni \"$@\"\n");
    container.with_program(&script)
}

fn kind(document: &Value) -> &str {
    document["kind"].as_str().unwrap()
}

/// As in the chart of Istio 1.17; `leases` are Istio's, too: there is no `patch`.
fn istio_rules() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "update", "patch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list", "create", "update"]},
    ])
}

impl TaintFixture {
    /// Starts without nodes, with the manifest's ConfigMap. `None` means that there is no API server.
    pub(super) fn start(name: &'static str, rights: Rights) -> Option<Self> {
        let api = ApiServer::shared()?;
        kit::until("kube-system", || {
            api.admin().request("GET", "/api/v1/namespaces/kube-system", None).status == 200
        });
        let mut objects = documents(name);
        objects.retain(|document| {
            let rights_kinds = ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ServiceAccount"];
            let is_right = rights_kinds.contains(&kind(document));
            kind(document) == "ConfigMap" || is_right && rights == Rights::Manifest
        });
        objects.iter().for_each(|document| create(api, document, ""));
        let token = match rights {
            Rights::Istio => {
                for (kind, name) in ["ClusterRole", "ClusterRoleBinding"]
                    .map(|kind| (kind, format!("kit:{NAMESPACE}:{name}")))
                {
                    objects.push(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}}));
                }
                api.service_account(NAMESPACE, name, &istio_rules())
            }
            Rights::Manifest => {
                let account = objects.iter().find(|document| kind(document) == "ServiceAccount").unwrap();
                let uid = api.admin().get(&path(account))["metadata"]["uid"].as_str().unwrap().to_owned();
                objects.iter().for_each(|role| wait_until_in_force(api, name, role));
                api.mint_token(NAMESPACE, name, &uid, SystemTime::now() + Duration::from_secs(3600))
            }
        };
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": NAMESPACE, "name": lease(name)},
        });
        objects.push(lease);
        let node = Node::new(NodeOptions::default());
        let container = container(&node, name);
        container.set_account(&token, api.ca_pem());
        Some(Self { api, name, container, _node: node, objects })
    }

    /// Starts a controller.
    pub(super) fn controller(&self) -> Daemon {
        self.container.start()
    }

    /// Replaces the ConfigMap's data in one step: the controllers may read it at any time.
    pub(super) fn configure(&self, data: &Value) {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps/{}", config_map_name(self.name));
        let mut config_map = self.api.admin().get(&path);
        config_map["data"] = data.clone();
        let answer = self.api.admin().request("PUT", &path, Some(&config_map));
        assert_eq!(answer.status, 200, "{}", answer.body);
    }

    /// Spec of the Lease.
    pub(super) fn lease(&self) -> Value {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{}", lease(self.name));
        self.api.admin().request("GET", &path, None).body["spec"].clone()
    }

    /// Creates a node, with these taints in addition to those that the API server adds to each new one.
    pub(super) fn create_node(&self, name: &str, taints: &Value) {
        let metadata = json!({"name": self.node_name(name), "labels": {"taint-test": self.name}});
        let node = json!({"metadata": metadata, "spec": {"taints": taints}});
        self.api.admin().create("/api/v1/nodes", &node);
    }

    /// Creates a node that its kubelet reports as ready.
    pub(super) fn create_ready_node(&self, name: &str, taints: &Value) {
        self.create_node(name, taints);
        self.set_node_ready(name, true);
    }

    pub(super) fn set_node_ready(&self, name: &str, is_ready: bool) {
        let condition = json!({"type": "Ready", "status": if is_ready { "True" } else { "False" }});
        self.api.admin().patch_status(&self.node_path(name), &json!({"conditions": [condition]}));
    }

    pub(super) fn node_name(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    pub(super) fn node_path(&self, name: &str) -> String {
        format!("/api/v1/nodes/{}", self.node_name(name))
    }

    /// Keys of a node's taints, with their effects.
    pub(super) fn taints(&self, name: &str) -> Vec<String> {
        let node = self.api.admin().get(&self.node_path(name));
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        taints.iter().map(|taint| format!("{}:{}", text(&taint["key"]), text(&taint["effect"]))).collect()
    }

    pub(super) fn is_tainted(&self, name: &str) -> bool {
        self.taints(name).iter().any(|taint| taint == "NodeReadiness:NoSchedule")
    }

    pub(super) fn wait_until(&self, name: &str, is_tainted: bool) {
        let what = format!("{name} with taint: {is_tainted}");
        kit::until(&what, || self.is_tainted(name) == is_tainted);
    }

    /// Creates a pod of the DaemonSet on a node.
    pub(super) fn create_pod(&self, name: &str, node: &str) {
        self.create_labelled_pod(name, node, &json!({"k8s-app": self.name}));
    }

    pub(super) fn create_labelled_pod(&self, name: &str, node: &str, labels: &Value) {
        let mut pod = ApiServer::pod(NAMESPACE, &format!("{}-{name}", self.name));
        pod["metadata"]["labels"] = labels.clone();
        pod["metadata"]["labels"]["taint-test"] = json!(self.name);
        pod["spec"]["nodeName"] = json!(self.node_name(node));
        self.api.create_pod(&pod);
    }

    pub(super) fn pod_path(&self, name: &str) -> String {
        format!("/api/v1/namespaces/{NAMESPACE}/pods/{}-{name}", self.name)
    }

    pub(super) fn set_pod_ready(&self, name: &str, is_ready: bool) {
        let condition = json!({"type": "Ready", "status": if is_ready { "True" } else { "False" }});
        self.api.admin().patch_status(&self.pod_path(name), &json!({"conditions": [condition]}));
    }

    pub(super) fn create_ready_pod(&self, name: &str, node: &str) {
        self.create_pod(name, node);
        self.set_pod_ready(name, true);
    }

    /// All requests of the controllers for this resource.
    pub(super) fn requests(&self, resource: &str) -> Vec<kit::Request> {
        let user = format!("system:serviceaccount:{NAMESPACE}:{}", self.name);
        let mut requests = self.api.requests_with(&user);
        requests.retain(|request| request.user == user && request.resource == resource);
        requests
    }

    /// Asserts that the API server has refused nothing.
    pub(super) fn assert_allowed(&self) {
        let user = format!("system:serviceaccount:{NAMESPACE}:{}", self.name);
        assert_eq!(self.api.refused(&user), Vec::<String>::new());
    }
}

/// Waits for the authorizer, which receives new rules a moment after they are stored.
fn wait_until_in_force(api: &ApiServer, account: &str, role: &Value) {
    for rule in role["rules"].as_array().into_iter().flatten() {
        let attributes = json!({
            "verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": rule["resources"][0],
            "name": rule["resourceNames"][0], "namespace": role["metadata"]["namespace"],
        });
        let user = format!("system:serviceaccount:{NAMESPACE}:{account}");
        let review = json!({"spec": {"user": user, "resourceAttributes": attributes}});
        kit::until("the rule is in force", || {
            let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            api.admin().create(reviews, &review)["status"]["allowed"] == json!(true)
        });
    }
}
