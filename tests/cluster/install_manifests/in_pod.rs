//! The manifest with in-pod capture: its permissions, mounts and settings, which the agent accepts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use kit::{Container, Echo, InpodOptions, NodeOptions};
use serde_json::{Value, json};

use super::ambient::{document, names, set};
use super::documents::{AMBIENT, IN_POD};
use crate::fixtures::ambient::PORT;
use crate::fixtures::inpod::InPod;

fn spec() -> Value {
    document(IN_POD, "DaemonSet")["spec"]["template"]["spec"].clone()
}

fn container() -> Value {
    spec()["containers"][0].clone()
}

/// Values of variables that have one in the manifest.
fn environment() -> BTreeMap<String, String> {
    let list = container()["env"].as_array().unwrap().clone();
    let pair = |variable: &Value| {
        Some((variable["name"].as_str()?.to_owned(), variable["value"].as_str()?.to_owned()))
    };
    list.iter().filter_map(pair).collect()
}

/// Mount point of each volume, and its path on the node.
fn mounts() -> BTreeMap<String, (String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let spec = spec();
    let volumes = spec["volumes"].as_array().unwrap();
    let host = |name: &Value| {
        let volume = volumes.iter().find(|volume| volume["name"] == *name).unwrap();
        (text(&volume["hostPath"]["path"]), text(&volume["hostPath"]["type"]))
    };
    let mounts = container()["volumeMounts"].as_array().unwrap().clone();
    assert_eq!(mounts.len(), volumes.len(), "each once");
    mounts.iter().map(|mount| (text(&mount["mountPath"]), host(&mount["name"]))).collect()
}

#[test]
fn the_pods_have_no_more_than_istios_have() {
    let spec = spec();
    assert_eq!((spec.get("hostNetwork"), spec.get("hostPID"), spec.get("dnsPolicy")), (None, None, None));
    let context = &container()["securityContext"];
    assert_eq!(context["privileged"], json!(false));
    assert_eq!(context["readOnlyRootFilesystem"], json!(true));
    assert_eq!(context["seccompProfile"], json!({"type": "RuntimeDefault"}));
    let added = json!(["NET_ADMIN", "NET_RAW", "SYS_PTRACE", "SYS_ADMIN", "DAC_OVERRIDE"]);
    assert_eq!(context["capabilities"], json!({"drop": ["ALL"], "add": added}), "those of Istio's chart");
    let metadata = &document(IN_POD, "DaemonSet")["spec"]["template"]["metadata"];
    assert_eq!(metadata["labels"]["istio.io/dataplane-mode"], "none");
    let profile = "container.apparmor.security.beta.kubernetes.io/install-cni";
    assert_eq!(metadata["annotations"][profile], "unconfined", "a profile forbids what SYS_ADMIN allows");
}

#[test]
fn what_the_agent_looks_at_is_mounted_where_it_looks() {
    let mounts = mounts();
    let host = |path: &str| mounts[path].clone();
    let pair = |path: &str, kind: &str| (path.to_owned(), kind.to_owned());
    // The defaults of --host-proc and --ztunnel-uds-address.
    assert_eq!(host("/host/proc"), pair("/proc", "Directory"));
    assert_eq!(host("/var/run/ztunnel"), pair("/var/run/ztunnel", "DirectoryOrCreate"));
    // The default of --netns-dir, below --host-root.
    assert_eq!(host("/host/var/run/netns"), pair("/var/run/netns", "DirectoryOrCreate"));
    assert_eq!(host("/var/run/istio-cni"), pair("/var/run/istio-cni", "DirectoryOrCreate"), "agent.sock");
    let list = container()["volumeMounts"].as_array().unwrap().clone();
    let mount = |path: &str| list.iter().find(|mount| mount["mountPath"] == path).unwrap().clone();
    assert_eq!(mount("/host/proc")["readOnly"], true);
    assert_eq!(mount("/host/var/run/netns")["mountPropagation"], "HostToContainer");
}

#[test]
fn the_settings_are_those_of_capture_from_within() {
    let env = environment();
    for (name, value) in [
        ("AMBIENT_ENABLED", "true"),
        ("AMBIENT_CAPTURE", "in-pod"),
        ("ALLOW_SWITCH_TO_HOST_NS", "true"),
        ("AMBIENT_DNS_CAPTURE", "true"),
        ("AMBIENT_IPV6", "true"),
        ("EXCLUDE_NAMESPACES", "istio-system,kube-system"),
    ] {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
    }
    let of =
        |file: &str| names(&document(file, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["env"]);
    let (node, in_pod) = (of(AMBIENT), of(IN_POD));
    let more: BTreeSet<_> = in_pod.difference(&node).cloned().collect();
    assert_eq!(more, set(&["ALLOW_SWITCH_TO_HOST_NS", "AMBIENT_DNS_CAPTURE", "AMBIENT_IPV6"]));
    let less: BTreeSet<_> = node.difference(&in_pod).cloned().collect();
    assert_eq!(less, set(&["NO_ZTUNNEL_POLICY"]), "pods' own rules hold their traffic");
}

/// The agent reports all invalid variables before it opens anything: with one that is added here, it must report that one alone.
#[test]
fn the_daemon_takes_the_value_of_every_variable() {
    let mut command = Command::new(kit::binary("install-cni"));
    command.env_clear().envs(environment()).env("AMBIENT_CAPTURE", "within").env("NODE_NAME", "node-1");
    command.envs([("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")]);
    let output = command.env("POD_NAMESPACE", "kube-system").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let setting = "AMBIENT_CAPTURE (--ambient-capture)";
    assert_eq!(said, format!("install-cni: {setting}: \"within\" must be one of node, in-pod and auto\n"));
}

/// Restricts the container's program as its runtime would: its own network namespace, and the manifest's capabilities.
fn confine(container: &mut Container) {
    let daemon = container.root().join("confined-install-cni");
    kit::copy_program(&kit::binary("install-cni"), &daemon);
    let added = container_capabilities().map(|name| format!(",+{}", name.to_lowercase())).collect::<String>();
    let script = container.root().join("confine");
    let text = format!(
        "#!/bin/bash\nexec unshare --net setpriv --bounding-set=-all{added} --inh-caps=-all /confined-install-cni \"$@\"\n"
    );
    kit::write_script(&script, &text);
    container.set_program(&script);
}

fn container_capabilities() -> impl Iterator<Item = String> {
    let added = container()["securityContext"]["capabilities"]["add"].as_array().unwrap().clone();
    added.into_iter().map(|name| name.as_str().unwrap().to_owned())
}

#[test]
fn an_agent_with_a_network_of_its_own_and_these_capabilities_captures_a_pod() {
    let mut fixture = InPod::stopped(
        NodeOptions::default(),
        &[("ALLOW_SWITCH_TO_HOST_NS", "true"), ("CLEANUP_ON_EXIT", "always")],
    );
    fixture.processes.write(1, "0::/\n", &fixture.node.netns().clone());
    confine(&mut fixture.container);
    fixture.daemon = Some(fixture.container.start());
    let ztunnel = fixture.ztunnel("ztunnel-a", InpodOptions::default());
    let _echo = Echo::tcp(fixture.node.outside(), PORT);
    let one = fixture.mesh_pod("one");
    for v6 in [false, true] {
        let outside = SocketAddr::new(fixture.node.outside_ip(v6), PORT);
        let _ = one.tcp(outside).unwrap();
        let _ = ztunnel.wait_seen(|seen| seen.src.ip() == one.ip(v6) && seen.dst == outside);
        assert!(fixture.is_probed(one.ip(v6)), "{}", fixture.log());
    }
    let pid = fixture.daemon().pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    // DAC_OVERRIDE, NET_ADMIN, NET_RAW, SYS_PTRACE, SYS_ADMIN
    assert!(kit::has_line(&status, "CapEff:\t0000000000283002"), "else this proves nothing: {status}");
    let (status, log) = fixture.daemon.take().unwrap().terminate();
    assert!(status.success() && fixture.is_bare(&one), "{log}\n{}", fixture.dump());
    // On the node's network, not on the agent's own.
    assert!(!fixture.is_probed(one.ip(false)), "{log}");
    let chain = |line: &str| line.starts_with(":ISTIO_POSTRT");
    assert!(!fixture.dump().lines().any(chain), "{log}\n{}", fixture.dump());
}
