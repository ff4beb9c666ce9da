//! Each setting reaches the agent, in either layout: in the ConfigMap, or in the container's environment.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::helm::{Helm, each, object};

const LAYOUTS: [&str; 2] = ["millrace.pluginConfig=generated", "millrace.pluginConfig=template"];
/// A value, and the resulting variable of the agent.
const SETTINGS: &[(&str, &str, &str)] = &[
    ("chained=false", "CHAINED_CNI_PLUGIN", "false"),
    ("cniConfFileName=10-x.conflist", "CNI_CONF_NAME", "10-x.conflist"),
    ("istioOwnedCNIConfig=true", "ISTIO_OWNED_CNI_CONFIG", "true"),
    ("excludeNamespaces={a,b}", "EXCLUDE_NAMESPACES", "a,b"),
    ("repair.enabled=false", "REPAIR_ENABLED", "false"),
    ("repair.repairPods=false", "REPAIR_REPAIR_PODS", "false"),
    ("repair.repairPods=true", "REPAIR_REPAIR_PODS", "true"),
    ("repair.deletePods=false", "REPAIR_DELETE_PODS", "false"),
    ("repair.deletePods=true", "REPAIR_DELETE_PODS", "true"),
    ("repair.labelPods=true", "REPAIR_LABEL_PODS", "true"),
    ("repair.initContainerName=x", "REPAIR_INIT_CONTAINER_NAME", "x"),
    ("repair.brokenPodLabelKey=x", "REPAIR_BROKEN_POD_LABEL_KEY", "x"),
    ("repair.brokenPodLabelValue=x", "REPAIR_BROKEN_POD_LABEL_VALUE", "x"),
    ("global.nativeNftables=true", "NATIVE_NFTABLES", "true"),
    ("env.CNI_CONF_GROUP_READ=true", "CNI_CONF_GROUP_READ", "true"),
    ("ambient.enabled=true", "AMBIENT_ENABLED", "true"),
    ("ambient.dnsCapture=true", "AMBIENT_DNS_CAPTURE", "true"),
    ("ambient.dnsCapture=false", "AMBIENT_DNS_CAPTURE", "false"),
    ("ambient.ipv6=false", "AMBIENT_IPV6", "false"),
    ("millrace.ambientCapture=in-pod", "AMBIENT_CAPTURE", "in-pod"),
    ("millrace.ztunnelNamespace=x", "SYSTEM_NAMESPACE", "x"),
    ("millrace.probeSourceIPv4=169.254.7.128", "HOST_PROBE_SNAT_IP", "169.254.7.128"),
    ("millrace.probeSourceIPv4=detect", "HOST_PROBE_SNAT_IP", "detect"),
    ("millrace.probeSourceIPv6=fd00::1", "HOST_PROBE_SNAT_IPV6", "fd00::1"),
    ("millrace.existingConnections=reset", "EXISTING_CONNECTIONS", "reset"),
    ("millrace.agentNamespaces={istio-cni-canary,mesh}", "AGENT_NAMESPACES", "istio-cni-canary,mesh"),
    ("millrace.allowedExceptions={dns,inbound-ports}", "AMBIENT_ALLOWED_EXCEPTIONS", "dns,inbound-ports"),
    ("millrace.cleanupOnExit=never", "CLEANUP_ON_EXIT", "never"),
    ("millrace.writeKubeconfig=false", "WRITE_KUBECONFIG", "false"),
    ("millrace.repairDryRun=true", "REPAIR_DRY_RUN", "true"),
    ("millrace.nodeCondition=true", "NODE_CONDITION", "true"),
    ("millrace.metricsByNamespace=true", "METRICS_BY_NAMESPACE", "true"),
    ("millrace.proofInterval=10s", "PROOF_INTERVAL", "10s"),
];

fn agent_container(objects: &[Value]) -> &Value {
    &object(objects, "DaemonSet", "istio-cni-node")["spec"]["template"]["spec"]["containers"][0]
}

/// The container's environment without references to the pod.
fn environment(objects: &[Value]) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let container = agent_container(objects);
    let mut environment = BTreeMap::new();
    if container["envFrom"][0]["configMapRef"]["name"] == "istio-cni-config" {
        let data = object(objects, "ConfigMap", "istio-cni-config")["data"].as_object().unwrap();
        environment.extend(data.iter().map(|(key, value)| (key.clone(), text(value).unwrap())));
    }
    for one in container["env"].as_array().unwrap() {
        environment.extend(text(&one["value"]).map(|value| (text(&one["name"]).unwrap(), value)));
    }
    environment
}

#[test]
fn each_setting_reaches_the_agent_in_either_layout() {
    let Some(helm) = Helm::find() else { return };
    let cases = LAYOUTS.iter().flat_map(|layout| SETTINGS.iter().map(move |setting| (*layout, *setting)));
    each(cases.collect(), |(layout, (set, name, expected))| {
        // Settings of ambient mode need it enabled.
        let objects = helm.template(&[layout, "ambient.enabled=true", set]).unwrap();
        let found = environment(&objects).remove(name);
        assert_eq!(found.as_deref(), Some(expected), "{layout} {set}: {name}");
    });
}

/// Server-side apply refuses a list that has a name twice, and Flux a map that has a key twice.
#[test]
fn a_variable_or_annotation_of_the_user_takes_the_place_of_the_charts_own() {
    let Some(helm) = Helm::find() else { return };
    let own =
        ["AMBIENT_ENABLED=false", "AMBIENT_IPV6=false", "NODE_NAME=x", "POD_NAME=x", "SYSTEM_NAMESPACE=x"];
    let set = own.map(|variable| format!("env.{variable}"));
    for layout in LAYOUTS {
        let annotation = r"podAnnotations.prometheus\.io/scrape=no";
        let others = [layout, annotation, "ambient.enabled=true", "millrace.ztunnelNamespace=y"];
        let set: Vec<&str> = set.iter().map(String::as_str).chain(others).collect();
        let objects = helm.template(&set).unwrap();
        let list = agent_container(&objects)["env"].as_array().unwrap();
        let names: BTreeSet<&str> = list.iter().map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names.len(), list.len(), "{layout}: {list:#?}");
        let environment = environment(&objects);
        for variable in own {
            let (name, value) = variable.split_once('=').unwrap();
            assert_eq!(environment[name], value, "{layout}: {name}");
        }
        let template = &object(&objects, "DaemonSet", "istio-cni-node")["spec"]["template"];
        assert_eq!(template["metadata"]["annotations"]["prometheus.io/scrape"], "no", "{layout}");
    }
}

/// An agent that ends reads it there, where a ConfigMap has the variable.
#[test]
fn the_daemon_set_itself_shows_whether_its_agents_capture_pods() {
    let Some(helm) = Helm::find() else { return };
    for ambient in ["true", "false"] {
        let objects = helm.template(&[LAYOUTS[0], &format!("ambient.enabled={ambient}")]).unwrap();
        let annotations = &object(&objects, "DaemonSet", "istio-cni-node")["metadata"]["annotations"];
        assert_eq!(annotations["cni.istio.io/ambient-enabled"], ambient);
        assert_eq!(environment(&objects)["AMBIENT_ENABLED"], ambient);
    }
}

/// An agent without the mode removes the copy that an earlier one wrote.
#[test]
fn the_name_of_the_copy_reaches_the_agent_also_once_the_mode_is_off() {
    let Some(helm) = Helm::find() else { return };
    for (layout, name) in
        [("generated", "ISTIO_OWNED_CNI_CONF_FILENAME"), ("template", "ISTIO_OWNED_CNI_CONFIG_FILENAME")]
    {
        let layout = format!("millrace.pluginConfig={layout}");
        for mode in ["istioOwnedCNIConfig=true", "istioOwnedCNIConfig=false"] {
            let objects =
                helm.template(&[&layout, mode, "istioOwnedCNIConfigFileName=00-x.conflist"]).unwrap();
            let found = environment(&objects).remove(name);
            assert_eq!(found.as_deref(), Some("00-x.conflist"), "{layout} {mode}");
        }
        assert_eq!(environment(&helm.template(&[&layout]).unwrap()).get(name), None, "{layout}");
    }
}

/// The agent would exit with a message that names each variable with an invalid value.
#[test]
fn the_agent_takes_every_value_of_an_enumeration() {
    let Some(helm) = Helm::find() else { return };
    let schema = super::schema::schema();
    let enumerations = ["ambientCapture", "noZtunnelPolicy", "existingConnections", "cleanupOnExit"];
    let values = enumerations.iter().flat_map(|key| {
        let all = super::schema::candidates(super::schema::at(&schema, &format!("millrace.{key}")));
        all.into_iter().map(move |value| format!("millrace.{key}={}", value.as_str().unwrap()))
    });
    each(values.collect(), |set: String| {
        let objects = helm.template(&["profile=ambient", "millrace.ambientCapture=node", &set]).unwrap();
        let mut command = std::process::Command::new(kit::binary("install-cni"));
        command.env_clear().envs(environment(&objects));
        // One mistake, which must be the only one, so that it exits immediately.
        command.envs([
            ("REPAIR_INIT_CONTAINER_EXIT_CODE", "none"),
            ("NODE_NAME", "node-1"),
            ("POD_NAMESPACE", "x"),
        ]);
        command.envs([("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")]);
        let output = command.output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        let setting = "REPAIR_INIT_CONTAINER_EXIT_CODE (--repair-init-container-exit-code)";
        let expected = format!("install-cni: {setting}: \"none\" is not an exit status\n");
        assert_eq!(complaint, expected, "{set}");
    });
}
