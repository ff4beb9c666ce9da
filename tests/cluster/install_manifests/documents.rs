//! The YAML documents, and their validation by an API server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kit::ApiServer;
use serde_json::{Value, json};

/// A path in the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path)
}

/// The manifest without ambient mode, which most tests use.
pub(crate) const SIDECAR: &str = "istio-cni.yaml";
/// The manifest with ambient mode and node-level capture.
pub(crate) const AMBIENT: &str = "istio-cni-ambient.yaml";
/// The manifest with ambient mode and in-pod capture.
pub(crate) const IN_POD: &str = "istio-cni-in-pod.yaml";

/// Every document of a manifest, in its order.
pub(crate) fn documents_of(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(repository("deploy").join(file)).unwrap();
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Permissions of a manifest's account in one list; `whole` includes the rules in comments.
pub(crate) fn rules_of(file: &str, whole: bool) -> Value {
    let text = fs::read_to_string(repository("deploy").join(file)).unwrap();
    let opened = text.replace("\n  # - apiGroups", "\n  - apiGroups").replace("\n  #   ", "\n    ");
    assert_ne!(opened, text, "{file}: no rules in comments");
    let documents: Vec<Value> = serde_saphyr::from_multiple(if whole { &opened } else { &text }).unwrap();
    let roles = documents.iter().filter(|document| document["kind"].as_str().unwrap().ends_with("Role"));
    roles.flat_map(|role| role["rules"].as_array().unwrap().clone()).collect()
}

/// Every document of the manifest without ambient mode.
pub(super) fn documents() -> Vec<Value> {
    documents_of(SIDECAR)
}

/// The only document of this kind.
pub(super) fn document(kind: &str) -> Value {
    let mut found: Vec<Value> = documents().into_iter().filter(|document| document["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "{kind}");
    found.remove(0)
}

/// The container of the DaemonSet.
pub(super) fn container() -> Value {
    let mut daemon_set = document("DaemonSet");
    let containers = daemon_set["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap();
    assert_eq!(containers.len(), 1);
    containers.remove(0)
}

/// Path of a document's collection.
pub(super) fn collection(document: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&document["apiVersion"]), text(&document["kind"]));
    let root = if version.contains('/') { "/apis" } else { "/api" };
    let plural = format!("{}s", kind.to_lowercase()).replace("policys", "policies");
    match text(&document["metadata"]["namespace"]).as_str() {
        "" => format!("{root}/{version}/{plural}"),
        namespace => format!("{root}/{version}/namespaces/{namespace}/{plural}"),
    }
}

/// Path of the object that a document describes.
pub(crate) fn path(document: &Value) -> String {
    format!("{}/{}", collection(document), document["metadata"]["name"].as_str().unwrap())
}

/// The documents with a test's own namespace, whose name also replaces `istio-cni` in names of cluster-scoped objects.
pub(super) fn documents_for(namespace: &str) -> Vec<Value> {
    renamed(documents(), namespace)
}

/// Documents renamed for a namespace, as by [`documents_for`].
pub(crate) fn renamed(mut documents: Vec<Value>, namespace: &str) -> Vec<Value> {
    let own = |name: &Value| json!(name.as_str().unwrap().replace("istio-cni", namespace));
    for document in &mut documents {
        if document["metadata"].get("namespace").is_some() {
            document["metadata"]["namespace"] = json!(namespace);
        } else {
            document["metadata"]["name"] = own(&document["metadata"]["name"]);
        }
        if document["roleRef"]["kind"] == "ClusterRole" {
            document["roleRef"]["name"] = own(&document["roleRef"]["name"]);
        }
        for subject in document.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
            subject["namespace"] = json!(namespace);
        }
    }
    documents
}

/// Creates an object; a field that the API server does not know or would drop is an error.
pub(crate) fn create(api: &ApiServer, document: &Value, how: &str) {
    let path = format!("{}?fieldValidation=Strict{how}", collection(document));
    let answer = api.admin().request("POST", &path, Some(document));
    assert_eq!(answer.status, 201, "{}: {}", document["kind"], answer.body);
    assert_eq!(answer.body["kind"], document["kind"]);
}

/// Waits for the manifests' namespace, which the API server creates a moment after its start.
pub(super) fn wait_for_kube_system(api: &ApiServer) {
    kit::until("kube-system", || {
        api.admin().request("GET", "/api/v1/namespaces/kube-system", None).status == 200
    });
}

#[test]
fn the_api_server_takes_every_document_to_the_letter() {
    let Some(api) = ApiServer::shared() else { return };
    api.create_namespace("deploy-letter");
    [SIDECAR, AMBIENT, IN_POD].into_iter().for_each(|file| is_taken(api, file));
    wait_for_kube_system(api);
    for file in ["admission-policy.yaml", "network-policy.yaml", "istio-cni-taint.yaml"] {
        let documents = documents_of(file);
        assert!(!documents.is_empty());
        documents.iter().for_each(|document| create(api, document, "&dryRun=All"));
    }
}

fn is_taken(api: &ApiServer, file: &str) {
    let documents = renamed(documents_of(file), "deploy-letter"); // another test has the real names
    documents.iter().for_each(|document| create(api, document, "&dryRun=All"));
    let kinds: Vec<&str> = documents.iter().map(|document| document["kind"].as_str().unwrap()).collect();
    let cluster_wide: &[&str] = match file {
        SIDECAR => &["ClusterRole", "ClusterRoleBinding"],
        _ => &["ClusterRole", "ClusterRole", "ClusterRoleBinding", "ClusterRoleBinding"],
    };
    let expected = [&["ServiceAccount", "ConfigMap"], cluster_wide, &["Role", "RoleBinding", "DaemonSet"]];
    assert_eq!(kinds, expected.concat(), "{file}");
}

/// The name of the image cannot be resolved (RFC 6761), so that no manifest can be applied by accident.
#[test]
fn no_node_can_pull_a_manifests_image_until_it_is_replaced_as_documented() {
    let unresolvable = concat!("registry.invalid/install-cni:", env!("CARGO_PKG_VERSION"));
    let mut with_pods = Vec::new();
    for entry in fs::read_dir(repository("deploy")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".yaml") || images(&mut documents_of(&name)).is_empty() {
            continue;
        }
        let command =
            format!("sed 's|image: .*|image: REGISTRY/install-cni:TAG|' deploy/{name} | kubectl apply -f -");
        let text = fs::read_to_string(repository("deploy").join(&name)).unwrap();
        assert!(kit::has_line(&text, &format!("#   {command}")), "{name}: {command}");
        let sed = command.strip_suffix(" | kubectl apply -f -").unwrap();
        let output = Command::new("sh").args(["-c", sed]).current_dir(repository("")).output().unwrap();
        let replaced = String::from_utf8(output.stdout).unwrap();
        let replaced: Vec<Value> = serde_saphyr::from_multiple(&replaced).unwrap();
        let mut documents = documents_of(&name);
        for image in images(&mut documents) {
            assert_eq!(*image, unresolvable, "{name}");
            *image = json!("REGISTRY/install-cni:TAG");
        }
        assert_eq!(documents, replaced, "{name}");
        with_pods.push(name);
    }
    with_pods.sort();
    assert_eq!(with_pods, [AMBIENT, IN_POD, "istio-cni-taint.yaml", SIDECAR]);
}

/// The images of all containers.
fn images(documents: &mut [Value]) -> Vec<&mut Value> {
    let containers = documents.iter_mut().filter_map(|document| {
        document.pointer_mut("/spec/template/spec/containers").and_then(Value::as_array_mut)
    });
    containers.flatten().map(|container| &mut container["image"]).collect()
}

/// Validation of the DaemonSet does not suffice: its pods must pass admission, which checks the priority class.
#[test]
fn the_api_server_takes_a_pod_of_the_daemon_set() {
    let Some(api) = ApiServer::shared() else { return };
    wait_for_kube_system(api);
    let template = document("DaemonSet")["spec"]["template"].clone();
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]});
    pod["metadata"]["name"] = json!("istio-cni-node-x7k2p");
    pod["metadata"]["namespace"] = json!("kube-system");
    kit::until("the priority class", || {
        let path = "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical";
        api.admin().request("GET", path, None).status == 200
    });
    create(api, &pod, "&dryRun=All");
}
