//! Pod that checks a node: the agent's, as its DaemonSet would create it there, except that it runs `install-cni check`, serves and
//! redirects nothing, and ends.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use super::super::rendered;

/// Seconds after which the kubelet ends a pod that was not deleted.
const DEADLINE: u64 = 300;
/// Members of a container that belong to a service, or control its life.
const LEFT_OUT: [&str; 7] =
    ["command", "args", "ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"];
/// Taints that every pod of a DaemonSet tolerates.
const TOLERATED: [(&str, &str); 7] = [
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
    ("network-unavailable", "NoSchedule"),
];

/// An agent in rendered manifests.
pub(crate) struct CheckedAgent {
    /// Namespace of the agent.
    pub(super) namespace: String,
    /// Metadata of its pods, except the name.
    metadata: Map<String, Value>,
    /// Specification of its pods, except the node.
    spec: Map<String, Value>,
}

impl CheckedAgent {
    /// Reads manifests from a file, or from standard input if it is `-`.
    ///
    /// # Errors
    /// The manifests cannot be read, are too long, or do not contain exactly one agent.
    pub(crate) fn read(file: &Path) -> Result<CheckedAgent> {
        CheckedAgent::parse(&rendered::read_text(file)?)
            .with_context(|| format!("there is no agent in {}", file.display()))
    }

    fn parse(text: &str) -> Result<CheckedAgent> {
        let objects = rendered::parse_objects(text)?;
        let (daemon_set, container) = rendered::find_agent(&objects)?;
        let namespace =
            daemon_set.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or("default");
        let spec = daemon_set.pointer("/spec/template/spec").and_then(Value::as_object);
        let mut spec = spec.cloned().context("it has no pods")?;
        let container = checking_container(object_members(container.clone()), &objects);
        // The agent's service account does not exist yet, and with a priority class the pod could evict others.
        let account = spec.remove("serviceAccountName").or_else(|| spec.remove("serviceAccount"));
        for of_agent in ["serviceAccount", "initContainers", "priorityClassName", "priority", "affinity"] {
            spec.remove(of_agent);
        }
        if !spec.contains_key("imagePullSecrets")
            && let Some(secrets) = pull_secrets(&objects, account.as_ref())
        {
            spec.insert("imagePullSecrets".to_owned(), secrets);
        }
        let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
        if let Some(tolerations) = tolerations.as_array_mut() {
            tolerations.extend(TOLERATED.map(|(condition, effect)| {
                json!({"key": format!("node.kubernetes.io/{condition}"), "operator": "Exists", "effect": effect})
            }));
        }
        spec.extend(object_members(json!({
            "containers": [container],
            "restartPolicy": "Never",
            "activeDeadlineSeconds": DEADLINE,
            "terminationGracePeriodSeconds": 1,
        })));
        let annotations =
            daemon_set.pointer("/spec/template/metadata/annotations").and_then(Value::as_object);
        let mut annotations = annotations.cloned().unwrap_or_default();
        annotations.retain(|key, _| !key.starts_with("prometheus.io/"));
        // Without the agent's labels: its DaemonSet would adopt the pod, and its Services would select it.
        let labels = json!({
            "app.kubernetes.io/name": "millrace-check",
            "sidecar.istio.io/inject": "false",
            "istio.io/dataplane-mode": "none",
        });
        let metadata = json!({"namespace": namespace, "labels": labels, "annotations": annotations});
        Ok(CheckedAgent { namespace: namespace.to_owned(), metadata: object_members(metadata), spec })
    }

    /// Returns the pod for a node, assigned there by the scheduler, so that the node's resources are respected.
    pub(super) fn pod_for_node(&self, name: &str, node: &str) -> Value {
        let (mut metadata, mut spec) = (self.metadata.clone(), self.spec.clone());
        metadata.insert("name".to_owned(), json!(name));
        let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
        let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
        spec.insert("affinity".to_owned(), affinity);
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    }
}

/// Returns the agent's container, changed to run the check. A ConfigMap of the manifests does not exist yet either, so variables
/// are resolved from it; any other must exist.
fn checking_container(mut container: Map<String, Value>, objects: &[Value]) -> Map<String, Value> {
    let [words, sources, own] = ["args", "envFrom", "env"].map(|key| remove_list(&mut container, key));
    for key in LEFT_OUT {
        container.remove(key);
    }
    let args: Vec<Value> =
        [json!("check")].into_iter().chain(words).chain([json!("-o"), json!("json")]).collect();
    let (mut env, mut kept) = (Vec::new(), Vec::new());
    for source in sources {
        match rendered::config_map_variables(objects, &source) {
            Some(variables) => env.extend(variables),
            None => kept.push(source),
        }
    }
    env.extend(own.iter().map(|variable| rendered::resolved_variable(objects, variable)));
    container.extend(object_members(
        json!({"command": ["install-cni"], "args": args, "env": env, "envFrom": kept}),
    ));
    container
}

/// Removes a list from an object, and returns it; empty: there is none.
fn remove_list(members: &mut Map<String, Value>, key: &str) -> Vec<Value> {
    match members.remove(key) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

fn pull_secrets(objects: &[Value], account: Option<&Value>) -> Option<Value> {
    let account = rendered::find_object(objects, "ServiceAccount", account?.as_str()?)?;
    account.get("imagePullSecrets").cloned()
}

fn object_members(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_POD: &str = include_str!("../../../../../deploy/istio-cni-in-pod.yaml");

    #[test]
    fn the_pod_of_the_rendered_chart_has_its_settings_mounts_and_rights_and_serves_nothing() {
        let agent = CheckedAgent::parse(IN_POD).unwrap();
        assert_eq!(agent.namespace, "kube-system");
        let pod = agent.pod_for_node("millrace-check-1-0", "n1");
        let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
        assert_eq!(pod["metadata"]["labels"]["k8s-app"], Value::Null);
        assert_eq!(spec["serviceAccountName"], Value::Null);
        assert_eq!(spec["priorityClassName"], Value::Null);
        assert_eq!(
            (&spec["restartPolicy"], &spec["activeDeadlineSeconds"]),
            (&json!("Never"), &json!(DEADLINE))
        );
        let field = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values";
        assert_eq!(pod.pointer(field), Some(&json!(["n1"])));
        assert!(container["readinessProbe"].is_null() && container["ports"].is_null());
        let args: Vec<&str> =
            container["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!((args[0], &args[args.len() - 2..]), ("check", &["-o", "json"][..]));
        let env = container["env"].as_array().unwrap();
        let variable = |name: &str| env.iter().rfind(|variable| variable["name"] == name).unwrap();
        assert_eq!(variable("AMBIENT_ENABLED")["value"], "true");
        assert!(variable("NODE_NAME")["valueFrom"]["fieldRef"].is_object());
        assert!(!container["volumeMounts"].as_array().unwrap().is_empty());
        assert!(container["securityContext"]["capabilities"].is_object());
        // No reference to an object that the installation would create.
        for created in ["configMapKeyRef", "configMapRef", "\"serviceAccountName\""] {
            assert_eq!(pod.to_string().find(created), None, "{created}");
        }
    }

    /// As of an installed agent, whose ConfigMap exists: without its settings, another agent would be checked.
    #[test]
    fn a_config_map_that_is_not_among_the_manifests_stays_a_source() {
        let own = "env: [{name: A, valueFrom: {configMapKeyRef: {name: c, key: A}}}]";
        let container = format!("{{name: install-cni, envFrom: [{{configMapRef: {{name: c}}}}], {own}}}");
        let text = format!("kind: DaemonSet\nspec: {{template: {{spec: {{containers: [{container}]}}}}}}\n");
        let container_in = |text: &str| {
            let pod = CheckedAgent::parse(text).unwrap().pod_for_node("p", "n");
            pod["spec"]["containers"][0].clone()
        };
        let alone = container_in(&text);
        assert_eq!(alone["envFrom"], json!([{"configMapRef": {"name": "c"}}]));
        assert!(alone["env"][0]["valueFrom"]["configMapKeyRef"].is_object());
        let config = "---\nkind: ConfigMap\nmetadata: {name: c}\ndata: {A: '1'}\n";
        let resolved = container_in(&(text + config));
        assert_eq!(resolved["envFrom"], json!([]));
        assert_eq!(resolved["env"], json!([{"name": "A", "value": "1"}, {"name": "A", "value": "1"}]));
    }

    #[test]
    fn secrets_for_pulling_images_are_those_of_the_service_account() {
        let text = "
kind: DaemonSet
metadata: {namespace: mesh}
spec: {template: {spec: {serviceAccountName: a, containers: [{name: install-cni, image: i}]}}}
---
kind: ServiceAccount
metadata: {name: a}
imagePullSecrets: [{name: s}]
";
        let agent = CheckedAgent::parse(text).unwrap();
        assert_eq!(agent.namespace, "mesh");
        assert_eq!(agent.pod_for_node("p", "n")["spec"]["imagePullSecrets"], json!([{"name": "s"}]));
    }

    #[test]
    fn manifests_without_one_agent_are_refused() {
        for text in
            ["", "a: [", "kind: ConfigMap", "kind: DaemonSet\nspec: {template: {spec: {containers: []}}}"]
        {
            assert!(CheckedAgent::parse(text).is_err(), "{text}");
        }
    }
}
