//! `install-cni check` for node-level capture: a healthy node has no findings, and numbers used by another component are reported.

use std::{collections::BTreeMap, process::Output};

use kit::NodeOptions;
use serde_json::Value;

use crate::fixtures::ambient::{Ambient, MESH};

/// Exit status, and severity and message of the checks that did not pass, by code.
fn check(fixture: &Ambient) -> (i32, BTreeMap<String, (String, String)>) {
    failed_checks(&fixture.container.exec(&["check", "-o", "json", "--fail-on", "warning"]))
}

fn failed_checks(output: &Output) -> (i32, BTreeMap<String, (String, String)>) {
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    // The tests' token has no times, which is no finding.
    (output.status.code().unwrap(), failed_among(&answer["checks"]))
}

fn failed_among(checks: &Value) -> BTreeMap<String, (String, String)> {
    let failed = checks.as_array().unwrap().iter().filter_map(|check| {
        let text = |member: &str| Some(check[member].as_str()?.to_owned());
        Some((text("code")?, (text("severity")?, text("message")?)))
    });
    failed.collect()
}

#[test]
fn a_priority_and_a_table_that_are_taken_are_found_with_and_without_an_agent() {
    let mut fixture = Ambient::stopped(NodeOptions::default(), &[("AMBIENT_CAPTURE", "node")]);
    assert_eq!(check(&fixture), (0, BTreeMap::new()));
    fixture.start();
    assert_eq!(check(&fixture), (0, BTreeMap::new()));
    fixture.node.netns().sh("ip rule add priority 102 fwmark 0x100/0x100 lookup 7");
    let (status, failed) = check(&fixture);
    let found = "rule 102: from all fwmark 0x100/0x100 lookup 7";
    let expected = ("error".to_owned(), found.to_owned());
    assert_eq!((status, failed), (1, BTreeMap::from([("numbers-taken".to_owned(), expected)])));
}

/// By default, the capture mode follows from the present ztunnel.
#[test]
fn rules_in_the_namespace_of_ztunnel_are_not_taken_for_those_of_another_component() {
    let mut fixture = Ambient::new(&[]);
    let _ztunnel = fixture.ztunnel("ztunnel-a");
    let _pod = fixture.pod(MESH, "web");
    fixture.settle();
    let (_, failed) = check(&fixture);
    assert!(!failed.contains_key("pod-numbers-taken"), "{failed:?}");
    fixture.restart();
    let state = fixture.container.exec(&["state", "-o", "json"]).stdout;
    let state: Value = serde_json::from_slice(&state).unwrap();
    let failed = failed_among(&state["preflight"]);
    assert!(!failed.contains_key("pod-numbers-taken"), "{failed:?}");
}

/// As in an unprivileged container.
#[test]
fn settings_that_cannot_be_written_are_found_where_they_are_needed() {
    let needed = Ambient::stopped(NodeOptions::default(), &[("AMBIENT_CAPTURE", "node")]);
    let unneeded = Ambient::stopped(NodeOptions::default(), &[("AMBIENT_CAPTURE", "in-pod")]);
    let read_only = |fixture: &Ambient| {
        let check = ["check", "-o", "json", "--fail-on", "warning"];
        failed_checks(&fixture.container.exec_with(&check, &["/proc/sys"]))
    };
    assert_eq!(check(&needed), (0, BTreeMap::new()));
    assert_eq!(read_only(&unneeded), (0, BTreeMap::new()));
    let why = "cannot set sysctl net/ipv4/conf/lo/accept_local to \"1\": Read-only file system (os error 30)";
    let expected = ("error".to_owned(), why.to_owned());
    assert_eq!(read_only(&needed), (1, BTreeMap::from([("kernel-settings".to_owned(), expected)])));
    // Without a namespace to try it in, the result is unknown.
    let mut denied = Ambient::stopped(NodeOptions::default(), &[("AMBIENT_CAPTURE", "node")]);
    denied.container.set_refused("netns");
    let (status, failed) = check(&denied);
    assert_eq!((status, failed["kernel-settings"].0.as_str()), (2, "unknown"), "{failed:?}");
}

#[test]
fn legacy_tables_in_use_without_a_tool_for_them_are_found() {
    let mut fixture = Ambient::stopped(NodeOptions::default(), &[("AMBIENT_CAPTURE", "node")]);
    fixture.node.netns().sh("iptables-legacy -w -t nat -A POSTROUTING -j ACCEPT");
    let empty = kit::TempDir::new().unwrap();
    fixture.mount(empty.path(), "/usr/sbin");
    let (status, failed) = check(&fixture);
    assert_eq!((status, failed["legacy-tables"].0.as_str()), (1, "warning"), "{failed:?}");
}
