//! Every value has an effect, or is documented to have none.

use std::fs;

use serde_json::{Map, Value, json};

use super::helm::{Helm, each, object, read_yaml};
use super::schema::{at, candidates, schema};
use crate::install_manifests::documents::repository;

/// Accepted without effect; docs/helm.md has the reasons.
const WITHOUT_EFFECT: [&str; 9] = [
    "hub",
    "tag",
    "variant",
    "global.hub",
    "global.tag",
    "global.variant",
    "repair.hub",
    "repair.tag",
    "ambient.redirectMode",
];

/// Values with which others have an effect.
fn contexts() -> Vec<Value> {
    let options = |repair: Value| {
        json!({
            "resources": null, "repair": repair,
            "ambient": {"enabled": true}, "istioOwnedCNIConfig": true, "resourceQuotas": {"enabled": true},
            "millrace": {
                "taintController": {"enabled": true}, "networkPolicy": {"enabled": true}, "ambientCapture": "node",
                "podMonitor": {"enabled": true}, "alerts": {"enabled": true}, "dashboard": {"enabled": true},
            },
        })
    };
    vec![
        json!({}),
        json!({"profile": "ambient"}),
        json!({"repair": {"repairPods": false}}),
        options(json!({"enabled": true})),
        json!({"compatibilityVersion": "1.20"}),
    ]
}

/// A copy of the values with one more.
fn with(values: &Value, path: &str, value: &Value) -> Value {
    fn set(map: &mut Map<String, Value>, path: &str, value: &Value) {
        match path.split_once('.') {
            None => drop(map.insert(path.to_owned(), value.clone())),
            Some((key, rest)) => {
                let below = map.entry(key).or_insert_with(|| json!({}));
                if !below.is_object() {
                    *below = json!({});
                }
                set(below.as_object_mut().unwrap(), rest, value);
            }
        }
    }
    let mut values = values.clone();
    set(values.as_object_mut().unwrap(), path, value);
    values
}

/// Paths of all leaves below a node of the schema.
pub(super) fn leaves(node: &Value, path: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (key, below) in node["properties"].as_object().unwrap() {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if below["properties"].is_object() && below["examples"].is_null() {
            all.extend(leaves(below, &path));
        } else {
            all.push(path);
        }
    }
    all
}

#[test]
fn every_value_changes_what_is_rendered_or_is_listed_as_without_effect() {
    let Some(helm) = Helm::find() else { return };
    let (schema, contexts) = (schema(), contexts());
    let render = |values: &Value| helm.template_values(values);
    let bases: Vec<_> = contexts
        .iter()
        .map(|context| render(context).unwrap_or_else(|error| panic!("{context}: {error}")))
        .collect();
    let changes = |path: &str| {
        let candidates = candidates(at(&schema, path));
        bases.iter().zip(&contexts).any(|(base, context)| {
            candidates.iter().any(|value| render(&with(context, path, value)).is_ok_and(|now| now != *base))
        })
    };
    // It turns values that would render into errors: see `unknown`.
    let paths = leaves(&schema, "").into_iter().filter(|path| path != "millrace.strict").collect();
    let wrong: Vec<String> =
        each(paths, |path| (changes(&path) == WITHOUT_EFFECT.contains(&path.as_str())).then_some(path))
            .into_iter()
            .flatten()
            .collect();
    assert!(wrong.is_empty(), "without effect, or with one although listed: {wrong:?}");
}

/// Istio merges the values below `cni.` last.
#[test]
fn the_old_prefix_wins_and_means_the_same() {
    let Some(helm) = Helm::find() else { return };
    let old = helm.template(&[
        "cni.ambient.enabled=true",
        "cni.cniBinDir=/x",
        "cniBinDir=/y",
        "cni.profile=ambient",
    ]);
    let new = helm.template(&["ambient.enabled=true", "cniBinDir=/x", "profile=ambient"]);
    assert_eq!(old.unwrap(), new.unwrap());
}

/// The user's values win over overlays, platforms over versions, and these over profiles.
#[test]
fn overlays_are_merged_in_istios_order() {
    let Some(helm) = Helm::find() else { return };
    let bin_dir = |set: &[&str]| {
        let objects = helm.template(set).unwrap();
        let volumes = &object(&objects, "DaemonSet", "istio-cni-node")["spec"]["template"]["spec"]["volumes"];
        let found = volumes.as_array().unwrap().iter().find(|one| one["name"] == "cni-bin-dir").unwrap();
        found["hostPath"]["path"].as_str().unwrap().to_owned()
    };
    let version = "compatibilityVersion=1.20";
    assert_eq!(bin_dir(&[version]), "/opt/cni/bin");
    assert_eq!(bin_dir(&[version, "profile=openshift"]), "/opt/cni/bin", "a version after a profile");
    assert_eq!(bin_dir(&[version, "platform=k3d"]), "/bin", "a platform after a version");
    assert_eq!(bin_dir(&["global.platform=k3d"]), "/bin");
    assert_eq!(bin_dir(&["platform=k3d", "cniBinDir=/mine"]), "/mine");
}

/// As in Istio's chart of this version (manifests/helm-profiles).
#[test]
fn up_to_1_25_the_agent_uses_the_nodes_network_in_ambient_mode() {
    let Some(helm) = Helm::find() else { return };
    for (version, expected) in [("1.24", true), ("1.25", true), ("1.26", false), ("", false)] {
        let version_set = format!("compatibilityVersion={version}");
        let objects = helm.template(&["profile=ambient", &version_set]).unwrap();
        let spec = &object(&objects, "DaemonSet", "istio-cni-node")["spec"]["template"]["spec"];
        assert_eq!(spec["hostNetwork"].as_bool().unwrap_or_default(), expected, "{version}");
    }
}

/// The API server rejects a limit below the request, and uses the limit as the request by default.
#[test]
fn the_default_memory_limit_is_never_below_the_request() {
    let Some(helm) = Helm::find() else { return };
    let no_repair = json!({"repair": {"enabled": false}, "resources": {"requests": {"memory": "300Mi"}}});
    let chosen = json!({"millrace": {"memoryLimit": "2Gi"}, "resources": {"requests": {"memory": "1Gi"}}});
    let common = json!({"resources": null, "global": {"defaultResources": {"requests": {"memory": "1Gi"}}}});
    for (values, limit) in [
        (json!({}), json!("512Mi")),
        (json!({"resources": {"requests": {"memory": "512Mi"}}}), json!("512Mi")),
        (json!({"resources": {"requests": {"memory": "513Mi"}}}), Value::Null),
        (json!({"resources": {"requests": {"memory": "1Gi"}}}), Value::Null),
        (json!({"resources": {"requests": null}}), Value::Null),
        (json!({"resources": {"limits": {"memory": null}}}), json!("512Mi")),
        (json!({"resources": {"limits": {"memory": "1Gi"}}}), json!("1Gi")),
        (no_repair, Value::Null),
        (chosen, json!("2Gi")),
        (common, Value::Null),
    ] {
        let objects = helm.template_values(&values).unwrap();
        let spec = &object(&objects, "DaemonSet", "istio-cni-node")["spec"]["template"]["spec"];
        assert_eq!(spec["containers"][0]["resources"]["limits"]["memory"], limit, "{values}");
    }
}

/// In a map with the chart's keys alone, the defaults stay; in one with the user's keys, none does, as in Istio's chart.
#[test]
fn a_null_in_place_of_a_map_a_list_or_a_directory_renders() {
    let Some(helm) = Helm::find() else { return };
    let render = |path: &str| {
        let values = with(&json!({}), path, &Value::Null);
        helm.template_values(&values).unwrap_or_else(|complaint| panic!("{values}: {complaint}"))
    };
    let usual = helm.template(&[]).unwrap();
    let same = [
        "affinity ambient cni cni.global cni.resources.limits cniBinDir cniConfDir daemonSetLabels env global",
        "global.defaultResources global.imagePullSecrets global.logging global.networkPolicy logging nodeSelector",
        "podAnnotations podLabels repair resourceQuotas resources resources.limits seLinuxOptions seccompProfile",
        "updateStrategy.rollingUpdate",
    ];
    for path in same.iter().flat_map(|line| line.split(' ')) {
        assert_eq!(render(path), usual, "{path}");
    }
    let container = "/spec/template/spec/containers/0/resources";
    for (path, place, expected) in [
        ("cni.updateStrategy", "/spec/updateStrategy", json!({})),
        ("updateStrategy", "/spec/updateStrategy", json!({})),
        ("resources.requests", container, json!({"requests": {}})),
        ("resources.requests.memory", container, json!({"requests": {"cpu": "100m"}})),
    ] {
        let objects = render(path);
        let daemon_set = object(&objects, "DaemonSet", "istio-cni-node");
        assert_eq!(daemon_set.pointer(place), Some(&expected), "{path}");
    }
    let of_platform = |values: &Value| helm.template_values(values).unwrap();
    let directories = json!({"platform": "openshift", "cniBinDir": null, "cni": {"cniConfDir": null}});
    assert_eq!(of_platform(&directories), of_platform(&json!({"platform": "openshift"})));
    let objects = render("tolerations");
    let spec = &object(&objects, "DaemonSet", "istio-cni-node")["spec"]["template"]["spec"];
    assert!(spec.get("tolerations").is_none(), "{spec}");
}

/// Argo CD would call them out of sync for ever.
#[test]
fn admission_policies_leave_no_default_to_the_api_server() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.template(&["millrace.admissionPolicy.enabled=true"]).unwrap();
    let policies: Vec<_> = objects.iter().filter(|one| one["kind"] == "ValidatingAdmissionPolicy").collect();
    assert_eq!(policies.len(), 3);
    for policy in policies {
        let matched = &policy["spec"]["matchConstraints"];
        let selectors = (&matched["namespaceSelector"], &matched["objectSelector"]);
        assert_eq!((&matched["matchPolicy"], selectors), (&json!("Equivalent"), (&json!({}), &json!({}))));
        assert!(matched["resourceRules"][0]["scope"].is_string(), "{matched}");
    }
}

/// A file for Istio 1.20 has `rollingMaxUnavailable`; then no agent may be replaced either where docs/upgrade.md tries one node first.
#[test]
fn on_delete_replaces_no_agent_whatever_the_older_value_is() {
    let Some(helm) = Helm::find() else { return };
    let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%"}});
    for (set, expected) in [
        (&["cni.rollingMaxUnavailable=25%"][..], rolling),
        (&["cni.rollingMaxUnavailable=25%", "updateStrategy.type=OnDelete"], json!({"type": "OnDelete"})),
    ] {
        let objects = helm.template(set).unwrap();
        let spec = &object(&objects, "DaemonSet", "istio-cni-node")["spec"];
        assert_eq!(spec["updateStrategy"], expected, "{set:?}");
    }
}

/// Needs of each mode in docs/permissions.md, and nothing else.
#[test]
fn each_mode_has_its_capabilities_and_rights() {
    let Some(helm) = Helm::find() else { return };
    let all = json!(["NET_ADMIN", "NET_RAW", "SYS_PTRACE", "SYS_ADMIN", "DAC_OVERRIDE"]);
    let sidecar = json!(["DAC_OVERRIDE"]);
    let delete = ["repair.repairPods=false", "repair.deletePods=true"];
    for (set, added, roles) in [
        (&["repair.enabled=false"][..], sidecar.clone(), &[][..]),
        (&["repair.enabled=false", "millrace.dacOverride=false"], Value::Null, &[]),
        (&delete, sidecar, &["istio-cni-repair-role"]),
        (&[], all.clone(), &["istio-cni-repair-role"]),
        (&["profile=ambient", "repair.enabled=false"], all, &["istio-cni-ambient"]),
    ] {
        let objects = helm.template(set).unwrap();
        let spec = &object(&objects, "DaemonSet", "istio-cni-node")["spec"]["template"]["spec"];
        let context = &spec["containers"][0]["securityContext"];
        assert_eq!(context["privileged"], false, "{set:?}");
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{set:?}");
        assert_eq!(context["capabilities"]["add"], added, "{set:?}");
        let cluster_roles = objects.iter().filter(|one| one["kind"] == "ClusterRole");
        let more: Vec<&str> = cluster_roles
            .map(|one| one["metadata"]["name"].as_str().unwrap())
            .filter(|name| *name != "istio-cni")
            .collect();
        assert_eq!(more, roles, "{set:?}");
    }
    let objects = helm.template(&["profile=ambient", "millrace.ambientCapture=node"]).unwrap();
    let spec = &object(&objects, "DaemonSet", "istio-cni-node")["spec"]["template"]["spec"];
    assert_eq!(spec["hostNetwork"], true);
    assert_eq!(spec["containers"][0]["securityContext"]["privileged"], true);
}

/// As in Istio's chart: a user who sets only a level does not want a confined agent.
#[test]
fn selinux_options_keep_the_type_that_works() {
    let Some(helm) = Helm::find() else { return };
    let options = |set: &[&str]| {
        let objects = helm.template(set).unwrap();
        let spec = &object(&objects, "DaemonSet", "istio-cni-node")["spec"]["template"]["spec"];
        spec["containers"][0]["securityContext"]["seLinuxOptions"].clone()
    };
    assert_eq!(options(&[]), Value::Null);
    assert_eq!(options(&["seLinuxOptions.level=s0:c1"]), json!({"level": "s0:c1", "type": "spc_t"}));
    assert_eq!(options(&["seLinuxOptions.type=super_t"]), json!({"type": "super_t"}));
    assert_eq!(options(&["platform=rke2"]), json!({"type": "spc_t"}));
}

/// GKE admits critical pods outside kube-system only where a quota covers their class.
#[test]
fn the_quota_covers_each_priority_class_of_the_pods() {
    let Some(helm) = Helm::find() else { return };
    for (controller, number) in [("millrace.taintController.enabled=true", 2), ("platform=gke", 1)] {
        let objects = helm.template(&["platform=gke", controller]).unwrap();
        let quota = object(&objects, "ResourceQuota", "istio-cni-resource-quota");
        let covered = quota["spec"]["scopeSelector"]["matchExpressions"][0]["values"].as_array().unwrap();
        let class = |one: &Value| one["spec"]["template"]["spec"]["priorityClassName"].clone();
        let used: Vec<Value> = objects.iter().map(class).filter(Value::is_string).collect();
        assert_eq!((used.len(), covered.len()), (number, number), "{used:?}: {covered:?}");
        assert!(used.iter().all(|class| covered.contains(class)), "{used:?}: {covered:?}");
    }
}

/// OpenShift admits no user outside of the namespace's range otherwise.
#[test]
fn the_taint_controller_may_have_a_user_of_its_own_on_openshift() {
    let Some(helm) = Helm::find() else { return };
    for (platform, expected) in [("platform=openshift", json!(["nonroot-v2"])), ("platform=gke", json!(null))]
    {
        let objects = helm.template(&[platform, "millrace.taintController.enabled=true"]).unwrap();
        let rules = &object(&objects, "ClusterRole", "istio-cni-taint")["rules"];
        assert_eq!(rules[1]["resourceNames"], expected, "{platform}");
    }
}

#[test]
fn the_taint_controller_logs_as_the_agents_do() {
    let Some(helm) = Helm::find() else { return };
    let set = ["millrace.taintController.enabled=true", "global.logAsJson=true", "logging.level=debug"];
    let objects = helm.template(&set).unwrap();
    for (kind, name) in [("Deployment", "istio-cni-taint"), ("DaemonSet", "istio-cni-node")] {
        let arguments = &object(&objects, kind, name)["spec"]["template"]["spec"]["containers"][0]["args"];
        let expected = (&json!("--log_output_level=debug"), &json!("--log_as_json"));
        assert_eq!((&arguments[0], &arguments[1]), expected, "{kind}");
    }
}

#[test]
fn a_variable_may_come_from_a_field() {
    let Some(helm) = Helm::find() else { return };
    let source = json!({"fieldRef": {"fieldPath": "status.hostIP"}});
    for values in [json!({}), json!({"compatibilityVersion": "1.20"})] {
        let values = with(&values, "env", &json!({"HOST_PROBE_SNAT_IP": source, "OTHER": "text"}));
        let objects = helm.template_values(&values).unwrap();
        let spec = &object(&objects, "DaemonSet", "istio-cni-node")["spec"]["template"]["spec"];
        let env = spec["containers"][0]["env"].as_array().unwrap();
        let of = |name: &str| env.iter().find(|one| one["name"] == name).unwrap();
        assert_eq!(of("HOST_PROBE_SNAT_IP")["valueFrom"], source);
        assert_eq!(of("OTHER")["value"], "text");
        let config = object(&objects, "ConfigMap", "istio-cni-config");
        assert!(config["data"].get("HOST_PROBE_SNAT_IP").is_none(), "{config}");
    }
    for wrong in [json!({"A": {}}), json!({"A": {"fieldref": {}}}), json!({"A": ["x"]})] {
        assert!(helm.template_values(&json!({"env": wrong})).is_err(), "{wrong}");
    }
}

#[test]
fn a_value_with_which_the_agent_would_not_start_is_refused() {
    let Some(helm) = Helm::find() else { return };
    let expression = |expression: &Value| json!([{"podSelector": {"matchExpressions": [expression]}}]);
    let ambient = json!({"ambient": {"enabled": true}});
    let cases = [
        (
            "millrace.proofInterval",
            json!(["0", "0s", "10", "10s", "1000ms", "1m30s", "1s500ms"]),
            json!(["500ms", "1d", "1.5s", "-1s", "s"]),
        ),
        (
            "millrace.probeSourceIPv4",
            json!(["detect", "10.0.0.1", "240.0.0.1"]),
            json!([
                "10.0.0.300",
                "10.0.0",
                "010.0.0.1",
                "0.0.0.0",
                "127.0.0.1",
                "224.0.0.1",
                "255.255.255.255"
            ]),
        ),
        (
            "millrace.probeSourceIPv6",
            json!(["detect", "fd00::1", "ff::1"]),
            json!([
                "fd00",
                "fd00::1::2",
                "12345::",
                "::",
                "::1",
                "0:0:0:0:0:0:0:1",
                "ff02::1",
                "::ffff:a00:1"
            ]),
        ),
        (
            "millrace.taintController.nodeSelector",
            json!(["a=b,!c", "a in (b, c), example.com/d"]),
            json!(["a=b c", "a in b", "-a"]),
        ),
        // The ports of probes and metrics belong to the agent.
        ("millrace.debugPort", json!([0, 9876]), json!([8000, 15014, 65536])),
        ("cniConfFileName", json!(["10-a.json", "10-a.conflist"]), json!(["a", "a.b", "..", "a/b.conf"])),
        ("istioOwnedCNIConfigFileName", json!(["a.conflist"]), json!(["a", "a.conf", "a/b.conflist", ".."])),
        (
            "ambient.enablementSelectors",
            json!([[{}], [{"podSelector": null, "namespaceSelector": {"matchLabels": {"a": true}}}],
                expression(&json!({"key": "a", "operator": "In", "values": ["b", 1]})),
                expression(&json!({"key": "a", "operator": "Exists", "values": []}))]),
            json!([[{"podselector": {}}], [{"podSelector": {"matchlabels": {}}}], [{"podSelector": {"matchLabels": {"a": null}}}],
                expression(&json!({"key": "a", "operator": "Like"})), expression(&json!({"operator": "Exists"})),
                expression(&json!({"key": "a", "operator": "In"})), expression(&json!({"key": "a", "operator": "NotIn", "values": null})),
                expression(&json!({"key": "a", "operator": "Exists", "values": ["b"]}))]),
        ),
    ];
    let mut all = Vec::new();
    for (path, right, wrong) in &cases {
        let values = |list: &Value| list.as_array().unwrap().clone();
        all.extend(values(right).into_iter().map(|value| (*path, value, true)));
        all.extend(values(wrong).into_iter().map(|value| (*path, value, false)));
    }
    each(all, |(path, value, is_right)| {
        let rendered = helm.template_values(&with(&ambient, path, &value));
        assert_eq!(rendered.is_ok(), is_right, "{path}={value}: {rendered:?}");
    });
}

#[test]
fn metrics_name_their_node_and_alerts_lead_to_the_documentation() {
    const PAGE: &str = "https://docs.example/alerts.html";
    let Some(helm) = Helm::find() else { return };
    let url = format!("millrace.alerts.runbookUrl={PAGE}");
    let set = ["millrace.podMonitor.enabled=true", "millrace.alerts.enabled=true", &url];
    let [with, without] = [&set[..], &set[..2]].map(|set| helm.template(set).unwrap());
    let endpoint = &object(&with, "PodMonitor", "istio-cni")["spec"]["podMetricsEndpoints"][0];
    // With the action, which the API server would add, so that Argo CD finds no difference.
    let labels = json!(["__meta_kubernetes_pod_node_name"]);
    let node = json!([{"action": "replace", "sourceLabels": labels, "targetLabel": "node"}]);
    assert_eq!(endpoint["relabelings"], node);
    let groups = |objects: &[Value]| object(objects, "PrometheusRule", "istio-cni")["spec"]["groups"].clone();
    let mut groups_with = groups(&with);
    let rows = fs::read_to_string(repository("docs/alerts.md")).unwrap();
    for group in groups_with.as_array_mut().unwrap() {
        for rule in group["rules"].as_array_mut().unwrap() {
            let Some(alert) = rule["alert"].as_str().map(str::to_owned) else { continue };
            let id = alert.to_lowercase();
            let url = rule["annotations"].as_object_mut().unwrap().remove("runbook_url").unwrap();
            assert_eq!(url, format!("{PAGE}#{id}"));
            let row = format!("| <a id=\"{id}\"></a>`{alert}` | ");
            assert!(rows.lines().any(|line| line.starts_with(&row)), "docs/alerts.md has no row {alert}");
        }
    }
    assert_eq!(groups_with, groups(&without), "nothing else differs");
}

/// Unobserved pods do not count as captured, so such an alert would fire forever.
#[test]
fn no_alert_is_about_pods_that_are_not_observed() {
    let Some(helm) = Helm::find() else { return };
    for (set, is_there) in [
        (&[][..], true),
        (&["repair.repairPods=false", "repair.deletePods=true"], false),
        (&["repair.enabled=false"], false),
        (&["repair.enabled=false", "millrace.alerts.runbookUrl=https://docs.example/alerts.html"], false),
        (&["repair.enabled=false", "millrace.inspectSidecars=true"], true),
        (&["repair.enabled=false", "profile=ambient"], true),
    ] {
        let objects = helm.template(&[&["millrace.alerts.enabled=true"], set].concat()).unwrap();
        let groups = object(&objects, "PrometheusRule", "istio-cni")["spec"]["groups"].as_array().unwrap();
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
        let alerts: Vec<&str> = rules.filter_map(|rule| rule["alert"].as_str()).collect();
        for alert in ["IstioCNIPodsNotCaptured", "IstioCNIPodsUnrecorded"] {
            assert_eq!(alerts.contains(&alert), is_there, "{set:?}");
        }
        assert!(alerts.len() > 10, "{set:?}: the others stay: {alerts:?}");
    }
}

#[test]
fn the_defaults_are_below_one_key() {
    let values = read_yaml("values.yaml");
    assert_eq!(values.as_object().unwrap().keys().collect::<Vec<_>>(), ["defaults"]);
}

#[test]
fn the_documentation_has_every_value_and_every_platform() {
    let read = |path: &str| fs::read_to_string(repository(path)).unwrap();
    let (helm, platforms) = (read("docs/helm.md"), read("docs/platforms.md"));
    let schema = schema();
    let missing: Vec<String> =
        leaves(&schema, "").into_iter().filter(|path| !helm.contains(&format!("`{path}`"))).collect();
    assert!(missing.is_empty(), "docs/helm.md lacks {missing:?}");
    for platform in candidates(at(&schema, "platform")) {
        let platform = platform.as_str().unwrap();
        assert!(
            platform.is_empty() || platforms.contains(&format!("(#{platform})")),
            "docs/platforms.md lacks {platform}"
        );
    }
    for path in WITHOUT_EFFECT {
        let (_, list) = helm.split_once("### Accepted without effect").unwrap();
        let list = list.split("\n#").next().unwrap();
        assert!(list.contains(&format!("`{path}`")), "{path} is not in that list");
    }
}
