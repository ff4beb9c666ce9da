//! The ConfigMap.

use serde_json::json;

use super::fixture::{Rights, TaintFixture};

#[test]
fn every_selector_needs_a_pod_of_its_own() {
    let Some(fixture) = TaintFixture::start("taint-several", Rights::Istio) else { return };
    fixture.configure(&json!({
        "config": "- {name: cni, selector: 'app=t-cni,t-role in (x,y)', namespace: kube-system}\n",
        "more": "- {name: dns, selector: app=t-dns, namespace: kube-system}\n",
    }));
    fixture.create_ready_node("a", &json!([]));
    let _daemon = fixture.controller();
    fixture.wait_until("a", true);
    for (name, labels) in [
        ("one", json!({"app": "t-cni"})),
        ("two", json!({"t-role": "y"})),
        ("three", json!({"app": "t-dns"})),
    ] {
        assert!(fixture.is_tainted("a"), "{name} is missing");
        fixture.create_labelled_pod(name, "a", &labels);
        fixture.set_pod_ready(name, true);
        // The controller has processed it once it has processed a node created later.
        fixture.create_ready_node(name, &json!([]));
        fixture.wait_until(name, true);
    }
    fixture.wait_until("a", false);
    // A pod that loses its label is not selected any more.
    fixture.api.admin().patch(&fixture.pod_path("two"), &json!({"metadata": {"labels": {"t-role": "z"}}}));
    fixture.wait_until("a", true);
    fixture.assert_allowed();
}

#[test]
fn without_a_valid_configuration_nothing_is_changed_and_an_edit_needs_no_restart() {
    let Some(fixture) = TaintFixture::start("taint-config", Rights::Manifest) else { return };
    fixture.configure(&json!({"config": "- name: a\n  selector: [", "x": "- text"}));
    fixture.create_ready_node("tainted", &json!([{"key": "NodeReadiness", "effect": "NoSchedule"}]));
    fixture.create_ready_node("free", &json!([]));
    let mut daemon = fixture.controller();
    daemon.wait_for("it reports the mistake", |daemon| {
        daemon.logged("cannot read the configuration", "key \\\"config\\\"")
            + daemon.logged("cannot read the configuration", "key \"config\"")
            == 1
    });
    assert!(fixture.is_tainted("tainted") && !fixture.is_tainted("free"));
    assert_eq!(fixture.requests("nodes").len(), 0, "it does not even look at nodes");
    // Valid: it requires a pod.
    fixture.configure(&json!({"config": "- {selector: app=t-none, namespace: kube-system}"}));
    fixture.wait_until("free", true);
    // Invalid again: the last valid configuration stays.
    fixture.configure(&json!({"config": "- {selector: 'a b', namespace: kube-system}"}));
    daemon.wait_for("it reports the mistake", |daemon| {
        daemon.log().matches("cannot read the configuration").count() == 2
    });
    assert!(daemon.logged("cannot read the configuration", "previous_is_kept") > 0, "{}", daemon.log());
    fixture.create_ready_node("new", &json!([]));
    fixture.wait_until("new", true);
    // Nothing is required: nodes only have to be ready themselves.
    fixture.configure(&json!({"config": "[]"}));
    for name in ["tainted", "free", "new"] {
        fixture.wait_until(name, false);
    }
    fixture.assert_allowed();
}

/// A missing configuration differs from an empty one: a user may be replacing it.
#[test]
fn a_configuration_that_is_deleted_stays_in_force() {
    let Some(fixture) = TaintFixture::start("taint-deleted", Rights::Manifest) else { return };
    fixture.create_ready_node("a", &json!([]));
    let mut daemon = fixture.controller();
    fixture.wait_until("a", true);
    fixture.api.admin().delete("/api/v1/namespaces/kube-system/configmaps/taint-deleted-configmap");
    daemon.wait_for("it is reported", |daemon| daemon.logged("cannot read the configuration", "(404)") == 1);
    fixture.create_ready_node("b", &json!([]));
    fixture.wait_until("b", true);
    assert!(fixture.is_tainted("a"));
}

#[test]
fn a_single_pass_evaluates_every_node_and_ends() {
    let Some(mut fixture) = TaintFixture::start("taint-once", Rights::Manifest) else { return };
    for number in 0..12 {
        fixture.create_ready_node(&format!("n{number}"), &json!([]));
    }
    fixture.create_ready_node("good", &json!([{"key": "NodeReadiness", "effect": "NoSchedule"}]));
    fixture.create_ready_pod("p", "good");
    fixture.container.set_env("TAINT_RUN-AS-DAEMON", "false");
    let mut daemon = fixture.controller();
    assert!(daemon.wait().success(), "{}", daemon.log());
    assert!((0..12).all(|number| fixture.is_tainted(&format!("n{number}"))));
    assert!(!fixture.is_tainted("good"));
    assert_eq!(fixture.requests("leases").len(), 0, "nobody is led");
    // The flag overrides the variable.
    fixture.container.set_env("TAINT_RUN-AS-DAEMON", "true");
    let mut daemon = fixture.container.start_with(&["--run-as-daemon=false"], &[]);
    assert!(daemon.wait().success(), "{}", daemon.log());
    fixture.configure(&json!({"config": "- text"}));
    let mut daemon = fixture.container.start_with(&["--run-as-daemon=false"], &[]);
    assert_eq!(daemon.wait().code(), Some(1));
    let config_map = "kube-system/taint-once-configmap";
    let why = "key \"config\": the value must be a list of entries with name, selector and namespace";
    let line = format!("istio-cni-taint: cannot use ConfigMap {config_map}: {why}");
    kit::until("the reason", || kit::has_line(&daemon.log(), &line));
}

/// As for an entry of a namespace without a Role there.
#[test]
fn a_watch_that_works_shows_nothing_of_one_that_is_forbidden() {
    let Some(fixture) = TaintFixture::start("taint-forbidden", Rights::Manifest) else { return };
    fixture.configure(&json!({"config": "- {selector: app=t-none, namespace: default}"}));
    fixture.create_ready_node("a", &json!([]));
    let daemon = fixture.controller();
    let mut is_ready = false;
    kit::until("it tries again, with changes of nodes in between", || {
        is_ready = !is_ready;
        fixture.set_node_ready("a", is_ready);
        fixture.requests("pods").len() > 2
    });
    assert_eq!(daemon.logged("watch failed", "(403)"), 1, "{}", daemon.log());
    assert!(!daemon.has_logged("watch restored", &[]), "{}", daemon.log());
    assert!(!fixture.is_tainted("a"));
}
