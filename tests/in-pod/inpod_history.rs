//! In-pod capture: changes can be queried later, also after a restart of the agent and without one.

use serde_json::Value;

use crate::fixtures::ambient::{Ambient, MESH};
use crate::fixtures::inpod::{IPTABLES, InPod};

/// Output of `install-cni history`.
fn history(fixture: &Ambient, arguments: &[&str]) -> String {
    let shown = fixture.container.exec(&[&["history"], arguments].concat());
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    String::from_utf8(shown.stdout).unwrap()
}

/// Pod and action of each change in the history.
fn changes(fixture: &Ambient, arguments: &[&str]) -> Vec<(Option<String>, String)> {
    let changes = history(fixture, &[arguments, &["-o", "json"]].concat());
    let changes: Vec<Value> = serde_json::from_str(&changes).unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    changes.iter().map(|change| (text(&change["pod"]), text(&change["action"]).unwrap())).collect()
}

#[test]
fn the_process_that_changes_rules_for_probes_is_named_if_that_is_wanted() {
    let (mut fixture, _ztunnel) = InPod::with_ztunnel(&[IPTABLES, ("DRIFT_ATTRIBUTION", "node")]);
    let _app = fixture.captured_pod("app");
    fixture.node.netns().sh("nft flush chain ip nat ISTIO_POSTRT");
    fixture.eventually("the history names it", |fixture| {
        history(fixture, &[]).contains("drift, changed by nft (process ")
    });
}

#[test]
fn what_was_changed_outlives_the_agent() {
    let (mut fixture, ztunnel) = InPod::with_ztunnel(&[IPTABLES]);
    let [app, other] = ["app", "other"].map(|name| fixture.mesh_pod(name));
    for peer in [&app, &other] {
        fixture.wait_captured(peer);
    }
    let jumps = app.sandbox.netns.sh("iptables-nft -t nat -S OUTPUT");
    app.sandbox.netns.sh("nft flush ruleset");
    fixture.eventually("it is repaired", |_| app.sandbox.netns.sh("iptables-nft -t nat -S OUTPUT") == jumps);
    let pod = format!("{MESH}/app");
    fixture.eventually("the repair is in the history", |fixture| {
        changes(fixture, &[&pod]).iter().any(|(_, action)| action.starts_with("restored: "))
    });
    drop(ztunnel);
    fixture.eventually("so is the end of ztunnel", |fixture| {
        changes(fixture, &[]).iter().any(|(_, action)| action == "ztunnel connections: 1 → 0")
    });
    let before = history(&fixture, &[]);
    println!("{before}");
    fixture.daemon.take().unwrap().kill();
    assert_eq!(history(&fixture, &[]), before, "without an agent");
    fixture.start();
    assert!(history(&fixture, &[]).starts_with(&before), "the next agent goes on");
    // The newest is the last.
    let of_pod = history(&fixture, &[&pod]);
    let changes = changes(&fixture, &[&pod]);
    let first = |what: &str| changes.iter().position(|(_, action)| action.starts_with(what)).expect(what);
    assert!(first("applied: ") < first("restored: "), "{of_pod}");
    assert!(changes.iter().all(|(of, _)| of.as_deref() == Some(&pod)), "{of_pod}");
    assert!(of_pod.contains("changed by nft (process "), "{of_pod}");
    let parsed: Value = serde_json::from_str(&history(&fixture, &["-n", MESH, "-o", "json"])).unwrap();
    let pods: Vec<&str> = parsed.as_array().unwrap().iter().filter_map(|one| one["pod"].as_str()).collect();
    assert!(pods.contains(&"mesh/app") && pods.contains(&"mesh/other"), "{parsed}");
    assert!(parsed.as_array().unwrap().iter().any(|one| one["cause"] == "drift"), "{parsed}");
    let wrong = fixture.container.exec(&["history", "app"]);
    assert_eq!(wrong.status.code(), Some(2), "a pod has a namespace");
}
