//! `install-cni` as a program: sub-commands, flags, variables, and input that it refuses before it changes anything.

use std::fs;
use std::process::{Command, Output};

use kit::{Netns, binary};
use serde_json::Value;

use crate::fixtures::install::{FILE, InstallFixture, files};

/// Runs the program to its end in an empty environment and its own network namespace.
fn call(arguments: &[&str]) -> (Option<i32>, String, String) {
    let netns = Netns::new("call");
    let output: Output = netns.output(Command::new(binary("install-cni")).args(arguments).env_clear());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Stdout of a successful call.
fn said(arguments: &[&str]) -> String {
    let (status, said, complaint) = call(arguments);
    assert_eq!((status, complaint.as_str()), (Some(0), ""), "{arguments:?}");
    said
}

#[test]
fn help_names_every_flag_with_variable_and_default() {
    let help = said(&["--help"]);
    for part in [
        "install-cni [flags]",
        "install-cni COMMAND [flags]",
        "\n  version     print the version\n",
        "--cni-net-dir string\n        CNI configuration directory on the host (default /etc/cni/net.d) [CNI_NET_DIR]\n",
        "--chained-cni-plugin\n",
        "[ISTIO_OWNED_CNI_CONFIG_FILENAME, ISTIO_OWNED_CNI_CONF_FILENAME]",
        "--log_output_level string\n",
    ] {
        assert!(help.contains(part), "{part}: {help}");
    }
    for other in [&["-h"][..], &["help"], &["--log-level", "debug", "--help"], &["--help", "--nonsense"]] {
        assert_eq!(said(other), help, "{other:?}");
    }
    assert!(kit::has_line(&said(&["version", "--help"]), "  -o, --output string"));
}

#[test]
fn the_version_comes_in_the_shapes_of_istio() {
    let version = env!("CARGO_PKG_VERSION");
    assert!(
        said(&["version"]).starts_with(&format!("version.BuildInfo{{Version:\"{version}\", GitRevision:\""))
    );
    for short in ["-s", "--short", "--short=true"] {
        let line = said(&["version", short]);
        assert!(line.starts_with(&format!("{version}-")) && line.lines().count() == 1, "{line}");
    }
    let json: Value = serde_json::from_str(&said(&["version", "-o", "json"])).unwrap();
    assert_eq!(json["clientVersion"]["version"], version);
    let keys: Vec<_> = json["clientVersion"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["date", "golang_version", "revision", "status", "tag", "tls_provider", "version"]);
    assert_eq!(json["clientVersion"]["tls_provider"], "ring");
    assert_eq!(said(&["version", "--output=json"]), said(&["version", "-ojson"]));
    let yaml = said(&["version", "-o", "yaml"]);
    let expected = keys.iter().map(|key| format!("  {key}: {}\n", json["clientVersion"][key.as_str()]));
    assert_eq!(yaml, format!("clientVersion:\n{}", expected.collect::<String>()));
}

/// Scripts query ControlZ.
#[test]
fn the_daemon_and_its_command_report_the_same_build() {
    let fixture = InstallFixture::new(&[]);
    let mut daemon = fixture.container.start();
    daemon.wait_for("its page is there", |daemon| daemon.get(9876, "/versionj/").is_some());
    let (_, text) = daemon.get(9876, "/versionj/").unwrap();
    let served: Value = serde_json::from_str(&text).unwrap();
    let printed: Value = serde_json::from_str(&said(&["version", "-o", "json"])).unwrap();
    assert_eq!(served, printed["clientVersion"]);
}

#[test]
fn what_it_does_not_know_is_refused_by_name() {
    for (arguments, words) in [
        (&["--nonsense"][..], &["unknown flag: --nonsense; see --help\n"][..]),
        (
            &["--nonsense=1", "word", "-z"],
            &["unknown flag: --nonsense", "\"word\"", "unknown flag: -z; see --help\n"],
        ),
        (
            &["explian", "shop/web"],
            &["unknown command \"explian\" (did you mean \"explain\"?); see install-cni help"],
        ),
        (&["hlep"], &["(did you mean \"help\"?)"]),
        (&["collateral"], &["unknown command \"collateral\"; see install-cni help"]),
        (&["help", "word"], &["unknown command \"word\""]),
        (&["completion"], &["must be one of bash, zsh and fish"]),
        (&["version", "-o", "xml"], &["--output", "\"xml\"", "json", "yaml"]),
        (&["version", "--nonsense"], &["unknown flag: --nonsense; see --help\n"]),
        (&["uninstall", "--dryrun"], &["--dryrun (did you mean --dry-run?); see --help\n"]),
        (&["--log-level"], &["--log-level"]),
    ] {
        let (status, said, complaint) = call(arguments);
        assert_eq!((status, said.as_str()), (Some(1), ""), "{arguments:?}");
        assert!(complaint.starts_with("install-cni: "), "{complaint}");
        assert!(words.iter().all(|word| complaint.contains(word)), "{arguments:?}: {complaint}");
    }
}

#[test]
fn help_is_there_for_all_commands_and_for_each() {
    let all = said(&["help"]);
    assert_eq!(all, said(&["--help"]));
    let (_, commands) = all.split_once("\nCommands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    for line in commands.lines() {
        let name = line.split_whitespace().next().unwrap();
        let help = said(&["help", name]);
        assert!(help.starts_with(&format!("install-cni {name} ")), "{help}");
        assert_eq!(help, said(&[name, "--help"]));
        assert!(kit::has_line(&help, "Examples:"), "{help}");
        assert!(!kit::has_line(&help, "      --cni-net-dir string"), "the agent's: {help}");
    }
    assert!(said(&["completion", "bash"]).ends_with("complete -F _install_cni install-cni\n"));
}

/// Everything is checked before anything is opened.
#[test]
fn with_mistakes_it_ends_and_has_touched_nothing() {
    let fixture = InstallFixture::new(&[
        ("KUBECONFIG_MODE", "rw"),
        ("MONITORING_PORT", "many"),
        ("CHAINED_CNI_PLUGIN", "perhaps"),
        ("CLEANUP_ON_EXIT", "sometimes"),
        ("KUBERNETES_SERVICE_HOST", ""),
        ("CNI_NETWORK_CONFIG", ""),
        ("CNI_NETWORK_CONFIG_FILE", "/nowhere"),
    ]);
    let target = fixture.container.root().join("tmp/install.log");
    let arguments = ["--log_as_json=loud", "--repair-delete-pods=x", "--log_target=/tmp/install.log"];
    let before = fixture.files();
    let mut daemon = fixture.container.start_with(&arguments, &[]);
    assert_eq!(daemon.wait().code(), Some(1));
    let log = daemon.log();
    for name in [
        "KUBECONFIG_MODE (--kubeconfig-mode): ",
        "MONITORING_PORT (--monitoring-port): ",
        "CHAINED_CNI_PLUGIN (--chained-cni-plugin): ",
        "CLEANUP_ON_EXIT (--cleanup-on-exit): ",
        "KUBERNETES_SERVICE_HOST",
        "CNI_NETWORK_CONFIG_FILE (--cni-network-config-file): ",
        "--log_as_json: ",
        "--repair-delete-pods: ",
    ] {
        assert!(log.contains(name), "{name}: {log}");
    }
    assert_eq!(fixture.files(), before);
    assert_eq!(files(&fixture.container.bin_dir()).len(), 0);
    assert_eq!(fs::read_dir(fixture.node.run_dir()).unwrap().count(), 0, "no socket");
    assert!(!target.exists(), "no log");
}

/// Variables and arguments of the DaemonSet in Istio's chart, beside those that the kit sets.
const CHART: &[(&str, &str)] = &[
    ("CNI_NET_DIR", "/etc/cni/net.d"),
    ("CHAINED_CNI_PLUGIN", "true"),
    ("REPAIR_ENABLED", "true"),
    ("REPAIR_NODE_NAME", "node-1"),
    ("NODE_NAME", "node-1"),
    ("REPAIR_LABEL_PODS", "false"),
    ("REPAIR_DELETE_PODS", "false"),
    ("REPAIR_REPAIR_PODS", "true"),
    ("REPAIR_RUN_AS_DAEMON", "true"),
    ("REPAIR_SIDECAR_ANNOTATION", "sidecar.istio.io/status"),
    ("REPAIR_INIT_CONTAINER_NAME", "istio-validation"),
    ("REPAIR_BROKEN_POD_LABEL_KEY", "cni.istio.io/uninitialized"),
    ("REPAIR_BROKEN_POD_LABEL_VALUE", "true"),
    ("LOG_LEVEL", "debug"),
    ("GOMEMLIMIT", "104857600"),
    ("GOMAXPROCS", "1"),
];

#[test]
fn the_environment_and_arguments_of_istios_chart_are_accepted() {
    let fixture = InstallFixture::new(CHART);
    let arguments = ["--log_output_level=default:info,cni:info", "--log_as_json"];
    let mut daemon = fixture.container.start_with(&arguments, &[]);
    daemon.wait_until_ready();
    assert_eq!(fixture.types(FILE), ["bridge", "istio-cni"]);
    let log = daemon.log();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {log}"));
        for key in ["level", "time", "scope", "msg"] {
            assert!(line[key].is_string(), "{key}: {line}");
        }
        assert_ne!(line["msg"], "check the settings", "the chart's own variables are no mistake: {log}");
    }
}
