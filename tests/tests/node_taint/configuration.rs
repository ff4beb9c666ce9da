//! The ConfigMap.

use serde_json::json;

use super::scene::{Rights, TaintScene, assert_allowed};
use crate::install_api::scene::eventually;

#[test]
fn every_selector_needs_a_pod_of_its_own() {
    let Some(scene) = TaintScene::start("taint-several", Rights::Istio) else { return };
    scene.configure(&json!({
        "config": "- {name: cni, selector: 'app=t-cni,t-role in (x,y)', namespace: kube-system}\n",
        "more": "- {name: dns, selector: app=t-dns, namespace: kube-system}\n",
    }));
    scene.create_ready_node("a", &json!([]));
    let daemon = scene.controller();
    scene.wait_until("a", true);
    for (name, labels) in [
        ("one", json!({"app": "t-cni"})),
        ("two", json!({"t-role": "y"})),
        ("three", json!({"app": "t-dns"})),
    ] {
        assert!(scene.is_tainted("a"), "{name} is missing");
        scene.create_labelled_pod(name, "a", &labels);
        scene.set_pod_ready(name, true);
        // The controller has seen it: it also knows of a node that came after it.
        scene.create_ready_node(name, &json!([]));
        scene.wait_until(name, true);
    }
    scene.wait_until("a", false);
    // A pod that loses its label is none of them any more.
    scene.api.admin().patch(&scene.pod_path("two"), &json!({"metadata": {"labels": {"t-role": "z"}}}));
    scene.wait_until("a", true);
    assert_allowed(&daemon);
}

#[test]
fn without_a_valid_configuration_nothing_is_changed_and_an_edit_needs_no_restart() {
    let Some(scene) = TaintScene::start("taint-config", Rights::Manifest) else { return };
    scene.configure(&json!({"config": "- name: a\n  selector: [", "x": "- text"}));
    scene.create_ready_node("tainted", &json!([{"key": "NodeReadiness", "effect": "NoSchedule"}]));
    scene.create_ready_node("free", &json!([]));
    let mut daemon = scene.controller();
    daemon.wait_for("it reports the mistake", |daemon| {
        daemon.logged("cannot read the configuration", "key \\\"config\\\"")
            + daemon.logged("cannot read the configuration", "key \"config\"")
            == 1
    });
    assert!(scene.is_tainted("tainted") && !scene.is_tainted("free"));
    assert_eq!(scene.requests("nodes").len(), 0, "it does not even look at nodes");
    // Valid: it demands a pod.
    scene.configure(&json!({"config": "- {selector: app=t-none, namespace: kube-system}"}));
    scene.wait_until("free", true);
    // Invalid again: what was valid stays.
    scene.configure(&json!({"config": "- {selector: 'a b', namespace: kube-system}"}));
    daemon.wait_for("it reports the mistake", |daemon| {
        daemon.log().matches("cannot read the configuration").count() == 2
    });
    assert!(daemon.logged("cannot read the configuration", "previous_is_kept") > 0, "{}", daemon.log());
    scene.create_ready_node("new", &json!([]));
    scene.wait_until("new", true);
    // Nothing is demanded: nodes only have to be ready themselves.
    scene.configure(&json!({"config": "[]"}));
    for name in ["tainted", "free", "new"] {
        scene.wait_until(name, false);
    }
    assert_allowed(&daemon);
}

/// What is not there is not the same as what demands nothing: somebody may be replacing it.
#[test]
fn a_configuration_that_is_deleted_stays_in_force() {
    let Some(scene) = TaintScene::start("taint-deleted", Rights::Manifest) else { return };
    scene.create_ready_node("a", &json!([]));
    let mut daemon = scene.controller();
    scene.wait_until("a", true);
    scene.api.admin().delete("/api/v1/namespaces/kube-system/configmaps/taint-deleted-configmap");
    daemon.wait_for("it is reported", |daemon| daemon.logged("cannot read the configuration", "(404)") == 1);
    scene.create_ready_node("b", &json!([]));
    scene.wait_until("b", true);
    assert!(scene.is_tainted("a"));
}

#[test]
fn a_single_pass_evaluates_every_node_and_ends() {
    let Some(mut scene) = TaintScene::start("taint-once", Rights::Manifest) else { return };
    for number in 0..12 {
        scene.create_ready_node(&format!("n{number}"), &json!([]));
    }
    scene.create_ready_node("good", &json!([{"key": "NodeReadiness", "effect": "NoSchedule"}]));
    scene.create_ready_pod("p", "good");
    scene.container.set_env("TAINT_RUN-AS-DAEMON", "false");
    let mut daemon = scene.controller();
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert!((0..12).all(|number| scene.is_tainted(&format!("n{number}"))));
    assert!(!scene.is_tainted("good"));
    assert_eq!(scene.requests("leases").len(), 0, "nobody is led");
    // The flag wins over the variable.
    scene.container.set_env("TAINT_RUN-AS-DAEMON", "true");
    let mut daemon = scene.container.start_with(&["--run-as-daemon=false"], &[]);
    assert!(daemon.wait().success(), "{}", daemon.log());
    scene.configure(&json!({"config": "- text"}));
    let mut daemon = scene.container.start_with(&["--run-as-daemon=false"], &[]);
    assert_eq!(daemon.wait().code(), Some(1));
    eventually("the reason", || daemon.log().contains("key \"config\": the value is no list"));
}
