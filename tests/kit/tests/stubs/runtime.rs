//! The kit's runtime calls plugins as containerd does in recorded calls.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use kit::{Call, Node, NodeOptions, Pod, Runtime};
use serde_json::{Value, json};

/// A chained plugin, as a shell script in a directory of its own.
fn plugin(node: &Node, name: &str, script: &str) -> PathBuf {
    let directory = node.dir().join("plugins");
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join(name);
    kit::write_script(&path, &format!("#!/bin/sh\n{script}\n"));
    directory
}

/// A plugin that records its calls, and passes prevResult through.
fn recorder(node: &Node, name: &str) -> PathBuf {
    let log = node.log_dir().join(name);
    let log = log.display();
    plugin(
        node,
        name,
        &format!(
            "stdin=$(cat)\n\
             {{ echo \"$CNI_COMMAND|$CNI_NETNS|$CNI_ARGS|$PWD|$(ip -o link show kube0 | wc -l)|$stdin\"; }} >>{log}\n\
             test \"$CNI_COMMAND\" != ADD || printf '%s' \"$stdin\" |\n\
             sed -e 's/.*\"prevResult\"://' -e 's/,\"runtimeConfig\".*//' -e 's/,\"type\":\"{name}\".*//'"
        ),
    )
}

fn recorded(node: &Node, name: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(node.log_dir().join(name)).unwrap();
    text.lines().map(|line| line.splitn(6, '|').map(str::to_owned).collect()).collect()
}

fn order(calls: &[Call]) -> Vec<String> {
    calls.iter().map(|call| format!("{} {}", call.command, call.plugin)).collect()
}

fn with(node: &Node, plugins: &[&str]) -> (Runtime, Value) {
    let mut runtime = node.runtime();
    for name in plugins {
        runtime = runtime.with_plugins(&recorder(node, name));
    }
    let entries: Vec<_> = plugins.iter().map(|name| json!({"type": name})).collect();
    (runtime, node.conflist(&entries))
}

#[test]
fn add_goes_down_the_chain_and_del_comes_back_up() {
    let node = Node::new(NodeOptions::default());
    let (runtime, conflist) = with(&node, &["first", "second"]);
    let mut pod = node.add_pod(&runtime, &conflist, Pod::new("default", "order")).unwrap();
    assert_eq!(order(&pod.calls), ["ADD ptp", "ADD first", "ADD second"]);
    let deleted = pod.delete().unwrap();
    assert_eq!(order(&deleted), ["DEL second", "DEL first", "DEL ptp"]);
    assert_eq!(deleted[0].stdin["prevResult"], pod.result);
    let again = pod.delete_again().unwrap();
    assert!(again.iter().all(|call| call.stdin.get("prevResult").is_none()));
    assert_eq!(recorded(&node, "second").last().unwrap()[1], "", "CNI_NETNS of a DEL that is repeated");
}

#[test]
fn a_plugin_sees_what_containerd_gives() {
    let node = Node::new(NodeOptions::default());
    let (runtime, mut conflist) = with(&node, &["witness"]);
    conflist["plugins"][1]["capabilities"] =
        json!({"io.kubernetes.cri.pod-annotations": true, "portMappings": true, "ips": false});
    let mut pod = Pod::new("shop", "cart").annotation("note", "a \"quoted\" value");
    pod.capability_args.insert("bandwidth".into(), json!({}));
    pod.capability_args.insert("portMappings".into(), json!([]));
    let pod = node.add_pod(&runtime, &conflist, pod).unwrap();
    let call = &recorded(&node, "witness")[0];
    assert_eq!(call[0], "ADD");
    assert_eq!(call[1], pod.netns_path());
    assert_eq!((call[3].as_str(), call[4].as_str()), ("/", "1"), "working directory, the node's own link");
    let mut args: Vec<_> = call[2].split(';').collect();
    args.sort_unstable();
    let (id, uid) = (&pod.pod.container_id, &pod.pod.uid);
    let expected = [
        "IgnoreUnknown=1".to_owned(),
        format!("K8S_POD_INFRA_CONTAINER_ID={id}"),
        "K8S_POD_NAME=cart".to_owned(),
        "K8S_POD_NAMESPACE=shop".to_owned(),
        format!("K8S_POD_UID={uid}"),
    ];
    assert_eq!(args, expected);
    let stdin: Value = serde_json::from_str(&call[5]).unwrap();
    assert_eq!(stdin["name"], "kit");
    assert_eq!(stdin["cniVersion"], "1.0.0");
    assert_eq!(stdin["prevResult"], pod.result);
    let annotations = json!({"note": "a \"quoted\" value", "kubernetes.io/config.source": "api"});
    let offered = json!({"io.kubernetes.cri.pod-annotations": annotations, "portMappings": []});
    assert_eq!(stdin["runtimeConfig"], offered);
}

#[test]
fn the_order_of_the_keys_of_cni_args_changes_from_call_to_call() {
    let node = Node::new(NodeOptions::default());
    let (runtime, conflist) = with(&node, &["witness"]);
    let pod = node.add_pod(&runtime, &conflist, Pod::new("default", "keys")).unwrap();
    for _ in 0..4 {
        runtime.single("CHECK", &conflist, "witness", &pod.pod, "", &pod.result);
    }
    let first_keys: std::collections::BTreeSet<_> =
        recorded(&node, "witness").iter().map(|call| call[2].split('=').next().unwrap().to_owned()).collect();
    assert!(first_keys.len() > 1, "{first_keys:?}");
}

#[test]
fn a_failed_add_is_undone_at_once_and_reported() {
    let node = Node::new(NodeOptions::default());
    let (runtime, mut conflist) = with(&node, &["witness"]);
    let failing = plugin(
        &node,
        "failing",
        r#"test $CNI_COMMAND != ADD || { echo '{"code":11,"msg":"later"}'; exit 1; }"#,
    );
    conflist["plugins"].as_array_mut().unwrap().push(json!({"type": "failing"}));
    let runtime = runtime.with_plugins(&failing);
    let error = node.add_pod(&runtime, &conflist, Pod::new("default", "failing")).unwrap_err();
    assert_eq!((error.code(), error.failed.plugin.as_str()), (Some(11), "failing"));
    assert_eq!(
        order(&error.calls),
        ["ADD ptp", "ADD witness", "ADD failing", "DEL failing", "DEL witness", "DEL ptp"]
    );
    assert!(error.calls[3..].iter().all(|call| call.stdin.get("prevResult").is_none()));
    assert!(
        node.netns().sh("ip -brief link").lines().all(|line| !line.starts_with("veth")),
        "ptp was undone"
    );
}

#[test]
fn a_plugin_whose_time_is_up_is_killed() {
    let node = Node::new(NodeOptions::default());
    let slow = plugin(&node, "slow", "test $CNI_COMMAND != ADD || exec sleep 60");
    let runtime = node.runtime().with_plugins(&slow).with_limit(Duration::from_millis(500));
    let conflist = node.conflist(&[json!({"type": "slow"})]);
    let error = node.add_pod(&runtime, &conflist, Pod::new("default", "slow")).unwrap_err();
    assert!(error.failed.output.killed, "{error}");
    assert!(error.failed.output.wall < Duration::from_secs(50));
}

#[test]
fn a_plugin_can_be_killed_in_the_middle_of_add_and_its_del_still_runs() {
    let node = Node::new(NodeOptions::default());
    let slow = plugin(&node, "slow", "test $CNI_COMMAND != ADD && sleep 0.3 || exec sleep 60");
    let runtime = node.runtime().with_plugins(&slow).with_kill("slow", Duration::from_millis(50));
    let conflist = node.conflist(&[json!({"type": "slow"})]);
    let error = node.add_pod(&runtime, &conflist, Pod::new("default", "killed")).unwrap_err();
    assert!(error.failed.output.killed, "{error}");
    assert_eq!(order(&error.calls), ["ADD ptp", "ADD slow", "DEL slow", "DEL ptp"]);
    assert!(error.calls[2..].iter().all(|call| call.output.status.success()));
}

#[test]
fn status_and_gc_are_called_as_cni_1_1_says() {
    let node = Node::new(NodeOptions::default());
    let (runtime, mut conflist) = with(&node, &["witness"]);
    conflist["plugins"].as_array_mut().unwrap().remove(0); // Debian's ptp does not support them
    conflist["cniVersion"] = json!("1.1.0");
    runtime.status(&conflist).unwrap();
    runtime.gc(&conflist, &[("id", "eth0")]).unwrap();
    let calls = recorded(&node, "witness");
    assert_eq!((calls[0][0].as_str(), calls[0][2].as_str()), ("STATUS", ""));
    let stdin: Value = serde_json::from_str(&calls[1][5]).unwrap();
    assert_eq!(stdin["cni.dev/valid-attachments"], json!([{"containerID": "id", "ifname": "eth0"}]));
}

#[test]
fn check_succeeds_for_a_pod_that_is_intact_and_fails_for_one_that_is_not() {
    let node = Node::new(NodeOptions::default());
    let pod = node.pod(Pod::new("default", "checked"), &[]);
    pod.check().unwrap();
    pod.netns.sh("ip address flush dev eth0");
    pod.check().unwrap_err();
}
