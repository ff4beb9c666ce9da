//! Broken pods that are labelled or deleted.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use super::*;

const KEY: &str = "cni.istio.io/uninitialized";

fn label_of(node: &RepairNode, name: &str) -> Value {
    node.get(name)["metadata"]["labels"][KEY].clone()
}

fn is_terminating(node: &RepairNode, name: &str) -> bool {
    node.get(name)["metadata"]["deletionTimestamp"].is_string()
}

/// Requests so far to delete a pod.
fn deletions(node: &RepairNode) -> usize {
    let requests = node.0.api.requests_with(&format!("{}/pods/", node.0.name));
    requests.iter().filter(|request| request.verb == "delete").count()
}

#[test]
fn broken_pods_are_labelled_once_and_others_are_left_alone() {
    let Some(node) = RepairNode::start("repair-label", &label_rights(), "REPAIR_LABEL_PODS") else { return };
    let first = node.broken("before");
    node.create("healthy", |_| {});
    node.create("other-code", |_| {});
    node.fail("other-code", 1);
    node.create("plain", |pod| pod["metadata"]["annotations"] = json!({}));
    node.fail("plain", 126);
    node.create("elsewhere", |pod| pod["spec"]["nodeName"] = json!("another-node"));
    node.fail("elsewhere", 126);
    node.create("labelled", |pod| pod["metadata"]["labels"] = json!({KEY: "by-hand"}));
    node.fail("labelled", 126);
    let mut daemon = node.0.daemon();
    kit::until("it is labelled", || label_of(&node, "before") == json!("true"));
    // Its first failure: no restart yet.
    node.create("after", |_| {});
    node.tell("after", &json!({"state": {"terminated": {"exitCode": 126, "reason": "Error"}}}));
    kit::until("so is the one that breaks later", || label_of(&node, "after") == json!("true"));
    daemon.wait_for("they are counted", |daemon| {
        (repairs(daemon, "label", "success"), repairs(daemon, "label", "skip")) == (2.0, 1.0)
    });
    let event = || node.events(&first["metadata"]["uid"], "LabelBrokenPod");
    kit::until("it is told", || event().len() == 1);
    let label = "cni.istio.io/uninitialized=true";
    let failed = "its init container istio-validation failed with exit code 126";
    assert_eq!(event()[0]["message"], format!("{failed}; labelled {label}"));
    assert_eq!(event()[0]["type"], "Warning", "as in Istio");
    for name in ["healthy", "other-code", "plain", "elsewhere"] {
        assert!(label_of(&node, name).is_null(), "{name}");
    }
    assert_eq!(label_of(&node, "labelled"), "by-hand");
    assert_eq!(repairs(&daemon, "label", "fail"), 0.0);
    node.assert_allowed();
    // The next agent finds everything done.
    let versions = ["before", "after", "labelled"].map(|name| node.version(name));
    drop(daemon);
    let mut daemon = node.0.daemon();
    daemon.wait_for("it has looked at them", |daemon| repairs(daemon, "label", "skip") >= 3.0);
    assert_eq!(["before", "after", "labelled"].map(|name| node.version(name)), versions);
}

#[test]
fn broken_pods_are_deleted_but_none_that_nobody_would_replace() {
    let Some(node) = RepairNode::start("repair-delete", &delete_rights(), "REPAIR_DELETE_PODS") else {
        return;
    };
    let web = node.broken("web");
    let owned =
        json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u-1", "controller": true}]);
    node.create("job", |pod| {
        pod["spec"]["restartPolicy"] = json!("Never");
        pod["metadata"]["ownerReferences"] = owned;
    });
    let bare = node.create("bare", |pod| pod["spec"]["restartPolicy"] = json!("Never"));
    for name in ["job", "bare"] {
        node.tell(name, &json!({"state": {"terminated": {"exitCode": 126, "reason": "Error"}}}));
        node.0.api.admin().patch_status(&node.path(name), &json!({"phase": "Failed"}));
    }
    let mut daemon = node.0.daemon();
    daemon.wait_for("all are handled", |daemon| {
        (repairs(daemon, "delete", "success"), repairs(daemon, "delete", "skip")) == (2.0, 1.0)
    });
    kit::until("it is told", || {
        node.events(&web["metadata"]["uid"], "DeleteBrokenPod").len() == 1
            && node.events(&bare["metadata"]["uid"], "RepairSkipped").len() == 1
    });
    // A pod that was bound to a node stays until its kubelet has ended it; one that has ended is deleted immediately.
    assert!(is_terminating(&node, "web") && !is_terminating(&node, "bare"));
    let job = node.0.api.admin().request("GET", &node.path("job"), None);
    assert_eq!(job.status, 404);
    node.assert_allowed();
    assert_eq!(repairs(&daemon, "delete", "fail"), 0.0);
}

/// The plugin would not redirect the pods that replace these either, so they would be deleted again and again.
#[test]
fn pods_that_the_plugin_does_not_redirect_are_not_deleted() {
    let Some(mut node) = RepairNode::start("repair-unwanted", &delete_rights(), "REPAIR_DELETE_PODS") else {
        return;
    };
    let file = node.0.container.root().join("etc/template");
    std::fs::write(&file, kit::NETWORK_CONFIG.replace("kube-system", node.0.name)).unwrap();
    node.0.container.set_env("CNI_NETWORK_CONFIG_FILE", "/etc/template");
    let web = node.broken("web");
    let failed = "its init container istio-validation failed with exit code 126";
    let skipped = |why: &str, uid: &Value| {
        kit::until("it is told", || node.events(uid, "RepairSkipped").len() == 1);
        let event = node.events(uid, "RepairSkipped").remove(0);
        assert_eq!(event["message"], format!("{failed}; not redirected: {why}"));
    };
    let daemon = node.0.daemon();
    skipped("its namespace is in kubernetes.exclude_namespaces", &web["metadata"]["uid"]);
    drop(daemon);
    std::fs::write(&file, kit::NETWORK_CONFIG).unwrap();
    let none = node.create("none", |pod| {
        pod["metadata"]["annotations"]["sidecar.istio.io/interceptionMode"] = json!("NONE");
    });
    node.fail("none", 126);
    let mut daemon = node.0.daemon();
    daemon.wait_for("both are handled", |daemon| {
        (repairs(daemon, "delete", "success"), repairs(daemon, "delete", "skip")) == (1.0, 1.0)
    });
    skipped(&enrolment::SkipReason::InterceptionNone.to_string(), &none["metadata"]["uid"]);
    assert!(is_terminating(&node, "web") && !is_terminating(&node, "none"));
    let event = || node.events(&web["metadata"]["uid"], "DeleteBrokenPod");
    kit::until("it is told", || event().len() == 1);
    assert_eq!(event()[0]["message"], format!("{failed}; deleted; it has no controller that replaces it"));
    node.assert_allowed();
}

/// A missing permission is logged, and retried: it may be granted.
#[test]
fn what_the_api_server_refuses_is_counted_told_and_tried_again() {
    let Some(node) = RepairNode::start("repair-refused", &rights(None), "REPAIR_DELETE_PODS") else { return };
    let web = node.broken("web");
    let mut daemon = node.0.daemon();
    daemon.wait_for("it was tried three times", |daemon| repairs(daemon, "delete", "fail") >= 3.0);
    kit::until("it is told", || !node.events(&web["metadata"]["uid"], "RepairFailed").is_empty());
    let event = node.events(&web["metadata"]["uid"], "RepairFailed").remove(0);
    let account = "system:serviceaccount:repair-refused:istio-cni";
    let refusal = format!(
        "pods \"web\" is forbidden: User \"{account}\" cannot delete resource \"pods\" in API group \"\" in the namespace \
         \"repair-refused\" (403)"
    );
    assert_eq!(event["message"], format!("cannot delete pod repair-refused/web: {refusal}"));
    assert!(!is_terminating(&node, "web"));
    // The back-off grows: few requests are sent.
    assert!(repairs(&daemon, "delete", "fail") <= 5.0);
}

/// The API server refuses a request that names an older version of a pod.
#[test]
fn a_pod_that_changes_meanwhile_is_tried_again_and_no_failure() {
    let Some(node) = RepairNode::start("repair-changing", &delete_rights(), "REPAIR_DELETE_PODS") else {
        return;
    };
    let names: Vec<String> = (0..5).map(|at| format!("pod-{at}")).collect();
    names.iter().for_each(|name| drop(node.broken(name)));
    let ends = AtomicBool::new(false);
    let daemon = std::thread::scope(|scope| {
        for name in &names {
            let (node, ends) = (&node, &ends);
            scope.spawn(move || {
                for round in 0_u64.. {
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                    let message = json!({"message": round.to_string()});
                    node.0.api.admin().patch_status(&node.path(name), &message);
                }
            });
        }
        let daemon = node.0.daemon();
        let retried = kit::found_within(Duration::from_secs(20), || deletions(&node) > names.len());
        ends.store(true, Ordering::Relaxed);
        assert!(retried.is_some(), "no pod had changed meanwhile");
        daemon
    });
    kit::until("all are deleted", || names.iter().all(|name| is_terminating(&node, name)));
    assert_eq!(repairs(&daemon, "delete", "fail"), 0.0, "{}", daemon.log());
}

#[test]
fn a_dry_run_changes_nothing() {
    let Some(node) = RepairNode::start("repair-dry", &delete_rights(), "REPAIR_DELETE_PODS") else { return };
    let node = RepairNode(node.0.with_env("REPAIR_DRY_RUN", "true"));
    let web = node.broken("web");
    let version = node.version("web");
    let mut daemon = node.0.daemon();
    daemon.wait_for("it was looked at", |daemon| repairs(daemon, "delete", "skip") == 1.0);
    assert_eq!(node.version("web"), version);
    kit::until("it is told", || node.events(&web["metadata"]["uid"], "RepairSkipped").len() == 1);
}

/// As after a rollout that broke the plugin: all are handled, at ten a second at most.
#[test]
fn five_hundred_at_once_are_handled_at_a_bounded_rate() {
    let Some(node) = RepairNode::start("repair-many", &label_rights(), "REPAIR_LABEL_PODS") else { return };
    for number in 0..500 {
        node.broken(&format!("pod-{number}"));
    }
    let began = Instant::now();
    let mut daemon = node.0.container.start();
    daemon.wait_until_ready();
    let limit = Duration::from_secs(240); // the API server may take longer than the agent's 100 ms for each
    kit::until_within(limit, "all are labelled", || repairs(&daemon, "label", "success") >= 500.0);
    let seconds = began.elapsed().as_secs_f64();
    let patches = node.0.api.requests_with("repair-many/pods/");
    let patches =
        patches.iter().filter(|request| request.verb == "patch" && kit::has_segment(&request.uri, "status"));
    let own = patches.filter(|request| request.user == "system:serviceaccount:repair-many:istio-cni").count();
    assert_eq!(own, 500, "one each");
    assert!(500.0 / seconds <= 11.0, "{seconds} s");
    assert_eq!(repairs(&daemon, "label", "fail"), 0.0);
}

/// The watch reports pods that break; healthy ones cause no request.
#[test]
fn two_hundred_and_fifty_healthy_pods_cost_no_request() {
    let Some(node) = RepairNode::start("repair-healthy", &delete_rights(), "REPAIR_DELETE_PODS") else {
        return;
    };
    for number in 0..250 {
        let name = format!("pod-{number}");
        node.create(&name, |_| {});
        let done = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        node.tell(&name, &json!({"state": done}));
    }
    let mut daemon = node.0.daemon();
    let canary = node.broken("canary");
    daemon.wait_for("it watches", |daemon| repairs(daemon, "delete", "success") == 1.0);
    kit::until("the last request", || node.events(&canary["metadata"]["uid"], "DeleteBrokenPod").len() == 1);
    let about_pods = || {
        let all = node.0.api.requests();
        let own =
            all.iter().filter(|request| request.user == "system:serviceaccount:repair-healthy:istio-cni");
        own.filter(|request| request.resource == "pods" || request.resource == "events").count()
    };
    let (requests, cpu) = (about_pods(), daemon.cpu_time());
    kit::holds_for(Duration::from_secs(5), "it sends no request", || about_pods() == requests);
    println!("CPU at rest in 5 s: {:?}", daemon.cpu_time().saturating_sub(cpu));
}

/// The API server compares UID and version: a successor with the name of a broken pod is not deleted.
#[test]
fn a_successor_of_the_same_name_is_not_deleted() {
    let Some(node) = RepairNode::start("repair-successor", &delete_rights(), "REPAIR_DELETE_PODS") else {
        return;
    };
    let mut daemon = node.0.daemon();
    for round in 1..=10 {
        node.broken("web");
        let replace = || {
            let now = json!({"gracePeriodSeconds": 0, "kind": "DeleteOptions", "apiVersion": "v1"});
            node.0.api.admin().request("DELETE", &node.path("web"), Some(&now));
            node.create("web", |_| {})
        };
        // In several rounds before, in others after the agent has seen that it is broken.
        std::thread::sleep(Duration::from_millis(7 * round));
        let successor = replace();
        daemon.wait_for("nothing is broken", |daemon| {
            daemon.metric("istio_cni_repair_broken_pods") == Some(0.0)
        });
        let there = node.get("web");
        assert_eq!(there["metadata"]["uid"], successor["metadata"]["uid"]);
        assert!(there["metadata"]["deletionTimestamp"].is_null(), "round {round}: {}", daemon.log());
        let now = json!({"gracePeriodSeconds": 0, "kind": "DeleteOptions", "apiVersion": "v1"});
        node.0.api.admin().request("DELETE", &node.path("web"), Some(&now));
    }
}

/// Failed attempts are counted and repeated, and if a pod was replaced meanwhile, its successor is not changed.
#[test]
fn an_api_server_that_goes_away_meanwhile_delays_repairs_and_loses_none() {
    let Some(node) = RepairNode::start("repair-outage", &label_rights(), "REPAIR_LABEL_PODS") else { return };
    // Many enough to be cut off before the last one, at ten a second.
    let names: Vec<String> = (0..60).map(|number| format!("p{number}")).collect();
    for name in &names {
        node.broken(name);
    }
    let mut daemon = node.0.daemon();
    daemon.wait_for("some are labelled", |daemon| repairs(daemon, "label", "success") >= 3.0);
    node.0.cut_off("REJECT --reject-with tcp-reset");
    node.0.node.netns().sh("ss --kill --tcp state established dport = :6443");
    daemon.wait_for("attempts fail", |daemon| repairs(daemon, "label", "fail") >= 3.0);
    let waiting: Vec<&String> = names.iter().filter(|name| label_of(&node, name).is_null()).collect();
    let (gone, replaced) = (waiting[waiting.len() - 1], waiting[waiting.len() - 2]);
    for name in [gone, replaced] {
        node.0.api.admin().delete(&node.path(name));
    }
    node.create(replaced, |_| {});
    let before = node.version(replaced);
    node.0.connect();
    for name in names.iter().filter(|name| ![gone, replaced].contains(name)) {
        kit::until(format_args!("{name} is labelled"), || label_of(&node, name) == json!("true"));
    }
    assert_eq!(node.version(replaced), before, "a healthy successor");
    let labelled = repairs(&daemon, "label", "success");
    // A request whose response was lost was applied, too, and is not counted.
    assert!((3.0..=60.0).contains(&labelled), "each once: {labelled}");
    node.assert_allowed();
}
