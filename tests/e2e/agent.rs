//! The agent's DaemonSet with all its objects: our manifests, and those that Istio's chart renders.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::control::{ControlPlane, metadata};
use crate::helm;
use crate::machine::Machine;

/// The objects of one installation.
pub(crate) struct Agent {
    /// Name in headlines.
    pub(crate) name: String,
    namespace: String,
    objects: Vec<Value>,
}

/// Namespace in which Istio's documentation installs its charts.
const CHART_NAMESPACE: &str = "istio-system";
/// Image without iptables, used in every mode.
pub(crate) const AGENT_IMAGE: &str = "registry.invalid/install-cni:0.1.0";
const CHART_VERSIONS: [&str; 3] = ["1.20.8", "1.24.6", "1.29.1"];
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

    /// Objects that Istio's chart renders for one set of values, with our image.
    pub(crate) fn chart(version: &str, case: &str) -> Self {
        let cases = cases(version);
        let rendered = &cases[case];
        let mut objects = rendered_objects(rendered);
        local_image(&mut objects, Some(AGENT_IMAGE));
        let agent = Self {
            name: format!("Istio's chart {version}, {case}"),
            namespace: CHART_NAMESPACE.into(),
            objects,
        };
        let needs_privileges = version.starts_with("1.20.") && is_ambient(rendered);
        if needs_privileges { agent.privileged() } else { agent }
    }

    /// Objects that our chart renders with these values, in the syntax of `--set`.
    pub(crate) fn ours(values: &[&str]) -> Self {
        let text = helm::template(&Self::our_chart(), CHART_NAMESPACE, values);
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("a chart renders YAML");
        Self { name: format!("our chart, {}", values.join(", ")), namespace: CHART_NAMESPACE.into(), objects }
    }

    /// Objects that Istio's chart renders with `repair.repairPods`.
    pub(crate) fn repairing(version: &str) -> Self {
        Self::chart(version, "repair-pods")
    }

    /// Every case of the data with a DaemonSet or permissions of its own; others differ in settings, which the tests cover.
    pub(crate) fn distinct_charts() -> Vec<(&'static str, String)> {
        let mut distinct = Vec::new();
        for version in CHART_VERSIONS {
            let mut seen = BTreeSet::new();
            let mut cases: Vec<_> = cases(version).into_iter().collect();
            // Of several with the same DaemonSet, the most common one.
            cases.sort_by_key(|(case, _)| case != "default");
            for (case, rendered) in cases {
                if seen.insert(json!([rendered["daemonset"], rendered["rbac"]]).to_string()) {
                    distinct.push((version, case));
                }
            }
        }
        distinct
    }

    /// Directories of the node's network configurations, plugins and network namespaces, as this DaemonSet mounts them, by the
    /// paths of the test's runtime.
    pub(crate) fn layout(&self) -> Vec<(String, &'static str)> {
        let daemon_set =
            self.objects.iter().find(|object| object["kind"] == "DaemonSet").expect("it has one");
        let volumes = daemon_set["spec"]["template"]["spec"]["volumes"].as_array().into_iter().flatten();
        let known = |name: &str| match name {
            "cni-net-dir" => Some("/etc/cni/net.d"),
            "cni-bin-dir" => Some("/opt/cni/bin"),
            "cni-netns-dir" => Some("/var/run/netns"),
            _ => None,
        };
        let place = |volume: &Value| {
            let path = volume["hostPath"]["path"].as_str()?.trim_end_matches('/').to_owned();
            Some((path, known(volume["name"].as_str()?)?))
        };
        volumes.filter_map(place).filter(|(path, usual)| path != usual).collect()
    }

    /// Whether the plugin is chained in the node's network, not called by a meta plugin.
    pub(crate) fn is_chained(&self) -> bool {
        let says_no = |value: &Value| *value == "false";
        let in_configmap = |object: &Value| says_no(&object["data"]["CHAINED_CNI_PLUGIN"]);
        let in_container = |object: &Value| {
            let container = &object["spec"]["template"]["spec"]["containers"][0];
            let mut env = container["env"].as_array().into_iter().flatten();
            env.any(|one| one["name"] == "CHAINED_CNI_PLUGIN" && says_no(&one["value"]))
        };
        !self.objects.iter().any(|object| in_configmap(object) || in_container(object))
    }

    /// Adds `cni.privileged=true`, which Istio's profile for ambient mode sets together with `cni.ambient.enabled`.
    fn privileged(mut self) -> Self {
        for object in self.objects.iter_mut().filter(|object| object["kind"] == "DaemonSet") {
            object["spec"]["template"]["spec"]["containers"][0]["securityContext"]["privileged"] =
                json!(true);
        }
        self.name += ", privileged";
        self
    }

    /// Creates all objects, in the order of `kubectl apply` and Helm.
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
        kit::found_within(limit, || control.find(&self.path()).filter(rolled_out)).is_some()
    }

    /// `kubectl rollout restart`.
    pub(crate) fn restart(&self, control: &ControlPlane, tag: &str) {
        let template = metadata("annotations", "kubectl.kubernetes.io/restartedAt", Some(tag));
        control.admin.patch(&self.path(), &json!({"spec": {"template": template}}));
    }

    /// Upgrades the DaemonSet to another image, and returns the previous one.
    pub(crate) fn set_image(&self, control: &ControlPlane, image: &str) -> String {
        let daemon_set = control.find(&self.path()).expect("the DaemonSet is there");
        let mut containers = daemon_set["spec"]["template"]["spec"]["containers"].clone();
        let before = containers[0]["image"].as_str().expect("a container has an image").to_owned();
        containers[0]["image"] = json!(image);
        let template = json!({"spec": {"containers": containers}});
        control.admin.patch(&self.path(), &json!({"spec": {"template": template}}));
        before
    }

    /// Deletes as `helm uninstall` does: the DaemonSet first, and everything else while its pods end.
    pub(crate) fn uninstall(&self, control: &ControlPlane) {
        let order = [
            "DaemonSet",
            "Deployment",
            "RoleBinding",
            "Role",
            "ClusterRoleBinding",
            "ClusterRole",
            "ConfigMap",
            "ServiceAccount",
            "NetworkAttachmentDefinition",
        ];
        for kind in order {
            for object in self.objects.iter().filter(|object| object["kind"] == kind) {
                control.delete(&path(object));
            }
        }
    }

    /// All objects, in the order of `kubectl apply` and Helm.
    pub(crate) fn objects(&self) -> &[Value] {
        &self.objects
    }

    /// The namespace of the DaemonSet.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Our chart's directory.
    pub(crate) fn our_chart() -> PathBuf {
        repository("deploy/charts/istio-cni")
    }

    /// The agent's pods.
    pub(crate) fn pods(&self, control: &ControlPlane) -> Vec<Value> {
        let mut pods = control.pods(&self.namespace);
        pods.retain(|pod| pod["metadata"]["labels"]["k8s-app"] == DAEMON_SET);
        pods
    }

    /// Ends of its pods' logs.
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

/// Recorded cases of a chart's version, by name.
fn cases(version: &str) -> BTreeMap<String, Value> {
    let path = repository("tests/data/istio-charts").join(format!("istio-cni-{version}.json"));
    serde_json::from_slice(&fs::read(path).expect("data of a chart")).expect("JSON")
}

fn is_ambient(rendered: &Value) -> bool {
    let names = ["cni-ztunnel-sock-dir", "cni-ambient-config-dir"];
    let mut volumes = rendered["daemonset"]["volumes"].as_array().into_iter().flatten();
    volumes.any(|volume| names.iter().any(|name| volume["name"] == *name))
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

/// Disables pulling: the image is on the node.
fn local_image(objects: &mut [Value], image: Option<&str>) {
    let runs_pods = |object: &&mut Value| object["kind"] == "DaemonSet" || object["kind"] == "Deployment";
    for object in objects.iter_mut().filter(runs_pods) {
        let container = &mut object["spec"]["template"]["spec"]["containers"][0];
        container["imagePullPolicy"] = json!("Never");
        if let Some(image) = image {
            container["image"] = json!(image);
        }
    }
}

/// Objects of a case of the data, which has parts of them.
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

/// Path of an object's collection.
pub(crate) fn collection(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let root = if version.contains('/') { "/apis" } else { "/api" };
    let plural = match kind.as_str() {
        "NetworkAttachmentDefinition" => "network-attachment-definitions".to_owned(),
        _ => format!("{}s", kind.to_lowercase()),
    };
    match text(&object["metadata"]["namespace"]).as_str() {
        "" => format!("{root}/{version}/{plural}"),
        namespace => format!("{root}/{version}/namespaces/{namespace}/{plural}"),
    }
}

/// Path of an object.
pub(crate) fn path(object: &Value) -> String {
    format!("{}/{}", collection(object), object["metadata"]["name"].as_str().expect("an object has a name"))
}
