use std::{collections::BTreeMap, ffi::OsString, path::Path};

use flags::{FlagValues, ParseOutcome, ValueSource};
use installer::{Chaining, Json};

use super::*;
use crate::{
    PodSource,
    options::{ALL, REMOVED, STYLE},
};
use ::repair::{RepairCriteria, RepairMode};
use enrolment::EnrolmentPolicy;
use model::{ExistingConnections, Family};
use rules::inpod::ProbeAddresses;

/// A container with the variables of every container.
#[derive(Clone)]
struct Around(BTreeMap<String, String>);

impl HostEnvironment for Around {
    fn variable(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    fn host_name(&self) -> String {
        "host".to_owned()
    }

    fn account_namespace(&self) -> Option<String> {
        Some("mesh".to_owned())
    }

    fn account_pod(&self) -> Option<String> {
        Some("istio-cni-node-7xk2p".to_owned())
    }
}

const USUAL: &[(&str, &str)] = &[
    ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
    ("KUBERNETES_SERVICE_PORT", "443"),
    ("CNI_NETWORK_CONFIG", r#"{"type": "istio-cni"}"#),
];

fn around(env: &[(&str, &str)]) -> Around {
    Around(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
}

fn values(arguments: &[&str], env: &[(&str, &str)]) -> FlagValues {
    let around = around(env);
    let read = flags::parse(ALL.as_slice(), STYLE, arguments.iter().map(OsString::from), |name| {
        around.variable(name)
    });
    match read.unwrap() {
        ParseOutcome::Run(values) => values,
        ParseOutcome::Help => panic!("nobody asked for help"),
    }
}

/// Settings with these flags, and these variables in addition to the usual ones.
fn read(arguments: &[&str], env: &[(&str, &str)]) -> Result<DaemonSettings, Vec<String>> {
    let env = [USUAL, env].concat();
    let read = DaemonSettings::read(&values(arguments, &env), &around(&env));
    read.map(|(settings, _)| settings).map_err(|mistakes| mistakes.0)
}

/// Every flag, its variables, and its default, as documented by Istio; ours are at the end.
const DOCUMENTED: &[(&str, &[&str], &str)] = &[
    ("cni-net-dir", &["CNI_NET_DIR"], "/etc/cni/net.d"),
    ("mounted-cni-net-dir", &["MOUNTED_CNI_NET_DIR"], "/host/etc/cni/net.d"),
    ("cni-conf-name", &["CNI_CONF_NAME"], ""),
    ("chained-cni-plugin", &["CHAINED_CNI_PLUGIN"], "true"),
    ("cni-network-config", &["CNI_NETWORK_CONFIG"], ""),
    ("cni-network-config-file", &["CNI_NETWORK_CONFIG_FILE"], ""),
    ("log-level", &["LOG_LEVEL"], "warn"),
    ("kubecfg-file-name", &["KUBECFG_FILE_NAME"], "ZZZ-istio-cni-kubeconfig"),
    ("kubeconfig-mode", &["KUBECONFIG_MODE"], "0600"),
    ("kube-ca-file", &["KUBE_CA_FILE"], ""),
    ("skip-tls-verify", &["SKIP_TLS_VERIFY"], "false"),
    ("monitoring-port", &["MONITORING_PORT"], "15014"),
    ("log-uds-address", &["LOG_UDS_ADDRESS"], "/var/run/istio-cni/log.sock"),
    ("ambient-enabled", &["AMBIENT_ENABLED"], "false"),
    ("ebpf-enabled", &["EBPF_ENABLED"], "false"),
    ("repair-enabled", &["REPAIR_ENABLED"], "true"),
    ("repair-delete-pods", &["REPAIR_DELETE_PODS"], "false"),
    ("repair-label-pods", &["REPAIR_LABEL_PODS"], "false"),
    ("repair-repair-pods", &["REPAIR_REPAIR_PODS"], "false"),
    ("repair-broken-pod-label-key", &["REPAIR_BROKEN_POD_LABEL_KEY"], "cni.istio.io/uninitialized"),
    ("repair-broken-pod-label-value", &["REPAIR_BROKEN_POD_LABEL_VALUE"], "true"),
    ("repair-node-name", &["REPAIR_NODE_NAME"], ""),
    ("repair-sidecar-annotation", &["REPAIR_SIDECAR_ANNOTATION"], "sidecar.istio.io/status"),
    ("repair-init-container-name", &["REPAIR_INIT_CONTAINER_NAME"], "istio-validation"),
    ("repair-init-container-termination-message", &["REPAIR_INIT_CONTAINER_TERMINATION_MESSAGE"], ""),
    ("repair-init-container-exit-code", &["REPAIR_INIT_CONTAINER_EXIT_CODE"], "126"),
    ("repair-label-selectors", &["REPAIR_LABEL_SELECTORS"], ""),
    ("repair-field-selectors", &["REPAIR_FIELD_SELECTORS"], ""),
    ("repair-dry-run", &["REPAIR_DRY_RUN"], "false"),
    ("ctrlz_port", &[], "9876"),
    ("ctrlz_address", &[], "localhost"),
    ("log_target", &[], "stdout"),
    ("log_rotate", &[], ""),
    ("log_rotate_max_age", &[], "30"),
    ("log_rotate_max_size", &[], "104857600"),
    ("log_rotate_max_backups", &[], "1000"),
    ("log_as_json", &[], "false"),
    ("log_output_level", &[], "default:info"),
    ("log_stacktrace_level", &[], "default:none"),
    ("log_caller", &[], ""),
    ("vklog", &[], "0"),
    // Istio's newer releases.
    ("istio-owned-cni-config", &["ISTIO_OWNED_CNI_CONFIG"], "false"),
    (
        "istio-owned-cni-config-filename",
        &["ISTIO_OWNED_CNI_CONFIG_FILENAME", "ISTIO_OWNED_CNI_CONF_FILENAME"],
        "02-istio-cni.conflist",
    ),
    // Millrace.
    ("cni-config-map", &["CNI_CONFIG_MAP"], ""),
    ("cni-config-map-key", &["CNI_CONFIG_MAP_KEY"], "cni_network_config"),
    ("write-kubeconfig", &["WRITE_KUBECONFIG"], "true"),
    ("cleanup-on-exit", &["CLEANUP_ON_EXIT"], "auto"),
    ("daemon-set", &["DAEMON_SET"], ""),
    ("node-condition", &["NODE_CONDITION"], "false"),
    ("metrics-by-namespace", &["METRICS_BY_NAMESPACE"], "false"),
    ("proof-interval", &["PROOF_INTERVAL"], "0"),
    ("drift-attribution", &["DRIFT_ATTRIBUTION"], ""),
    ("pod-namespace", &["POD_NAMESPACE"], ""),
    ("pod-name", &["POD_NAME"], ""),
    ("node-name", &["NODE_NAME", "KUBERNETES_NODE_NAME"], ""),
    ("pod-source", &["POD_SOURCE"], "api"),
    ("agent-socket", &["AGENT_SOCKET"], "/var/run/istio-cni/agent.sock"),
    ("ambient-config-file", &["AMBIENT_CONFIG_FILE"], "/etc/ambient-config/config.json"),
    ("no-ztunnel-policy", &["NO_ZTUNNEL_POLICY"], "hold"),
    ("no-ztunnel-policy-file", &["NO_ZTUNNEL_POLICY_FILE"], ""),
    ("system-namespace", &["SYSTEM_NAMESPACE"], "istio-system"),
    ("ztunnel-service-account", &["ZTUNNEL_SERVICE_ACCOUNT"], "ztunnel"),
    ("ztunnel-label", &["ZTUNNEL_LABEL"], "app=ztunnel"),
    ("ambient-tables", &["AMBIENT_TABLES"], "100,101,110,120,130"),
    ("ambient-rule-priority", &["AMBIENT_RULE_PRIORITY"], "100"),
    ("netns-dir", &["NETNS_DIR"], "/var/run/netns"),
    ("force-iptables-binary", &["FORCE_IPTABLES_BINARY"], ""),
    // In-pod capture.
    ("ambient-capture", &["AMBIENT_CAPTURE"], "auto"),
    ("ztunnel-uds-address", &["ZTUNNEL_UDS_ADDRESS"], "/var/run/ztunnel/ztunnel.sock"),
    ("ambient-enablement-selector", &["AMBIENT_ENABLEMENT_SELECTOR"], ""),
    ("ambient-dns-capture", &["AMBIENT_DNS_CAPTURE"], "false"),
    ("ambient-allowed-exceptions", &["AMBIENT_ALLOWED_EXCEPTIONS"], "none"),
    ("existing-connections", &["EXISTING_CONNECTIONS"], "keep"),
    ("ambient-ipv6", &["AMBIENT_IPV6"], "true"),
    ("agent-namespaces", &["AGENT_NAMESPACES"], ""),
    ("exclude-namespaces", &["EXCLUDE_NAMESPACES"], ""),
    ("host-probe-snat-ip", &["HOST_PROBE_SNAT_IP"], "169.254.7.127"),
    ("host-probe-snat-ipv6", &["HOST_PROBE_SNAT_IPV6"], "fd16:9254:7127:1337:ffff:ffff:ffff:ffff"),
    ("allow-switch-to-host-ns", &["ALLOW_SWITCH_TO_HOST_NS"], "false"),
    ("host-proc", &["HOST_PROC"], "/host/proc"),
    // Istio since 1.21.
    ("cni-agent-run-dir", &["CNI_AGENT_RUN_DIR"], "/var/run/istio-cni"),
    ("cni-event-address", &["CNI_EVENT_ADDRESS"], "/var/run/istio-cni/pluginevent.sock"),
    ("cni-conf-group-read", &["CNI_CONF_GROUP_READ"], "false"),
    ("ambient-reconcile-pod-rules-on-startup", &["AMBIENT_RECONCILE_POD_RULES_ON_STARTUP"], "true"),
    ("enable-ambient-detection-retry", &["ENABLE_AMBIENT_DETECTION_RETRY"], "false"),
    ("ambient-enable-aws-branch-eni-probe", &["AMBIENT_ENABLE_AWS_BRANCH_ENI_PROBE"], "true"),
    ("native-nftables", &["NATIVE_NFTABLES"], "false"),
    ("ambient-disable-safe-upgrade", &["AMBIENT_DISABLE_SAFE_UPGRADE"], "false"),
    ("host-root", &["HOST_ROOT"], "/host"),
];

#[test]
fn every_flag_has_its_documented_variables_and_default() {
    let documented: BTreeMap<_, _> =
        DOCUMENTED.iter().map(|(flag, env, default)| (*flag, (*env, *default))).collect();
    let present: BTreeMap<_, _> = ALL.iter().map(|flag| (flag.long, (flag.env, flag.default))).collect();
    assert_eq!(present, documented);
    assert_eq!(present.len(), ALL.len(), "each once");
}

#[test]
fn a_flag_wins_over_each_of_its_variables_and_these_over_the_default() {
    for (name, variables, default) in DOCUMENTED {
        let flag = ALL.iter().find(|flag| flag.long == *name).unwrap();
        assert_eq!(values(&[], &[]).get(flag), (*default, ValueSource::Default));
        let argument = format!("--{name}=from-flag");
        assert_eq!(values(&[&argument], &[]).get(flag), ("from-flag", ValueSource::Flag));
        for variable in *variables {
            let env = [(*variable, "from-variable")];
            assert_eq!(values(&[], &env).get(flag), ("from-variable", ValueSource::Variable(variable)));
            assert_eq!(values(&[&argument], &env).get(flag), ("from-flag", ValueSource::Flag));
        }
    }
    let both = [("ISTIO_OWNED_CNI_CONF_FILENAME", "b"), ("ISTIO_OWNED_CNI_CONFIG_FILENAME", "a")];
    assert_eq!(
        values(&[], &both).flag_text(&options::ISTIO_OWNED_CNI_CONFIG_FILENAME),
        "a",
        "the documented one first"
    );
}

#[test]
fn without_any_choice_it_installs_as_istio_does() {
    let settings = read(&["--repair-enabled=false"], &[]).unwrap();
    let installer = &settings.installer;
    assert_eq!(installer.source, Path::new("/opt/cni/bin"));
    assert_eq!(
        installer.targets,
        [Path::new("/host/opt/cni/bin"), Path::new("/host/secondary-bin-dir")].map(Path::to_owned)
    );
    assert_eq!(installer.conf_dir, Path::new("/host/etc/cni/net.d"));
    assert_eq!(installer.chaining, Chaining::Primary { name: None });
    assert_eq!(installer.own_name, "02-istio-cni.conflist");
    let kubeconfig = installer.kubeconfig.clone().unwrap();
    assert_eq!((kubeconfig.mode, kubeconfig.server.as_str()), (0o600, "https://10.96.0.1:443"));
    let account = Path::new("/var/run/secrets/kubernetes.io/serviceaccount");
    assert_eq!(kubeconfig.trust, ApiServerTrust::Authority(account.join("ca.crt")));
    assert_eq!(kubeconfig.token, account.join("token"));
    assert_eq!(settings.monitoring_port, Some(15014));
    assert_eq!(settings.log_socket.as_deref(), Some(Path::new("/var/run/istio-cni/log.sock")));
    assert_eq!(settings.cleanup, CleanupOnExit::Auto);
    assert_eq!(settings.config_map, None);
    assert_eq!(settings.warnings, Vec::<String>::new());
}

/// Settings as text, for comparison, without this variable and with it empty.
fn unset_and_empty(base: &[(&str, &str)], variable: &str) -> (String, String) {
    let without: Vec<_> = base.iter().filter(|(name, _)| *name != variable).copied().collect();
    let settings = |env: &[(&str, &str)]| match DaemonSettings::read(&values(&[], env), &around(env)) {
        Ok(read) => format!("{read:?}"),
        Err(mistakes) => panic!("{env:?}: {mistakes}"),
    };
    (settings(&without), settings(&[without.as_slice(), &[(variable, "")]].concat()))
}

#[test]
fn an_empty_variable_counts_as_unset_for_every_setting() {
    let owned = [USUAL, &[("ISTIO_OWNED_CNI_CONFIG", "true")]].concat();
    let tables = [ALL.as_slice(), REMOVED];
    for base in [USUAL, owned.as_slice(), newer::CHART_ALONE] {
        for variable in tables.into_iter().flatten().flat_map(|flag| flag.env) {
            let (unset, empty) = unset_and_empty(base, variable);
            assert_eq!(empty, unset, "{variable}");
        }
        let all = tables.into_iter().flatten().flat_map(|flag| flag.env).map(|name| (*name, ""));
        let empty: Vec<_> = USUAL[..2].iter().copied().chain(all).collect();
        assert_eq!(read_alone(&empty), read_alone(&USUAL[..2]), "all of them at once");
    }
}

/// Settings without the usual variables.
fn read_alone(env: &[(&str, &str)]) -> String {
    format!("{:?}", DaemonSettings::read(&values(&[], env), &around(env)).unwrap())
}

#[test]
fn an_empty_flag_switches_off_what_can_be_off() {
    let empty = |flag| read(&[&format!("--{flag}=")], &[]).unwrap();
    assert_eq!(empty("log-uds-address").log_socket, None);
    assert_eq!(empty("monitoring-port").monitoring_port, None);
    assert_eq!(empty("write-kubeconfig").installer.kubeconfig, None);
    assert_eq!(empty("cleanup-on-exit").cleanup, CleanupOnExit::Auto);
    assert!(empty("repair-enabled").warnings.is_empty(), "that is false");
}

#[test]
fn how_the_entry_gets_to_the_runtime() {
    let named = |name: &str| Some(name.to_owned());
    let cases: [(&[(&str, &str)], Chaining); 6] = [
        (&[("CNI_CONF_NAME", "10-a.conf")], Chaining::Primary { name: named("10-a.conf") }),
        (&[("ISTIO_OWNED_CNI_CONFIG", "true")], Chaining::Own { primary: None }),
        (
            &[("ISTIO_OWNED_CNI_CONFIG", "T"), ("CNI_CONF_NAME", "10-a.conf")],
            Chaining::Own { primary: named("10-a.conf") },
        ),
        (&[("CHAINED_CNI_PLUGIN", "0")], Chaining::Standalone { name: "YYY-istio-cni.conf".to_owned() }),
        (
            &[("CHAINED_CNI_PLUGIN", "false"), ("ISTIO_OWNED_CNI_CONFIG", "true")],
            Chaining::Standalone { name: "YYY-istio-cni.conf".to_owned() },
        ),
        (
            &[("CHAINED_CNI_PLUGIN", "False"), ("CNI_CONF_NAME", "a.conf")],
            Chaining::Standalone { name: "a.conf".to_owned() },
        ),
    ];
    for (env, expected) in cases {
        assert_eq!(read(&[], env).unwrap().installer.chaining, expected, "{env:?}");
    }
}

#[test]
fn permission_bits_are_read_as_go_reads_integers() {
    let mode = |text: &str| {
        let settings = read(&[&format!("--kubeconfig-mode={text}")], &[]).ok()?;
        settings.installer.kubeconfig.map(|kubeconfig| kubeconfig.mode)
    };
    for (text, bits) in [("0600", 0o600), ("384", 0o600), ("0o640", 0o640), ("00644", 0o644), ("420", 0o644)]
    {
        assert_eq!(mode(text), Some(bits), "{text}");
    }
    for text in ["", "0", "0800", "600", "01000", "-1", "rw-------", "0x180", "+0600"] {
        assert_eq!(mode(text), None, "{text}");
    }
}

#[test]
fn a_port_of_nothing_or_less_is_none() {
    let port = |text: &str| read(&["--monitoring-port", text], &[]).map(|settings| settings.monitoring_port);
    for (text, expected) in [
        ("15014", Some(15014)),
        ("65535", Some(65535)),
        ("1", Some(1)),
        ("0", None),
        ("-1", None),
        ("", None),
    ] {
        assert_eq!(port(text).unwrap(), expected, "{text}");
    }
    for text in ["65536", "http", "80 ", "1.5", "99999999999999999999"] {
        assert_eq!(port(text).unwrap_err(), [format!("--monitoring-port: {text:?} is not a port")]);
    }
}

/// Kubernetes sets it in a namespace with a Service `monitoring`.
#[test]
fn a_port_variable_of_a_service_counts_as_unset() {
    let links = [("MONITORING_PORT", "tcp://10.96.0.9:80")];
    for arguments in [&[][..], &["--ambient-enabled"]] {
        let (linked, plain) = (read(arguments, &links).unwrap(), read(arguments, &[]).unwrap());
        assert_eq!(linked.listening_ports(), plain.listening_ports(), "{arguments:?}");
        assert_eq!(linked.warnings.len(), plain.warnings.len() + links.len(), "{:?}", linked.warnings);
        assert_eq!(linked.config, plain.config, "{arguments:?}");
    }
    assert_eq!(read(&["--monitoring-port=9"], &links).unwrap().monitoring_port, Some(9));
    assert!(read(&["--monitoring-port=tcp://10.96.0.9:80"], &[]).is_err());
}

#[test]
fn the_api_server_is_named_as_in_a_kubeconfig() {
    let server = |env: &[(&str, &str)]| read(&[], env).map(|settings| settings.api.unwrap().server);
    let host = "KUBERNETES_SERVICE_HOST";
    assert_eq!(server(&[(host, "fd00::1")]).unwrap(), "https://[fd00::1]:443");
    assert_eq!(server(&[(host, "api.local")]).unwrap(), "https://api.local:443");
    assert_eq!(server(&[("KUBERNETES_SERVICE_PROTOCOL", "http")]).unwrap(), "http://10.96.0.1:443");
    let mistake = server(&[("KUBERNETES_SERVICE_PORT", "https")]).unwrap_err();
    assert_eq!(mistake, ["KUBERNETES_SERVICE_PORT: \"https\" is not a port"]);
    for missing in [host, "KUBERNETES_SERVICE_PORT"] {
        let mistakes = read(&[], &[(missing, "")]).unwrap_err();
        assert!(mistakes.len() == 1 && mistakes[0].contains(missing), "{mistakes:?}");
        let without = read(&["--write-kubeconfig=false"], &[(missing, "")]).unwrap();
        assert!(without.api.is_none() && without.installer.kubeconfig.is_none(), "nobody needs it");
    }
}

#[test]
fn who_we_are() {
    let identity = |env: &[(&str, &str)]| read(&[], env).unwrap().identity;
    let plain = identity(&[]);
    assert_eq!(
        (plain.namespace.as_str(), plain.pod.as_str(), plain.node.as_str()),
        ("mesh", "istio-cni-node-7xk2p", "host")
    );
    assert_eq!(identity(&[("REPAIR_NODE_NAME", "r")]).node, "r", "Istio's chart sets that one");
    assert_eq!(identity(&[("REPAIR_NODE_NAME", "r"), ("KUBERNETES_NODE_NAME", "k")]).node, "k");
    assert_eq!(identity(&[("KUBERNETES_NODE_NAME", "k"), ("NODE_NAME", "n")]).node, "n");
    assert_eq!(identity(&[("POD_NAMESPACE", "kube-system")]).namespace, "kube-system");
    assert_eq!(identity(&[("POD_NAME", "istio-cni-node-x")]).pod, "istio-cni-node-x");
}

#[test]
fn a_config_map_is_named_with_or_without_its_namespace() {
    let object =
        |text: &str| read(&[], &[("CNI_CONFIG_MAP", text)]).map(|settings| settings.config_map.unwrap());
    for (text, namespace) in [("cni", "mesh"), ("other/cni", "other")] {
        let (object, key) = object(text).unwrap();
        assert_eq!(
            (object.kind, object.namespace.as_str(), object.name.as_str()),
            ("ConfigMap", namespace, "cni")
        );
        assert_eq!(key, "cni_network_config");
    }
    for text in ["/cni", "other/", "a/b/c"] {
        assert!(object(text).unwrap_err()[0].starts_with("CNI_CONFIG_MAP (--cni-config-map): "), "{text}");
    }
    assert!(read(&["--cni-config-map=cni"], &[("CNI_NETWORK_CONFIG", "")]).is_ok(), "it will give the entry");
    // A value of the environment cannot become valid; a file that can change while the agent runs may.
    let wrong = [("CNI_NETWORK_CONFIG", r#"{"type": "other"}"#)];
    let mistakes = read(&[], &wrong).unwrap_err();
    assert!(mistakes.len() == 1 && mistakes[0].starts_with("CNI_NETWORK_CONFIG ("), "{mistakes:?}");
    for follows in ["--cni-config-map=cni", "--cni-network-config-file=/nowhere"] {
        assert!(read(&[follows], &wrong).is_ok(), "{follows}");
    }
}

#[test]
fn what_istio_removed_is_accepted_with_a_warning() {
    for flag in REMOVED {
        for argument in [format!("--{}", flag.long), format!("--{}=x", flag.long)] {
            if !flag.switch && !argument.ends_with("=x") {
                continue;
            }
            let warnings = read(&[&argument], &[]).unwrap().warnings;
            assert_eq!(warnings, [format!("--{} was removed with Istio 1.19 and has no effect", flag.long)]);
        }
        for variable in flag.env {
            let warnings = read(&[], &[(variable, "true")]).unwrap().warnings;
            assert_eq!(warnings.len(), 1, "{variable}");
        }
    }
    let names: Vec<_> = REMOVED.iter().map(|flag| flag.long).collect();
    let istios = [
        "update-cni-binaries",
        "skip-cni-binaries",
        "cni-enable-install",
        "cni-enable-reinstall",
        "repair-run-as-daemon",
    ];
    assert_eq!(names, istios);
}

#[test]
fn what_this_version_does_not_do_is_told() {
    let warnings = |arguments: &[&str]| read(arguments, &[]).unwrap().warnings;
    assert_eq!(warnings(&[]), Vec::<String>::new());
    assert_eq!(warnings(&["--ebpf-enabled"]), ["there is no eBPF mode: --ebpf-enabled has no effect"]);
    assert_eq!(warnings(&["--chained-cni-plugin=false", "--istio-owned-cni-config"]).len(), 1);
    let level = warnings(&["--log_output_level=default:loud"]);
    assert!(level.len() == 1 && level[0].starts_with("--log_output_level: "), "{level:?}");
    assert_eq!(warnings(&["--ambient-enabled", "--repair-repair-pods"]), Vec::<String>::new());
}

#[test]
fn all_mistakes_are_told_at_once_each_by_its_name() {
    let flags = [
        "--kubeconfig-mode=rw",
        "--monitoring-port=http",
        "--skip-tls-verify=perhaps",
        "--cni-conf-name=../10-a.conf",
        "--repair-repair-pods=2",
        "--ctrlz_port=x",
        "--log_as_json=maybe",
    ];
    let env = [
        ("KUBERNETES_SERVICE_HOST", ""),
        ("KUBECFG_FILE_NAME", "a/b"),
        ("ISTIO_OWNED_CNI_CONF_FILENAME", ".."),
        ("WRITE_KUBECONFIG", "yes"),
        ("CLEANUP_ON_EXIT", "sometimes"),
        ("REPAIR_INIT_CONTAINER_EXIT_CODE", "high"),
        ("CNI_NETWORK_CONFIG", " "),
        ("CNI_NETWORK_CONFIG_FILE", "/nowhere"),
        ("CNI_CONFIG_MAP", ""),
    ];
    let names = flags.iter().map(|flag| flag.split('=').next().unwrap());
    let variables = [
        "KUBECFG_FILE_NAME (--kubecfg-file-name)",
        "ISTIO_OWNED_CNI_CONF_FILENAME (--istio-owned-cni-config-filename)",
        "WRITE_KUBECONFIG (--write-kubeconfig)",
        "CLEANUP_ON_EXIT (--cleanup-on-exit)",
        "REPAIR_INIT_CONTAINER_EXIT_CODE (--repair-init-container-exit-code)",
        "CNI_NETWORK_CONFIG_FILE (--cni-network-config-file)",
    ];
    let mistakes = read(&flags, &env).unwrap_err();
    for name in names.chain(variables) {
        let about = mistakes.iter().filter(|mistake| mistake.starts_with(&format!("{name}: "))).count();
        assert_eq!(about, 1, "{name}: {mistakes:#?}");
    }
    assert_eq!(mistakes.len(), flags.len() + variables.len(), "{mistakes:#?}");
}

#[test]
fn what_was_chosen_is_told_without_the_template() {
    let settings = read(&["--log-level=debug"], &[("CNI_NET_DIR", "/etc/cni")]).unwrap();
    assert_eq!(settings.chosen, ["cni-net-dir=\"/etc/cni\" (CNI_NET_DIR)", "log-level=\"debug\""]);
}

#[test]
fn ambient_mode_is_what_the_operator_chose() {
    assert!(read(&[], &[]).unwrap().ambient.is_none(), "off by default");
    let chosen = [
        ("AMBIENT_ENABLED", "true"),
        ("POD_SOURCE", "dir:/pods"),
        ("NO_ZTUNNEL_POLICY", "open"),
        ("ZTUNNEL_LABEL", "istio=ambient"),
        ("AMBIENT_TABLES", "200, 201,210,220,230"),
        ("AMBIENT_RULE_PRIORITY", "500"),
        ("AGENT_SOCKET", "/run/here/agent.sock"),
    ];
    let settings = read(&[], &chosen).unwrap();
    let ambient = settings.ambient.unwrap();
    assert_eq!(ambient.source, PodSource::Directory("/pods".into()));
    assert_eq!(ambient.agent.fallback.to_string(), "open");
    assert_eq!(ambient.agent.policy.ztunnel.label, ("istio".to_owned(), "ambient".to_owned()));
    assert_eq!((ambient.agent.node.tables.slot_return, ambient.agent.node.priorities.first), (230, 500));
    assert_eq!(ambient.agent.journal, Path::new("/run/here/settings-before.json"));
    let defaults: BTreeMap<_, _> = settings.installer.defaults.into_iter().collect();
    assert_eq!(defaults["agent_socket"].as_str(), Some("/run/here/agent.sock"));
    assert_eq!(defaults["ambient_enabled"], Json::Bool(true));
    assert!(!defaults.contains_key("ambient_config"), "where the plugin looks anyway");
}

#[test]
fn the_source_of_probes_is_an_address_or_detected_in_each_family() {
    let istio = ProbeAddresses::default();
    let (both, chosen) = ("10.0.0.1,fd00::1", "fd00::1".parse().unwrap());
    for (source, source_v6, probes, detected) in [
        ("", "", istio, vec![]),
        ("detect", "", istio, vec![Family::V4]),
        ("detect", "detect", istio, Family::BOTH.to_vec()),
        ("detect", "fd00::1", ProbeAddresses { v6: chosen, ..istio }, vec![Family::V4]),
        // In the format of the pod's status field, for both flags.
        (both, both, ProbeAddresses { v4: "10.0.0.1".parse().unwrap(), v6: chosen }, vec![]),
        ("fd00::1", "fd00::1", ProbeAddresses { v6: chosen, ..istio }, vec![]),
    ] {
        let sources = [("HOST_PROBE_SNAT_IP", source), ("HOST_PROBE_SNAT_IPV6", source_v6)];
        let settings = read(&["--ambient-enabled"], &sources).unwrap().ambient.unwrap().agent;
        let found = settings.capture.in_pod().unwrap();
        assert_eq!((found.rules.probes, &found.detected_probes), (probes, &detected), "{sources:?}");
    }
    for wrong in ["detected", "10.0.0.1,node", "10.0.0.1,detect"] {
        let mistakes = read(&["--ambient-enabled"], &[("HOST_PROBE_SNAT_IP", wrong)]).unwrap_err();
        assert_eq!(
            mistakes,
            [format!("HOST_PROBE_SNAT_IP (--host-probe-snat-ip): {wrong:?} is not an IP address")]
        );
    }
    for wrong in
        ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1", "::ffff:10.0.0.1"]
    {
        let mistakes = read(&["--ambient-enabled"], &[("HOST_PROBE_SNAT_IPV6", wrong)]).unwrap_err();
        let expected = format!(
            "HOST_PROBE_SNAT_IPV6 (--host-probe-snat-ipv6): {wrong} cannot be the source of probes: it is unspecified, \
             loopback, multicast, broadcast or IPv4-mapped"
        );
        assert_eq!(mistakes, [expected]);
    }
}

#[test]
fn mistakes_in_ambient_settings_are_told_by_their_flags() {
    let wrong = [
        ("--pod-source", "file:/x"),
        ("--no-ztunnel-policy", "drop"),
        ("--ztunnel-label", "ztunnel"),
        ("--ambient-tables", "100,101,110"),
        ("--ambient-tables", "100,101,l05,110,120,130"),
        ("--ambient-tables", "100,101,110,110,130"),
        ("--ambient-tables", "254,101,110,120,130"),
        ("--ambient-rule-priority", "0"),
        ("--ambient-rule-priority", "32766"),
        ("--force-iptables-binary", "ebtables"),
    ];
    for (flag, value) in wrong {
        let mistakes = read(&[&format!("{flag}={value}")], &[]).unwrap_err();
        assert!(mistakes.len() == 1 && mistakes[0].contains(flag), "{flag}={value}: {mistakes:?}");
    }
}

#[test]
fn a_ztunnel_may_be_in_our_own_namespace_unless_one_is_chosen() {
    let namespaces = |env: &[(&str, &str)]| {
        let env = [&[("AMBIENT_ENABLED", "true")], env].concat();
        read(&[], &env).unwrap().ambient.unwrap().agent.policy.ztunnel.namespaces
    };
    assert_eq!(namespaces(&[]), ["istio-system", "mesh"]);
    assert_eq!(namespaces(&[("POD_NAMESPACE", "istio-system")]), ["istio-system"]);
    assert_eq!(namespaces(&[("SYSTEM_NAMESPACE", "other")]), ["other"]);
    assert_eq!(namespaces(&[("SYSTEM_NAMESPACE", "")]), ["istio-system", "mesh"]);
}

#[test]
fn the_directory_of_network_namespaces_is_looked_for_where_it_may_be_mounted() {
    let root = std::env::temp_dir().join(format!("settings-{}", std::process::id()));
    let (host, chosen) = (root.join("host"), root.join("netns"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (host_text, chosen_text) = (text(&host), text(&chosen));
    let directory = |env: &[(&str, &str)]| {
        read(&[], &[&[("HOST_ROOT", host_text.as_str())], env].concat()).unwrap().netns_directory
    };
    let usual = Path::new("/var/run/netns");
    // Neither exists, except for the machine's own.
    assert_eq!(directory(&[]), usual);
    let below = |path: &Path| host.join(path.strip_prefix("/").unwrap());
    fs::create_dir_all(below(usual)).unwrap();
    assert_eq!(directory(&[]), below(usual), "as Istio's charts mount it since 1.21");
    let env = [("NETNS_DIR", chosen_text.as_str())];
    assert_eq!(directory(&env), chosen);
    fs::create_dir_all(below(&chosen)).unwrap();
    assert_eq!(directory(&env), below(&chosen), "a path of the host");
    fs::create_dir_all(&chosen).unwrap();
    assert_eq!(directory(&env), chosen, "what is chosen comes first");
    fs::remove_dir_all(&root).unwrap();
}

mod newer;

fn repair(flags: &[&str]) -> Option<RepairOptions> {
    read(flags, &[("NODE_NAME", "n1")]).unwrap().repair
}

/// repairPods before deletePods before labelPods, and none if none is set.
#[test]
fn the_first_repair_mode_of_istios_order_counts() {
    let (label, delete, in_place) = ("--repair-label-pods", "--repair-delete-pods", "--repair-repair-pods");
    let key_and_value =
        || RepairMode::Label { key: "cni.istio.io/uninitialized".to_owned(), value: "true".to_owned() };
    for (flags, mode) in [
        (&[][..], None),
        (&[label][..], Some(key_and_value())),
        (&[delete][..], Some(RepairMode::Delete)),
        (&[in_place][..], Some(RepairMode::InPlace)),
        (&[label, delete][..], Some(RepairMode::Delete)),
        (&[label, delete, in_place][..], Some(RepairMode::InPlace)),
        (&[label, in_place][..], Some(RepairMode::InPlace)),
    ] {
        assert_eq!(repair(flags).map(|repair| repair.mode), mode, "{flags:?}");
        let off: Vec<_> = flags.iter().copied().chain(["--repair-enabled=false"]).collect();
        assert_eq!(repair(&off), None, "{flags:?}");
    }
}

#[test]
fn repair_settings_reach_the_controller() {
    let defaults = repair(&["--repair-delete-pods"]).unwrap();
    assert_eq!((defaults.node.as_str(), defaults.dry_run), ("n1", false));
    let criteria = RepairCriteria {
        sidecar_annotation: "sidecar.istio.io/status".into(),
        init_container: "istio-validation".into(),
        termination_message: String::new(),
        exit_code: 126,
    };
    assert_eq!(defaults.criteria, criteria);
    let chosen = repair(&[
        "--repair-label-pods",
        "--repair-node-name=other",
        "--repair-sidecar-annotation=a",
        "--repair-init-container-name=i",
        "--repair-init-container-termination-message=m",
        "--repair-init-container-exit-code=",
        "--repair-label-selectors=app=web",
        "--repair-field-selectors=status.phase!=Running",
        "--repair-broken-pod-label-key=k",
        "--repair-broken-pod-label-value=v",
        "--repair-dry-run",
        "--exclude-namespaces=a,b",
    ]);
    let criteria = RepairCriteria {
        sidecar_annotation: "a".into(),
        init_container: "i".into(),
        termination_message: "m".into(),
        exit_code: 0,
    };
    let expected = RepairOptions {
        mode: RepairMode::Label { key: "k".into(), value: "v".into() },
        criteria,
        node: "other".into(),
        label_selector: "app=web".into(),
        field_selector: "status.phase!=Running".into(),
        dry_run: true,
        existing: ExistingConnections::Keep,
        policy: EnrolmentPolicy {
            excluded_namespaces: vec!["a".into(), "b".into()],
            agent_namespaces: vec!["mesh".into()],
            ..EnrolmentPolicy::default()
        },
    };
    assert_eq!(chosen, Some(expected));
}

#[test]
fn existing_connections_are_kept_unless_the_operator_wants_otherwise() {
    let existing = |text: &str| {
        let settings = read(
            &["--existing-connections", text, "--repair-enabled=true", "--repair-label-pods=true"],
            &[],
        )?;
        Ok::<_, Vec<String>>(settings.repair.unwrap().existing)
    };
    for (text, expected) in [
        ("", ExistingConnections::Keep),
        ("keep", ExistingConnections::Keep),
        ("reset", ExistingConnections::Reset),
    ] {
        assert_eq!(existing(text), Ok(expected), "{text}");
    }
    let mistake = "--existing-connections: \"close\" must be keep or reset";
    assert_eq!(existing("close"), Err(vec![mistake.to_owned()]));
}

mod simulated;
