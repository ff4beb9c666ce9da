//! The agent's DaemonSet with all that belongs to it: our manifests, and what Istio's chart makes of its values.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::control::{ControlPlane, metadata};
use crate::machine::Machine;
use crate::wait::until;

/// Everything of one installation.
pub(crate) struct Agent {
    /// For headlines.
    pub(crate) name: String,
    namespace: String,
    objects: Vec<Value>,
}

/// The namespace that Istio's documentation installs its charts into.
const CHART_NAMESPACE: &str = "istio-system";
const PLAIN_IMAGE: &str = "millrace/install-cni:0.1.0";
const AMBIENT_IMAGE: &str = "millrace/install-cni:0.1.0-ambient";
const DAEMON_SET: &str = "istio-cni-node";
const ROLLOUT_LIMIT: Duration = Duration::from_secs(60);

impl Agent {
    /// One of our manifests.
    pub(crate) fn manifest(file: &str) -> Self {
        let text = fs::read_to_string(repository("deploy").join(file)).expect("a manifest");
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("a manifest is YAML");
        local_image(&mut objects, None);
        Self { name: format!("deploy/{file}"), namespace: "kube-system".into(), objects }
    }

    /// What Istio's chart renders for one set of values, with our image.
    pub(crate) fn chart(version: &str, case: &str) -> Self {
        let path = repository("tests/data/istio-charts").join(format!("istio-cni-{version}.json"));
        let cases: Value = serde_json::from_slice(&fs::read(path).expect("data of a chart")).expect("JSON");
        let rendered = &cases[case];
        let mut objects = rendered_objects(rendered);
        let image = if case == "ambient" { AMBIENT_IMAGE } else { PLAIN_IMAGE };
        local_image(&mut objects, Some(image));
        Self { name: format!("Istio's chart {version}, {case}"), namespace: CHART_NAMESPACE.into(), objects }
    }

    /// With `cni.privileged=true`, which Istio's profile for ambient mode sets together with `cni.ambient.enabled`.
    pub(crate) fn privileged(mut self) -> Self {
        for object in self.objects.iter_mut().filter(|object| object["kind"] == "DaemonSet") {
            object["spec"]["template"]["spec"]["containers"][0]["securityContext"]["privileged"] =
                json!(true);
        }
        self.name += ", privileged";
        self
    }

    /// Creates all objects, in the order that `kubectl apply` and Helm have.
    pub(crate) fn apply(&self, control: &ControlPlane) {
        for object in &self.objects {
            control.apply(&collection(object), object);
        }
    }

    /// Waits until the agent of this generation, and no other, is ready.
    pub(crate) fn wait_ready(&self, control: &ControlPlane) -> bool {
        self.wait_ready_within(control, ROLLOUT_LIMIT)
    }

    pub(crate) fn wait_ready_within(&self, control: &ControlPlane, limit: Duration) -> bool {
        until(limit, || control.find(&self.path()).filter(rolled_out)).is_some()
    }

    /// `kubectl rollout restart`.
    pub(crate) fn restart(&self, control: &ControlPlane, tag: &str) {
        let template = metadata("annotations", "kubectl.kubernetes.io/restartedAt", Some(tag));
        control.admin.patch(&self.path(), &json!({"spec": {"template": template}}));
    }

    /// Deletes as `helm uninstall` does: the DaemonSet first, and all else while its pods end.
    pub(crate) fn uninstall(&self, control: &ControlPlane) {
        let order = [
            "DaemonSet",
            "RoleBinding",
            "Role",
            "ClusterRoleBinding",
            "ClusterRole",
            "ConfigMap",
            "ServiceAccount",
        ];
        for kind in order {
            for object in self.objects.iter().filter(|object| object["kind"] == kind) {
                control.delete(&path(object));
            }
        }
    }

    /// The agent's pods.
    pub(crate) fn pods(&self, control: &ControlPlane) -> Vec<Value> {
        let mut pods = control.pods(&self.namespace);
        pods.retain(|pod| pod["metadata"]["labels"]["k8s-app"] == DAEMON_SET);
        pods
    }

    /// The ends of the logs of its pods.
    pub(crate) fn logs(&self, control: &ControlPlane, machine: &Machine) -> String {
        let log = |pod: &Value| {
            let log = machine.container_log(pod, "install-cni");
            let lines: Vec<_> = log.lines().collect();
            format!("{}\n{}", pod["metadata"]["name"], lines[lines.len().saturating_sub(40)..].join("\n"))
        };
        self.pods(control).iter().map(log).collect::<Vec<_>>().join("\n")
    }

    fn path(&self) -> String {
        format!("/apis/apps/v1/namespaces/{}/daemonsets/{DAEMON_SET}", self.namespace)
    }
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").join(path)
}

fn rolled_out(daemon_set: &Value) -> bool {
    let (generation, status) = (&daemon_set["metadata"]["generation"], &daemon_set["status"]);
    status["observedGeneration"] == *generation
        && ["desiredNumberScheduled", "updatedNumberScheduled", "numberReady"]
            .iter()
            .all(|field| status[*field] == 1)
}

/// No registry is asked: the image is on the node.
fn local_image(objects: &mut [Value], image: Option<&str>) {
    for object in objects.iter_mut().filter(|object| object["kind"] == "DaemonSet") {
        let container = &mut object["spec"]["template"]["spec"]["containers"][0];
        container["imagePullPolicy"] = json!("Never");
        if let Some(image) = image {
            container["image"] = json!(image);
        }
    }
}

/// The objects of a case of the data, which has their contents in parts.
fn rendered_objects(rendered: &Value) -> Vec<Value> {
    let named = |name: &Value| json!({"namespace": CHART_NAMESPACE, "name": name});
    let rbac = "rbac.authorization.k8s.io/v1";
    let mut objects =
        vec![json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named(&json!("istio-cni"))})];
    for (name, data) in rendered["configmaps"].as_object().into_iter().flatten() {
        objects.push(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": named(&json!(name)), "data": data}),
        );
    }
    for role in rendered["rbac"].as_array().into_iter().flatten() {
        assert_eq!(role["kind"], "ClusterRole", "a kind of role that needs another binding");
        let metadata = json!({"name": role["name"]});
        let binding = json!({
            "apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": "istio-cni", "namespace": CHART_NAMESPACE}],
        });
        objects.push(
            json!({"apiVersion": rbac, "kind": "ClusterRole", "metadata": metadata, "rules": role["rules"]}),
        );
        objects.push(binding);
    }
    objects.push(daemon_set(&rendered["daemonset"]));
    objects
}

fn daemon_set(part: &Value) -> Value {
    let labels = &part["podLabels"];
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"namespace": CHART_NAMESPACE, "name": part["name"]},
        "spec": {
            "selector": {"matchLabels": {"k8s-app": labels["k8s-app"]}},
            "updateStrategy": part["updateStrategy"],
            "template": {
                "metadata": {"labels": labels, "annotations": part["podAnnotations"]},
                "spec": {
                    "hostNetwork": part["hostNetwork"], "tolerations": part["tolerations"],
                    "priorityClassName": "system-node-critical", "serviceAccountName": "istio-cni",
                    "terminationGracePeriodSeconds": part["terminationGracePeriodSeconds"],
                    "containers": part["containers"], "volumes": part["volumes"],
                },
            },
        },
    })
}

/// Path of the collection that an object belongs into.
pub(crate) fn collection(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let root = if version.contains('/') { "/apis" } else { "/api" };
    let plural = format!("{}s", kind.to_lowercase());
    match text(&object["metadata"]["namespace"]).as_str() {
        "" => format!("{root}/{version}/{plural}"),
        namespace => format!("{root}/{version}/namespaces/{namespace}/{plural}"),
    }
}

/// Path of an object.
pub(crate) fn path(object: &Value) -> String {
    format!("{}/{}", collection(object), object["metadata"]["name"].as_str().expect("an object has a name"))
}
