//! Settings of the chart of Istio 1.30, and their meaning beside those of 1.20.

use std::net::{Ipv4Addr, SocketAddr};

use firewall::NativeTables;
use serde_json::{Value, json};

use super::*;

/// The chart's environment with ambient mode, limited to variables that we read.
const CHART: &[(&str, &str)] = &[
    ("CNI_NETWORK_CONFIG", ""), // not set there: removes the usual one of these tests
    ("AMBIENT_ENABLED", "true"),
    ("AMBIENT_ENABLEMENT_SELECTOR", SELECTOR),
    ("AMBIENT_DNS_CAPTURE", "true"),
    ("AMBIENT_IPV6", "true"),
    ("AMBIENT_RECONCILE_POD_RULES_ON_STARTUP", "true"),
    ("ENABLE_AMBIENT_DETECTION_RETRY", "false"),
    ("ISTIO_OWNED_CNI_CONFIG", "false"),
    ("CHAINED_CNI_PLUGIN", "true"),
    ("EXCLUDE_NAMESPACES", "kube-system, other,"),
    ("REPAIR_ENABLED", "false"),
    ("REPAIR_REPAIR_PODS", "true"),
    ("NATIVE_NFTABLES", "false"),
    ("ALLOW_SWITCH_TO_HOST_NS", "true"),
    ("POD_NAMESPACE", "istio-system"),
];

/// The chart's environment with the variables of every container and no others.
pub(super) const CHART_ALONE: &[(&str, &str)] = &[
    ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
    ("KUBERNETES_SERVICE_PORT", "443"),
    ("AMBIENT_ENABLED", "true"),
    ("AMBIENT_ENABLEMENT_SELECTOR", SELECTOR),
    ("AMBIENT_DNS_CAPTURE", "true"),
    ("ISTIO_OWNED_CNI_CONFIG", "true"),
    ("EXCLUDE_NAMESPACES", "kube-system"),
    ("ALLOW_SWITCH_TO_HOST_NS", "true"),
    ("POD_NAMESPACE", "istio-system"),
];

const SELECTOR: &str = "- podSelector:
    matchLabels:
      istio.io/dataplane-mode: ambient
- podSelector:
    matchExpressions:
    - key: istio.io/dataplane-mode
      operator: NotIn
      values:
      - none
  namespaceSelector:
    matchLabels:
      istio.io/dataplane-mode: ambient
";

fn entry(settings: &DaemonSettings) -> Value {
    serde_json::from_str(&settings.installer.template.text).unwrap()
}

#[test]
fn on_the_nodes_network_the_debug_port_is_opened_only_when_it_is_named() {
    let port = |arguments: &[&str], env: &[(&str, &str)]| chart(arguments, env).debug;
    let on_node = [("ALLOW_SWITCH_TO_HOST_NS", "false")];
    let local = |port: u16| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    assert_eq!(port(&[], &[]), local(9876), "a network namespace of its own");
    assert_eq!(port(&[], &on_node), None);
    assert_eq!(port(&["--ctrlz_address=*"], &on_node), None, "an address names no port");
    assert_eq!(port(&["--ctrlz_port=9876"], &on_node), local(9876));
    assert_eq!(port(&["--ctrlz_port=0"], &on_node), None);
    assert_eq!(
        port(&[], &[on_node[0], ("AMBIENT_ENABLED", "false")]),
        local(9876),
        "it has no use for that network"
    );
}

fn chart(arguments: &[&str], env: &[(&str, &str)]) -> DaemonSettings {
    read(arguments, &[CHART, env].concat()).unwrap()
}

#[test]
fn without_a_template_the_entry_has_istios_newer_keys() {
    let settings = chart(&["--log_output_level=default:info,cni-plugin:debug"], &[]);
    let expected = json!({
        "cniVersion": "0.3.1", "name": "istio-cni", "type": "istio-cni", "ipam": {}, "dns": {},
        "capabilities": {"io.kubernetes.cri.pod-annotations": true},
        "plugin_log_level": "debug",
        "cni_agent_run_dir": "/var/run/istio-cni",
        "ambient_enabled": true,
        "enablement_selectors": [
            {"podSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}},
            {"podSelector": {"matchExpressions": [
                {"key": "istio.io/dataplane-mode", "operator": "NotIn", "values": ["none"]}]},
             "namespaceSelector": {"matchLabels": {"istio.io/dataplane-mode": "ambient"}}}],
        "exclude_namespaces": ["kube-system", "other"],
        "pod_namespace": "istio-system",
        "native_nftables": false,
        "enable_ambient_detection_retry": false,
    });
    assert_eq!(entry(&settings), expected);
    let installer = &settings.installer;
    assert_eq!(installer.kubeconfig_path, Path::new("/var/run/istio-cni/istio-cni-kubeconfig"));
    let former = Path::new("/host/etc/cni/net.d/ZZZ-istio-cni-kubeconfig");
    assert_eq!(installer.former_kubeconfigs, [former]);
    assert_eq!(installer.own_mode, Some(0o600));
    assert_eq!(settings.agent_socket, Path::new("/var/run/istio-cni/agent.sock"));
    let events = settings.ambient.unwrap().events.unwrap();
    assert_eq!(events.socket, Path::new("/var/run/istio-cni/pluginevent.sock"));
    assert_eq!((events.root, events.proc), ("/host".into(), "/host/proc".into()));
    assert_eq!(settings.warnings, Vec::<String>::new());
}

#[test]
fn with_a_template_everything_is_where_istio_1_20_has_it() {
    let settings = chart(&["--cni-network-config={\"type\": \"istio-cni\"}"], &[]);
    let installer = &settings.installer;
    assert_eq!(installer.kubeconfig_path, Path::new("/host/etc/cni/net.d/ZZZ-istio-cni-kubeconfig"));
    assert_eq!(installer.former_kubeconfigs, [Path::new("/var/run/istio-cni/istio-cni-kubeconfig")]);
    assert_eq!(installer.own_mode, None);
    assert_eq!(entry(&settings), json!({"type": "istio-cni"}));
    let defaults: Vec<&str> = installer.defaults.iter().map(|(key, _)| *key).collect();
    assert_eq!(
        defaults,
        ["ambient_enabled", "enablement_selectors"],
        "who belongs to it is for both to know"
    );
}

#[test]
fn a_template_gets_the_members_that_flags_ask_for() {
    let env = [("NATIVE_NFTABLES", "true"), ("AGENT_NAMESPACES", "canary")];
    for ambient in [&["--ambient-enabled"][..], &[]] {
        let defaults: BTreeMap<_, _> = read(ambient, &env).unwrap().installer.defaults.into_iter().collect();
        assert_eq!(defaults["native_nftables"], Json::Bool(true), "{ambient:?}");
        assert_eq!(defaults["agent_namespaces"], Json::List(vec![Json::String("canary".to_owned())]));
    }
    assert!(read(&[], &[]).unwrap().installer.defaults.is_empty());
}

/// The agent would capture what the plugin has skipped.
#[test]
fn the_agent_excludes_the_namespaces_that_the_template_excludes() {
    let template = r#"{"type": "istio-cni", "kubernetes": {"exclude_namespaces": ["kube-system", "a"]}}"#;
    let env = [("CNI_NETWORK_CONFIG", template), ("EXCLUDE_NAMESPACES", "a,b"), ("AMBIENT_ENABLED", "true")];
    let policy = read(&[], &env).unwrap().ambient.unwrap().agent.policy;
    assert_eq!(policy.excluded_namespaces, ["a", "b", "kube-system"]);
}

#[test]
fn the_shared_directory_can_be_elsewhere_and_each_socket_too() {
    let elsewhere = chart(&["--cni-agent-run-dir=/run/here"], &[]);
    assert_eq!(entry(&elsewhere)["cni_agent_run_dir"], "/run/here");
    assert!(
        entry(&elsewhere).get("agent_socket").is_none() && entry(&elsewhere).get("log_uds_address").is_none()
    );
    assert_eq!(elsewhere.log_socket.as_deref(), Some(Path::new("/run/here/log.sock")));
    assert_eq!(elsewhere.agent_socket, Path::new("/run/here/agent.sock"));
    assert_eq!(elsewhere.ambient.unwrap().events.unwrap().socket, Path::new("/run/here/pluginevent.sock"));
    assert_eq!(elsewhere.installer.kubeconfig_path, Path::new("/run/here/istio-cni-kubeconfig"));
    let single = [
        ("AGENT_SOCKET", "/a/agent.sock"),
        ("LOG_UDS_ADDRESS", "/b/log.sock"),
        ("CNI_EVENT_ADDRESS", "/c/event.sock"),
    ];
    let single = chart(&["--cni-agent-run-dir=/run/here"], &single);
    assert_eq!(entry(&single)["agent_socket"], "/a/agent.sock");
    assert_eq!(entry(&single)["log_uds_address"], "/b/log.sock");
    assert_eq!(single.log_socket.as_deref(), Some(Path::new("/b/log.sock")));
    assert_eq!(single.ambient.unwrap().events.unwrap().socket, Path::new("/c/event.sock"));
    // A template of 1.20 does not know the directory.
    for ambient in [&["--ambient-enabled"][..], &[]] {
        let template = read(&[ambient, &["--cni-agent-run-dir=/run/here"]].concat(), &[]).unwrap();
        let defaults: BTreeMap<_, _> = template.installer.defaults.into_iter().collect();
        assert_eq!(defaults["agent_socket"].as_str(), Some("/run/here/agent.sock"), "{ambient:?}");
        assert_eq!(defaults.contains_key("ambient_enabled"), !ambient.is_empty());
        let variables: BTreeMap<_, _> = template.installer.template.variables.into_iter().collect();
        assert_eq!(variables["__LOG_UDS_ADDRESS__"], "/run/here/log.sock");
        assert_eq!(variables["__CNI_EVENT_ADDRESS__"], "/run/here/pluginevent.sock");
    }
    for wrong in ["", "here"] {
        let mistakes = read(&[&format!("--cni-agent-run-dir={wrong}")], &[]).unwrap_err();
        assert_eq!(mistakes, [format!("--cni-agent-run-dir: {wrong:?} is not an absolute path")]);
    }
}

#[test]
fn files_of_our_own_have_the_mode_that_was_chosen() {
    assert_eq!(chart(&[], &[("CNI_CONF_GROUP_READ", "true")]).installer.own_mode, Some(0o640));
    assert_eq!(read(&["--cni-conf-group-read"], &[]).unwrap().installer.own_mode, Some(0o640));
    assert_eq!(read(&[], &[]).unwrap().installer.own_mode, None, "as Istio 1.20");
}

#[test]
fn an_unsafe_upgrade_cleans_up_unless_somebody_says_what_to_do() {
    let unsafe_one = ("AMBIENT_DISABLE_SAFE_UPGRADE", "true");
    assert_eq!(chart(&[], &[unsafe_one]).cleanup, CleanupOnExit::Always);
    assert_eq!(chart(&[], &[unsafe_one, ("CLEANUP_ON_EXIT", "never")]).cleanup, CleanupOnExit::Never);
    assert_eq!(chart(&[], &[]).cleanup, CleanupOnExit::Auto);
}

#[test]
fn what_is_accepted_without_effect_is_told() {
    let env = [("NATIVE_NFTABLES", "true"), ("AMBIENT_RECONCILE_POD_RULES_ON_STARTUP", "false")];
    let settings = chart(&[], &env);
    assert_eq!(settings.warnings.len(), 1, "{:?}", settings.warnings);
    assert_eq!(entry(&settings)["native_nftables"], true);
    let ambient = settings.ambient.expect("the chart switches it on");
    assert_eq!((settings.native_nftables, ambient.agent.tools.native), (true, NativeTables::Preferred));
    assert_eq!(
        entry(&chart(&["--enable-ambient-detection-retry"], &[]))["enable_ambient_detection_retry"],
        true
    );
    for (name, flag) in [
        ("NATIVE_NFTABLES", "native-nftables"),
        ("ENABLE_AMBIENT_DETECTION_RETRY", "enable-ambient-detection-retry"),
        ("AMBIENT_DISABLE_SAFE_UPGRADE", "ambient-disable-safe-upgrade"),
        ("CNI_CONF_GROUP_READ", "cni-conf-group-read"),
    ] {
        let mistakes = read(&[], &[CHART, &[(name, "perhaps")]].concat()).unwrap_err();
        assert_eq!(mistakes, [format!("{name} (--{flag}): \"perhaps\" is neither true nor false")]);
    }
}

#[test]
fn who_belongs_to_ambient_mode_is_told_the_plugin_as_the_agent_has_it() {
    let without = chart(&[], &[("AMBIENT_ENABLEMENT_SELECTOR", "")]);
    assert!(entry(&without).get("enablement_selectors").is_none(), "labels, and the annotation");
    let in_pod = chart(&["--ambient-capture=in-pod"], &[("AMBIENT_ENABLEMENT_SELECTOR", "")]);
    assert_eq!(entry(&in_pod)["enablement_selectors"], entry(&chart(&[], &[]))["enablement_selectors"]);
    assert!(chart(&["--ambient-capture=node"], &[]).ambient.unwrap().events.is_none());
    // Helm renders a null value as that word, and a missing one as nothing.
    for nothing in ["null", "~", "# none", " "] {
        let settings = chart(&[], &[("AMBIENT_ENABLEMENT_SELECTOR", nothing)]);
        assert!(entry(&settings).get("enablement_selectors").is_none(), "{nothing:?}");
        assert_eq!(settings.ambient.unwrap().agent.policy.enablement, None, "{nothing:?}");
    }
    let nobody = chart(&[], &[("AMBIENT_ENABLEMENT_SELECTOR", "[]")]);
    assert_eq!(entry(&nobody)["enablement_selectors"], json!([]));
    assert_eq!(nobody.ambient.unwrap().agent.policy.enablement, Some(Vec::new()), "an empty list is a list");
    // Helm's rendering of `--set`, which Istio reads as text.
    let plain = "- {podSelector: {matchLabels: {mesh: true, tier: 3}, matchExpressions: [{key: v, operator: In, values: [1, 1.5]}]}}";
    let plain = chart(&[], &[("AMBIENT_ENABLEMENT_SELECTOR", plain)]);
    let expressions = json!([{"key": "v", "operator": "In", "values": ["1", "1.5"]}]);
    let selector = json!({"matchLabels": {"mesh": "true", "tier": "3"}, "matchExpressions": expressions});
    assert_eq!(entry(&plain)["enablement_selectors"], json!([{"podSelector": selector}]));
    let selectors = plain.ambient.unwrap().agent.policy.enablement.unwrap();
    let labels =
        [("mesh", "true"), ("tier", "3"), ("v", "1.5")].map(|(key, value)| (key.into(), value.into()));
    assert!(selectors[0].matches(&labels.into(), &[].into()));
    // Istio drops an unknown field, and then selects every pod.
    let mistakes =
        read(&[], &[CHART, &[("AMBIENT_ENABLEMENT_SELECTOR", "- podSelectors: {}")]].concat()).unwrap_err();
    assert!(mistakes.len() == 1 && mistakes[0].contains("`podSelectors`"), "{mistakes:?}");
}

#[test]
fn the_plugin_logs_from_the_level_of_its_scope_on() {
    for (argument, level) in [
        ("--log_output_level=warn", "warn"),
        ("--log_output_level=cni:error", "error"),
        ("--log_output_level=all:none", "error"),
        ("--log-level=debug", "debug"),
        ("--log_as_json", "info"),
    ] {
        assert_eq!(entry(&chart(&[argument], &[]))["plugin_log_level"], level, "{argument}");
    }
}
