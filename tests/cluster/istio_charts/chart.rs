//! The recorded charts.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

/// A chart rendered with one set of values.
#[derive(Debug, Clone)]
pub(crate) struct Chart {
    /// Version and name of the values, such as `1-20-8-default`; also the namespace of its release.
    pub(super) name: String,
    data: Value,
}

/// All recorded charts.
pub(super) fn all() -> Vec<Chart> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/istio-charts");
    let mut charts = Vec::new();
    for version in ["1.20.8", "1.24.6", "1.29.1"] {
        let text = fs::read(directory.join(format!("istio-cni-{version}.json"))).unwrap();
        let cases: BTreeMap<String, Value> = serde_json::from_slice(&text).unwrap();
        let named = |(case, data)| Chart { name: format!("{}-{case}", version.replace('.', "-")), data };
        charts.extend(cases.into_iter().map(named));
    }
    charts
}

/// The chart with this name.
pub(crate) fn named(name: &str) -> Chart {
    all().into_iter().find(|chart| chart.name == name).unwrap_or_else(|| panic!("no chart {name}"))
}

impl Chart {
    /// A chart in the form of the recordings.
    pub(crate) fn new(name: &str, data: Value) -> Chart {
        Chart { name: name.to_owned(), data }
    }

    pub(super) fn container(&self) -> &Value {
        &self.data["daemonset"]["containers"][0]
    }

    /// The pod specification of `helm test`; null means that the chart has none.
    pub(super) fn test_pod(&self) -> &Value {
        &self.data["test"]
    }

    pub(super) fn is_host_network(&self) -> bool {
        self.data["daemonset"]["hostNetwork"] == true
    }

    /// Seconds between SIGTERM and SIGKILL.
    pub(super) fn grace_period(&self) -> u64 {
        self.data["daemonset"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30)
    }

    pub(super) fn arguments(&self) -> Vec<String> {
        strings(&self.container()["args"])
    }

    /// Name and rules of each ClusterRole.
    pub(super) fn roles(&self) -> Vec<(String, Value)> {
        let roles = self.data["rbac"].as_array().unwrap();
        assert!(roles.iter().all(|role| role["kind"] == "ClusterRole"), "Roles have a namespace: {roles:?}");
        roles.iter().map(|role| (text(&role["name"]), role["rules"].clone())).collect()
    }

    pub(crate) fn config_maps(&self) -> Vec<(String, Value)> {
        let maps = self.data["configmaps"].as_object().unwrap();
        maps.iter().map(|(name, data)| (name.clone(), data.clone())).collect()
    }

    /// The DaemonSet, with an image.
    pub(crate) fn daemon_set(&self) -> Value {
        let spec = &self.data["daemonset"];
        let mut container = self.container().clone();
        container["image"] = json!("install-cni");
        let template = json!({
            "metadata": {"labels": spec["podLabels"], "annotations": spec["podAnnotations"]},
            "spec": {
                "containers": [container], "volumes": spec["volumes"], "tolerations": spec["tolerations"],
                "hostNetwork": self.is_host_network(), "serviceAccountName": "istio-cni",
                "terminationGracePeriodSeconds": self.grace_period(),
                "nodeSelector": {"kubernetes.io/os": "linux"},
            },
        });
        json!({
            "metadata": {"name": spec["name"]},
            "spec": {
                "selector": {"matchLabels": {"k8s-app": "istio-cni-node"}},
                "updateStrategy": spec["updateStrategy"], "template": template,
            },
        })
    }

    /// The container's environment, as the kubelet creates it.
    pub(crate) fn environment(&self, node: &str, pod: &str) -> BTreeMap<String, String> {
        let maps: BTreeMap<_, _> = self.config_maps().into_iter().collect();
        let mut environment = BTreeMap::new();
        for source in self.container()["envFrom"].as_array().into_iter().flatten() {
            let map = &maps[&text(&source["configMapRef"]["name"])];
            environment
                .extend(map.as_object().unwrap().iter().map(|(key, value)| (key.clone(), text(value))));
        }
        for variable in self.container()["env"].as_array().into_iter().flatten() {
            let from = &variable["valueFrom"];
            let value = match from["fieldRef"]["fieldPath"].as_str() {
                Some("spec.nodeName") => node.to_owned(),
                Some("metadata.name") => pod.to_owned(),
                Some("metadata.namespace") => self.name.clone(),
                Some(other) => panic!("{other}"),
                None if from["configMapKeyRef"].is_object() => {
                    let key = &from["configMapKeyRef"];
                    text(&maps[&text(&key["name"])][text(&key["key"])])
                }
                None if from["resourceFieldRef"].is_object() => "4".to_owned(),
                None if variable["value"].is_null() => String::new(),
                None => text(&variable["value"]),
            };
            environment.insert(text(&variable["name"]), value);
        }
        environment
    }

    /// Mount points of the node's directories in the container: `/proc` at `/host/proc`.
    pub(super) fn mounts(&self) -> Vec<(String, String)> {
        let volumes = self.data["daemonset"]["volumes"].as_array().unwrap();
        let host_path = |name: &Value| {
            let volume = volumes.iter().find(|volume| volume["name"] == *name).unwrap();
            text(&volume["hostPath"]["path"])
        };
        let mounts = self.container()["volumeMounts"].as_array().unwrap();
        mounts.iter().map(|mount| (host_path(&mount["name"]), text(&mount["mountPath"]))).collect()
    }

    /// setpriv's options for the container's security context.
    pub(super) fn privileges(&self) -> String {
        let context = &self.container()["securityContext"];
        // Recorded without `cni.privileged=true`, which the profile of that version sets, and without which an agent cannot change
        // a node's network.
        let needs_profile =
            self.environment("", "").contains_key("AMBIENT_ENABLED") && self.is_host_network();
        if context["privileged"] == true || needs_profile {
            return String::new();
        }
        capability_options(&context["capabilities"])
    }
}

/// setpriv's options for the capabilities of a security context.
pub(super) fn capability_options(capabilities: &Value) -> String {
    let dropped = strings(&capabilities["drop"]);
    let kept = if dropped.iter().any(|name| name == "ALL") { Vec::new() } else { default_capabilities() };
    let all = kept.into_iter().chain(strings(&capabilities["add"]));
    let added: String = all.map(|name| format!(",+{}", name.to_lowercase())).collect();
    format!("--bounding-set=-all{added} --inh-caps=-all")
}

/// Container runtimes' default capabilities of root.
fn default_capabilities() -> Vec<String> {
    let names = "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE NET_RAW SETFCAP SETGID \
                 SETPCAP SETUID SYS_CHROOT";
    names.split(' ').map(str::to_owned).collect()
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

pub(super) fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(text).collect()
}
