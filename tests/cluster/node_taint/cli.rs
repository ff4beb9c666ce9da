//! The program's command line and environment.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::{env, fs};

use kit::{Netns, binary};
use rustix::process::Signal;
use serde_json::Value;

use crate::install_manifests::documents::{AMBIENT, IN_POD, SIDECAR, documents_of};

fn call(arguments: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let netns = Netns::new("taint-call");
    let mut command = Command::new(binary("install-cni"));
    command.arg0("/opt/local/bin/istio-cni-taint").args(arguments).env_clear().envs(env.iter().copied());
    let output = netns.output(&mut command);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn help_has_istios_flags_with_their_variables_and_defaults() {
    let (status, help, complaint) = call(&["--help"], &[]);
    assert_eq!((status, complaint.as_str()), (Some(0), ""));
    for part in [
        "istio-cni-taint [flags]",
        "--configmap-namespace string",
        "(default kube-system) [TAINT_CONFIGMAP-NAMESPACE]",
        "--configmap-name string",
        "(default single) [TAINT_CONFIGMAP-NAME]",
        "--run-as-daemon",
        "(default true) [TAINT_RUN-AS-DAEMON]",
        "--log_output_level string",
    ] {
        assert!(help.contains(part), "{part}: {help}");
    }
    assert!(!help.lines().any(|line| line.trim_start().starts_with("--cni-net-dir")), "{help}");
}

#[test]
fn mistakes_are_reported_together_before_anything_is_opened() {
    let (status, output, complaint) = call(
        &["--run-as-daemon=perhaps", "--configmap-name=a/b", "--log_as_json=loud"],
        &[("TAINT_NODE-SELECTOR", "a b"), ("TAINT_CONFIGMAP-NAMESPACE", "")],
    );
    assert_eq!((status, output.as_str()), (Some(1), ""));
    // An empty variable counts as unset: --configmap-namespace keeps its default.
    assert_eq!(
        complaint,
        "istio-cni-taint: --run-as-daemon: \"perhaps\" is neither true nor false\n--configmap-name: \"a/b\" is not a valid \
         object name\n--node-selector: \"a b\" is not a label requirement, such as app=web, tier!=db, app in (a,b), app or !app\n\
         KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be set\n--log_as_json: \"loud\" is neither true nor \
         false\n"
    );
    let (status, _, complaint) = call(&["--nonsense", "word"], &[]);
    let expected = "istio-cni-taint: unknown flag: --nonsense\nunexpected argument \"word\"\n";
    assert_eq!((status, complaint.as_str()), (Some(1), expected));
}

/// As a container's first process it would lose the signal.
#[test]
fn a_sigterm_counts_before_anything_is_logged() {
    let log = env::temp_dir().join(format!("log-{}", std::process::id())); // it has no reader, so opening it blocks
    assert!(Command::new("mkfifo").arg(&log).status().unwrap().success());
    let mut command = Command::new(binary("install-cni"));
    command.arg0("istio-cni-taint").arg("--log_target").arg(&log).env_clear();
    command.envs([("KUBERNETES_SERVICE_HOST", "127.0.0.1"), ("KUBERNETES_SERVICE_PORT", "1")]);
    let mut controller = command.spawn().unwrap();
    let catches_sigterm = || {
        let status = fs::read_to_string(format!("/proc/{}/status", controller.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap();
        u64::from_str_radix(caught, 16).unwrap() & 1 << (Signal::TERM.as_raw() - 1) != 0
    };
    kit::until("it has a handler", catches_sigterm);
    controller.kill().unwrap();
    controller.wait().unwrap();
    fs::remove_file(log).unwrap();
}

/// istiod's untaint controller, and the default entry of our ConfigMap, select the agent's pods by this label.
#[test]
fn the_agents_pods_have_the_label_by_which_others_know_them() {
    for file in [SIDECAR, AMBIENT, IN_POD] {
        let documents = documents_of(file);
        let daemon_set = documents.iter().find(|document| document["kind"] == "DaemonSet").unwrap();
        let template = &daemon_set["spec"]["template"];
        assert_eq!(template["metadata"]["labels"]["k8s-app"], "istio-cni-node", "{file}");
        assert_eq!(daemon_set["metadata"]["namespace"], "kube-system", "{file}");
        let tolerates_all = |one: &Value| {
            one["effect"] == "NoSchedule" && one["operator"] == "Exists" && one.get("key").is_none()
        };
        assert!(template["spec"]["tolerations"].as_array().unwrap().iter().any(tolerates_all), "{file}");
    }
}
