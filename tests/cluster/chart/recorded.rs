//! Our chart compared with Istio's: for each recorded set of values the same objects, except for the differences listed here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::{Value, json};

use super::helm::{Helm, each, object};
use crate::install_manifests::documents::repository;

/// A recorded version, and the `compatibilityVersion` that has its layout.
const VERSIONS: [(&str, &str); 3] = [("1.20.8", "1.20"), ("1.24.6", "1.24"), ("1.29.1", "")];

/// An intended difference.
struct Allowed {
    /// `+` for objects of ours alone, `-` for objects of Istio alone, `~` for another value; then the path. A `*` at the end
    /// matches any rest.
    what: &'static str,
    /// Versions and cases in which it occurs, such as `1.20.8` or `1.20.8/ambient`.
    only: &'static [&'static str],
    why: &'static str,
}

const fn allowed(what: &'static str, only: &'static [&'static str], why: &'static str) -> Allowed {
    Allowed { what, only, why }
}

const ALL: &[&str] = &["1.20.8", "1.24.6", "1.29.1"];
const OLD: &[&str] = &["1.20.8"];
const NEWER: &[&str] = &["1.24.6", "1.29.1"];
/// The agent changes nothing in any network namespace.
const WITHOUT_REDIRECTION: &[&str] =
    &["1.24.6/no-repair", "1.24.6/repair-label", "1.29.1/no-repair", "1.29.1/repair-label"];
const NO_REPAIR: &[&str] = &["1.20.8/no-repair", "1.24.6/no-repair", "1.29.1/no-repair"];

const NOT_GO: &str = "settings of the Go runtime";
const LIMITED: &str = "without a memory limit, the kernel would kill other programs before a critical pod";
const LIVENESS: &str = "an agent that makes no progress is restarted";
const CREATED: &str = "a node that lacks the directory has an agent, too";
const LEAST: &str = "no more capabilities than the mode needs; the old chart leaves the runtime's default";
const SEES_PODS: &str = "the agent that repairs in place also observes sidecar pods";
const OWN_DAEMON_SET: &str = "whether a shutdown is an upgrade or an uninstallation";
const FOLLOWED: &str = "the agent follows its ConfigMap";
const UNUSED: &str = "the agent does not need it: docs/permissions.md";
const LATER: &str = "settings of later charts, which do not change the meaning of these";
const IDENTITY: &str = "the agent finds its own pod and DaemonSet by it";

const ALLOWED: &[Allowed] = &[
    // Objects and rules.
    allowed("+object/Pod istio-cni-test", ALL, "`helm test`"),
    allowed("+object/Role istio-cni", ALL, OWN_DAEMON_SET),
    allowed("+object/RoleBinding istio-cni", ALL, OWN_DAEMON_SET),
    allowed("+rule/apps daemonsets istio-cni-node *", ALL, OWN_DAEMON_SET),
    allowed("+rule/ configmaps istio-cni-config *", OLD, FOLLOWED),
    allowed("+rule/ events  *", NO_REPAIR, "Events about the installation, also without repair"),
    allowed("-rule/ nodes  list", ALL, UNUSED),
    allowed("-rule/ nodes  watch", ALL, UNUSED),
    allowed("-rule/ pods/status  update", ALL, UNUSED),
    allowed("-rule/ namespaces  *", ALL, UNUSED),
    allowed("-rule/ pods  list", NO_REPAIR, UNUSED),
    allowed("-rule/ pods  watch", NO_REPAIR, UNUSED),
    // ConfigMaps.
    allowed("~config/CURRENT_AGENT_VERSION", NEWER, "ours"),
    allowed("+config/AMBIENT_ENABLEMENT_SELECTOR", &["1.24.6"], LATER),
    allowed("+config/AMBIENT_RECONCILE_POD_RULES_ON_STARTUP", &["1.24.6"], LATER),
    allowed("+config/ENABLE_AMBIENT_DETECTION_RETRY", &["1.24.6"], LATER),
    allowed("+config/ISTIO_OWNED_CNI_CONF*", &["1.24.6"], LATER),
    allowed("+config/NATIVE_NFTABLES", &["1.24.6"], LATER),
    allowed(
        "+config/cni_network_config/capabilities/*",
        OLD,
        "the runtime delivers annotations, which saves requests",
    ),
    allowed("+config/cni_network_config/pod_namespace", OLD, "the plugin knows the agent's own pods by it"),
    // The container.
    allowed("+pod/containers/install-cni/image", ALL, "ours; the recordings have none"),
    allowed("+pod/containers/install-cni/resources/requests/*", ALL, "the recordings have none"),
    allowed("+pod/containers/install-cni/resources/limits/memory", ALL, LIMITED),
    allowed("+pod/containers/install-cni/ports/metrics/*", OLD, "for a PodMonitor"),
    allowed("+pod/containers/install-cni/livenessProbe/*", ALL, LIVENESS),
    allowed(
        "+pod/containers/install-cni/readinessProbe/periodSeconds",
        ALL,
        "pods of the mesh wait for the agent",
    ),
    allowed(
        "+pod/containers/install-cni/readinessProbe/failureThreshold",
        ALL,
        "pods of the mesh wait for the agent",
    ),
    allowed("-pod/containers/install-cni/env/GOMEMLIMIT/*", ALL, NOT_GO),
    allowed("-pod/containers/install-cni/env/GOMAXPROCS/*", ALL, NOT_GO),
    allowed(
        "-pod/containers/install-cni/env/NODE_NAME/valueFrom/fieldRef/apiVersion",
        ALL,
        "v1 is the default",
    ),
    allowed("+pod/containers/install-cni/env/POD_NAME/*", OLD, IDENTITY),
    allowed("+pod/containers/install-cni/env/POD_NAMESPACE/*", OLD, IDENTITY),
    allowed("+pod/containers/install-cni/env/CNI_CONFIG_MAP/*", OLD, FOLLOWED),
    allowed(
        "+pod/containers/install-cni/env/EXCLUDE_NAMESPACES/*",
        OLD,
        "repair leaves the same namespaces alone as the plugin",
    ),
    allowed(
        "+pod/containers/install-cni/env/AMBIENT_CAPTURE/*",
        &["1.20.8/ambient"],
        "its mounts are those of this mode",
    ),
    allowed("+pod/containers/install-cni/env/NO_ZTUNNEL_POLICY/*", &["1.20.8/ambient"], "a value of ours"),
    allowed("+pod/containers/install-cni/env/ALLOW_SWITCH_TO_HOST_NS/*", &["1.24.6"], LATER),
    allowed("+pod/containers/install-cni/securityContext/allowPrivilegeEscalation", ALL, LEAST),
    allowed("+pod/containers/install-cni/securityContext/readOnlyRootFilesystem", ALL, LEAST),
    allowed("+pod/containers/install-cni/securityContext/seccompProfile/*", ALL, LEAST),
    allowed("+pod/containers/install-cni/securityContext/capabilities/*", OLD, LEAST),
    allowed("-pod/containers/install-cni/securityContext/capabilities/add/*", WITHOUT_REDIRECTION, LEAST),
    allowed(
        "~pod/containers/install-cni/securityContext/privileged",
        &["1.20.8/ambient"],
        "node-level capture needs it; Istio's profile sets it besides",
    ),
    // Volumes.
    allowed("+pod/containers/install-cni/volumeMounts/xtables-lock/*", ALL, "the node's iptables lock"),
    allowed("+pod/volumes/xtables-lock/*", ALL, "the node's iptables lock"),
    allowed("+pod/containers/install-cni/volumeMounts/cni-netns-dir/*", ALL, SEES_PODS),
    allowed("+pod/containers/install-cni/volumeMounts/cni-host-procfs/readOnly", OLD, LEAST),
    allowed(
        "-pod/containers/install-cni/volumeMounts/cni-host-procfs/*",
        NO_REPAIR,
        "not used without repair in place",
    ),
    allowed("-pod/volumes/cni-host-procfs/*", NO_REPAIR, "not used without repair in place"),
    allowed("-pod/volumes/cni-netns-dir/*", ALL, "Istio's chart declares a volume that no container mounts"),
    allowed("+pod/volumes/cni-bin-dir/hostPath/type", ALL, CREATED),
    allowed("+pod/volumes/cni-net-dir/hostPath/type", ALL, CREATED),
    allowed("+pod/volumes/cni-log-dir/hostPath/type", OLD, CREATED),
    allowed("+pod/volumes/cni-socket-dir/hostPath/type", NEWER, CREATED),
    allowed("+pod/volumes/cni-ambient-config-dir/hostPath/type", OLD, CREATED),
    allowed("~pod/volumes/cni-netns-dir/hostPath/type", OLD, CREATED),
    allowed(
        "~pod/volumes/cni-bin-dir/hostPath/path",
        &["1.24.6/k3s"],
        "k3s has another directory of plugins by now",
    ),
    // The pod.
    allowed(
        "+pod/podAnnotations/checksum/istio-cni-config",
        NEWER,
        "a change of the ConfigMap restarts the agents",
    ),
    allowed(
        "+pod/podAnnotations/container.apparmor*",
        &["1.20.8/repair-pods"],
        "the profile forbids repair in place",
    ),
    allowed(
        "-pod/podAnnotations/container.apparmor*",
        WITHOUT_REDIRECTION,
        "nothing that the profile forbids is needed",
    ),
    allowed("~pod/podLabels/app.kubernetes.io/version", NEWER, "ours"),
    allowed("~pod/podLabels/helm.sh/chart", NEWER, "ours"),
    allowed(
        "~pod/terminationGracePeriodSeconds",
        &["1.20.8", "1.24.6"],
        "the newer default; the agent rarely needs it",
    ),
];

/// A recorded set of values.
pub(super) struct Case {
    version: &'static str,
    compatibility: &'static str,
    name: String,
    recording: Value,
}

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (version, compatibility) in VERSIONS {
        let path = repository("tests/data/istio-charts").join(format!("istio-cni-{version}.json"));
        let recordings: BTreeMap<String, Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let named = |(name, recording)| Case { version, compatibility, name, recording };
        all.extend(recordings.into_iter().map(named));
    }
    all
}

impl Case {
    pub(super) fn values(&self) -> Vec<String> {
        let recorded = self.recording["values"].as_array().unwrap().iter();
        let mut values: Vec<String> = recorded.map(|value| value.as_str().unwrap().to_owned()).collect();
        if !self.compatibility.is_empty() {
            values.push(format!("compatibilityVersion={}", self.compatibility));
        }
        values
    }

    /// Leaves of the recording.
    fn theirs(&self) -> BTreeMap<String, Value> {
        let mut leaves = BTreeMap::new();
        let kinds = |list: &Value| -> Vec<String> {
            list.as_array()
                .unwrap()
                .iter()
                .map(|one| format!("{} {}", text(&one["kind"]), text(&one["name"])))
                .collect()
        };
        let others = self.recording["others"].as_array().unwrap().iter().map(text);
        let maps = self.recording["configmaps"].as_object().unwrap();
        let config_maps = maps.keys().map(|name| format!("ConfigMap {name}"));
        let daemon_set = ["DaemonSet istio-cni-node".to_owned()];
        let objects = others.chain(config_maps).chain(kinds(&self.recording["rbac"])).chain(daemon_set);
        leaves.extend(objects.map(|object| (format!("object/{object}"), Value::Null)));
        let roles = self.recording["rbac"].as_array().unwrap();
        leaves.extend(rules(roles.iter().map(|role| &role["rules"])));
        config(&maps["istio-cni-config"], &mut leaves);
        flatten("pod", &self.recording["daemonset"], &mut leaves);
        leaves
    }
}

/// Leaves of the objects that our chart renders.
fn ours(objects: &[Value]) -> BTreeMap<String, Value> {
    let mut leaves = BTreeMap::new();
    for one in objects {
        leaves
            .insert(format!("object/{} {}", text(&one["kind"]), text(&one["metadata"]["name"])), Value::Null);
    }
    let roles = objects.iter().filter(|one| text(&one["kind"]).ends_with("Role"));
    leaves.extend(rules(roles.map(|role| &role["rules"])));
    config(&object(objects, "ConfigMap", "istio-cni-config")["data"], &mut leaves);
    let daemon_set = object(objects, "DaemonSet", "istio-cni-node");
    let template = &daemon_set["spec"]["template"];
    let spec = &template["spec"];
    let pod = json!({
        "name": daemon_set["metadata"]["name"], "updateStrategy": daemon_set["spec"]["updateStrategy"],
        "podLabels": template["metadata"]["labels"], "podAnnotations": template["metadata"]["annotations"],
        "hostNetwork": spec["hostNetwork"] == true, "containers": spec["containers"], "volumes": spec["volumes"],
        "tolerations": spec["tolerations"], "terminationGracePeriodSeconds": spec["terminationGracePeriodSeconds"],
    });
    flatten("pod", &pod, &mut leaves);
    leaves
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// `GROUP RESOURCE NAME VERB` for each rule, whichever role has it: all roles are bound to one account.
fn rules<'a>(roles: impl Iterator<Item = &'a Value>) -> BTreeMap<String, Value> {
    let list = |value: &Value| -> Vec<String> { value.as_array().into_iter().flatten().map(text).collect() };
    let mut all = BTreeMap::new();
    for rule in roles.flat_map(|rules| rules.as_array().unwrap()) {
        let names = match list(&rule["resourceNames"]) {
            names if names.is_empty() => vec![String::new()],
            names => names,
        };
        for group in list(&rule["apiGroups"]) {
            for resource in list(&rule["resources"]) {
                for name in &names {
                    for verb in list(&rule["verbs"]) {
                        all.insert(format!("rule/{group} {resource} {name} {verb}"), Value::Null);
                    }
                }
            }
        }
    }
    all
}

/// Data of the ConfigMap; JSON and YAML in it are compared parsed.
fn config(data: &Value, leaves: &mut BTreeMap<String, Value>) {
    for (key, value) in data.as_object().unwrap() {
        let path = format!("config/{key}");
        match key.as_str() {
            "cni_network_config" => flatten(&path, &serde_json::from_str(&text(value)).unwrap(), leaves),
            "AMBIENT_ENABLEMENT_SELECTOR" => {
                leaves.insert(path, serde_saphyr::from_str(&text(value)).unwrap());
            }
            _ => drop(leaves.insert(path, value.clone())),
        }
    }
}

/// Each leaf by its path. List items are identified by name, or by value: order does not matter.
fn flatten(path: &str, value: &Value, leaves: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) => {
            for (key, one) in map {
                flatten(&format!("{path}/{key}"), one, leaves);
            }
        }
        Value::Array(list) => {
            for one in list {
                let key = match (&one["name"], one) {
                    (Value::String(name), _) | (_, Value::String(name)) => name.clone(),
                    _ => one.to_string(),
                };
                flatten(&format!("{path}/{key}"), one, leaves);
            }
        }
        _ => drop(leaves.insert(path.to_owned(), value.clone())),
    }
}

fn differences(theirs: &BTreeMap<String, Value>, ours: &BTreeMap<String, Value>) -> Vec<String> {
    let mut found = Vec::new();
    for path in theirs.keys().chain(ours.keys()).collect::<BTreeSet<_>>() {
        match (theirs.get(path), ours.get(path)) {
            (Some(_), None) => found.push(format!("-{path}")),
            (None, Some(_)) => found.push(format!("+{path}")),
            (one, other) if one != other => found.push(format!("~{path}")),
            _ => {}
        }
    }
    found
}

impl Allowed {
    fn covers(&self, difference: &str, version: &str, case: &str) -> bool {
        let here = self.only.iter().any(|only| *only == version || *only == format!("{version}/{case}"));
        here && self
            .what
            .strip_suffix('*')
            .map_or(difference == self.what, |start| difference.starts_with(start))
    }
}

#[test]
fn each_recorded_set_of_values_renders_what_istios_chart_does() {
    let Some(helm) = Helm::find() else { return };
    let results = each(cases(), |case| {
        let values = case.values();
        let set: Vec<&str> = values.iter().map(String::as_str).collect();
        let objects = helm.template(&set).unwrap_or_else(|complaint| panic!("{set:?}: {complaint}"));
        let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
        for difference in differences(&case.theirs(), &ours(&objects)) {
            let covering = ALLOWED.iter().filter(|one| one.covers(&difference, case.version, &case.name));
            let covering: Vec<&str> = covering.map(|one| one.what).collect();
            if covering.is_empty() {
                wrong.push(format!("{}/{}: {difference}", case.version, case.name));
            }
            used.extend(covering);
        }
        (wrong, used)
    });
    assert_eq!(results.len(), 51, "recorded sets of values");
    let wrong: Vec<&String> = results.iter().flat_map(|(wrong, _)| wrong).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let used: BTreeSet<&str> = results.iter().flat_map(|(_, used)| used).copied().collect();
    let unused: Vec<_> =
        ALLOWED.iter().filter(|one| !used.contains(one.what)).map(|one| (one.what, one.why)).collect();
    assert!(unused.is_empty(), "no longer different: {unused:#?}");
}

/// A values file for an old chart gets the newest layout unless it selects the old one, and never fewer objects.
#[test]
fn without_a_compatibility_version_every_recorded_set_of_values_renders() {
    let Some(helm) = Helm::find() else { return };
    each(cases(), |case| {
        let values = case.recording["values"].as_array().unwrap().iter().map(text).collect::<Vec<_>>();
        let objects = helm.template(&values.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        let ours = ours(&objects);
        let missing: Vec<_> = case
            .theirs()
            .into_keys()
            .filter(|path| path.starts_with("object/") && !ours.contains_key(path))
            .collect();
        assert!(missing.is_empty(), "{}/{}: {missing:?}", case.version, case.name);
    });
}
