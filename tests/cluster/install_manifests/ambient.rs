//! The manifest with ambient mode: its additions to the other one.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::documents::{AMBIENT, IN_POD, SIDECAR, documents_of};

pub(super) fn document(file: &str, kind: &str) -> Value {
    documents_of(file).into_iter().find(|document| document["kind"] == kind).unwrap()
}

pub(super) fn names(list: &Value) -> BTreeSet<String> {
    let entries = list.as_array().unwrap().iter();
    entries.map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
}

fn beyond(list: impl Fn(&Value) -> Value) -> (BTreeSet<String>, BTreeSet<String>) {
    let of = |file: &str| names(&list(&document(file, "DaemonSet")["spec"]["template"]["spec"]));
    let (less, more) = (of(SIDECAR), of(AMBIENT));
    (more.difference(&less).cloned().collect(), less.difference(&more).cloned().collect())
}

pub(super) fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn the_pods_have_what_ambient_mode_needs_and_all_that_the_others_have() {
    let env = beyond(|spec| spec["containers"][0]["env"].clone());
    let more =
        ["AMBIENT_CAPTURE", "AMBIENT_ENABLED", "EXCLUDE_NAMESPACES", "NO_ZTUNNEL_POLICY", "SYSTEM_NAMESPACE"];
    assert_eq!(env, (set(&more), set(&[])));
    let mounts = ["cni-ambient-config-dir", "xtables-lock"];
    assert_eq!(beyond(|spec| spec["containers"][0]["volumeMounts"].clone()), (set(&mounts), set(&[])));
    assert_eq!(beyond(|spec| spec["volumes"].clone()), (set(&mounts), set(&[])));
    let spec = document(AMBIENT, "DaemonSet")["spec"]["template"]["spec"].clone();
    assert_eq!(spec["hostNetwork"], json!(true), "it works on the node's network");
    assert_eq!(spec["containers"][0]["securityContext"]["privileged"], json!(true));
    let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap().clone();
    let netns = mounts.iter().find(|mount| mount["name"] == "cni-netns-dir").unwrap();
    assert_eq!(netns["mountPropagation"], "HostToContainer", "namespaces come and go while it runs");
    assert_eq!(netns["mountPath"], "/var/run/netns", "where the daemon looks by default");
}

#[test]
fn the_account_may_follow_pods_and_namespaces_and_mark_pods_and_nothing_else_beyond() {
    let rules = |file: &str| -> Vec<Value> {
        let roles = documents_of(file).into_iter().filter(|one| one["kind"] == "ClusterRole");
        roles.flat_map(|role| role["rules"].as_array().unwrap().clone()).collect()
    };
    let less = rules(SIDECAR);
    for file in [AMBIENT, IN_POD] {
        let more: Vec<Value> = rules(file).into_iter().filter(|rule| !less.contains(rule)).collect();
        let [follow, mark] = &more[..] else { panic!("{more:?}") };
        let read = json!(["get", "list", "watch"]);
        assert_eq!((&follow["resources"], &follow["verbs"]), (&json!(["pods", "namespaces"]), &read));
        assert_eq!((&mark["resources"], &mark["verbs"]), (&json!(["pods/status"]), &json!(["patch"])));
        assert_eq!(document(file, "Role"), document(SIDECAR, "Role"));
    }
}

#[test]
fn the_entry_is_that_of_the_other_with_ambient_mode_on() {
    let entry = |file: &str| -> Value {
        let text = document(file, "ConfigMap")["data"]["cni_network_config"].as_str().unwrap().to_owned();
        serde_json::from_str(&text).unwrap()
    };
    let mut wanted = entry(SIDECAR);
    wanted["ambient_enabled"] = json!(true);
    assert_eq!([AMBIENT, IN_POD].map(entry), [wanted.clone(), wanted]);
}
