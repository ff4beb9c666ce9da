//! What the daemon makes of its end (`CLEANUP_ON_EXIT=auto`): an upgrade leaves everything as it is, a removal nothing.

use std::time::{Duration, Instant};

use kit::{ApiServer, Daemon};
use serde_json::{Value, json};

use super::scene::{DAEMON_SET, Scene, eventually};

/// The kubelet gives five seconds in Istio's manifests, and takes some of them.
pub(super) const END: Duration = Duration::from_secs(4);

/// SIGTERM; returns what the daemon said about its end, after looking at what it left.
pub(super) fn end(scene: &Scene, daemon: Daemon, stays: bool) -> String {
    let started = Instant::now();
    let (status, log) = daemon.terminate();
    let took = started.elapsed();
    assert!(status.success(), "{status}: {log}");
    assert!(took < END, "{took:?}: {log}");
    assert_eq!(scene.is_installed(), stays, "{log}");
    let words = if stays { "the plugin stays installed\treason=" } else { "the plugin is removed\treason=" };
    let (_, why) = log.rsplit_once(words).unwrap_or_else(|| panic!("it does not say why: {log}"));
    why.lines().next().unwrap().trim_matches('"').replace("\\\"", "\"")
}

#[test]
fn everything_stays_while_the_daemon_set_wants_the_node() {
    let Some(scene) = Scene::start("leave-upgrade") else { return };
    scene.create_daemon_set(DAEMON_SET);
    let before = || std::fs::read(scene.conflist()).unwrap();
    let daemon = scene.daemon();
    let conflist = before();
    let why = end(&scene, daemon, true);
    assert_eq!(why, "DaemonSet leave-upgrade/istio-cni-node still selects this node");
    assert_eq!(before(), conflist);
    // The next one finds everything in place.
    let next = scene.daemon();
    assert_eq!((before(), next.logged("installation updated", "") > 0), (conflist, false));
}

#[test]
fn everything_goes_when_the_daemon_set_was_deleted() {
    let Some(scene) = Scene::start("leave-deleted") else { return };
    scene.create_daemon_set(DAEMON_SET);
    let daemon = scene.daemon_that_knows(DAEMON_SET);
    scene.api.admin().delete(&scene.daemon_set());
    assert_eq!(end(&scene, daemon, false), "DaemonSet leave-deleted/istio-cni-node has been deleted");
}

/// As `kubectl delete --cascade=foreground` does: the pods go first.
#[test]
fn everything_goes_when_the_daemon_set_is_being_deleted() {
    let Some(scene) = Scene::start("leave-deleting") else { return };
    scene.create_daemon_set(DAEMON_SET);
    let daemon = scene.daemon_that_knows(DAEMON_SET);
    let foreground = json!({"propagationPolicy": "Foreground"});
    let answer = scene.api.admin().request("DELETE", &scene.daemon_set(), Some(&foreground));
    assert!(answer.body["metadata"]["deletionTimestamp"].is_string(), "{}", answer.body);
    assert_eq!(end(&scene, daemon, false), "DaemonSet leave-deleting/istio-cni-node is being deleted");
    scene.api.admin().patch(&scene.daemon_set(), &json!({"metadata": {"finalizers": null}}));
}

#[test]
fn everything_goes_from_a_node_that_the_daemon_set_does_not_want_any_more() {
    let Some(scene) = Scene::start("leave-unwanted") else { return };
    scene.create_daemon_set(DAEMON_SET);
    let placement = |placement: Value| {
        let spec = json!({"spec": {"template": {"spec": placement}}});
        scene.api.admin().patch(&scene.daemon_set(), &spec);
    };
    let node = format!("/api/v1/nodes/{}", scene.name);
    let label = |value: Value| {
        scene.api.admin().patch(&node, &json!({"metadata": {"labels": {"mesh": value}}}));
    };
    let gone = |words: &str| {
        let why = end(&scene, scene.daemon(), false);
        assert!(
            why.starts_with("DaemonSet leave-unwanted/istio-cni-node no longer selects this node"),
            "{why}"
        );
        assert!(why.ends_with(words), "{why}");
    };
    placement(json!({"nodeSelector": {"mesh": "yes"}}));
    end(&scene, scene.daemon(), true);
    label(json!(null));
    gone("nodeSelector asks for the label mesh=yes");
    label(json!("yes"));
    let asks = |operator: &str| {
        let terms = json!([{"matchExpressions": [{"key": "mesh", "operator": operator}]}]);
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}})
    };
    placement(json!({"affinity": asks("Exists")}));
    end(&scene, scene.daemon(), true);
    placement(json!({"affinity": asks("DoesNotExist")}));
    gone("node affinity excludes this node");
    placement(json!({"affinity": null}));
    scene.api.admin().patch(&node, &json!({"spec": {"taints": [{"key": "out", "effect": "NoExecute"}]}}));
    gone("does not tolerate the node's taint out");
    placement(json!({"tolerations": [{"operator": "Exists", "effect": "NoExecute"}]}));
    end(&scene, scene.daemon(), true);
}

/// Waits until our own credential is good for nothing. The API server remembers tokens for ten seconds, and rules for
/// less.
fn wait_until_refused(scene: &Scene) {
    let client = scene.client();
    eventually("our credential is refused", || {
        matches!(client.request("GET", &scene.daemon_set(), None).status, 401 | 403)
    });
}

/// What a package manager does after the DaemonSet, or before.
fn remove_account(scene: &Scene) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = format!("kit:{}:istio-cni", scene.name);
    for path in [
        format!("{rbac}/clusterrolebindings/{role}"),
        format!("{rbac}/clusterroles/{role}"),
        scene.path("v1", "serviceaccounts", "istio-cni"),
    ] {
        scene.api.admin().delete(&path);
    }
    wait_until_refused(scene);
}

#[test]
fn everything_goes_also_when_our_permissions_went_after_the_daemon_set() {
    let Some(scene) = Scene::start("leave-helm") else { return };
    scene.create_daemon_set(DAEMON_SET);
    let daemon = scene.daemon_that_knows(DAEMON_SET);
    scene.api.admin().delete(&scene.daemon_set());
    remove_account(&scene);
    assert_eq!(end(&scene, daemon, false), "DaemonSet leave-helm/istio-cni-node has been deleted");
}

/// As `kubectl delete -f` does, in the order of the file. A watch outlives the permission to begin it.
#[test]
fn everything_goes_also_when_our_permissions_went_before_the_daemon_set() {
    let Some(scene) = Scene::start("leave-kubectl") else { return };
    scene.create_daemon_set(DAEMON_SET);
    let mut daemon = scene.daemon_that_knows(DAEMON_SET);
    scene.wait_until_watched("daemonsets");
    remove_account(&scene);
    scene.api.admin().delete(&scene.daemon_set());
    daemon.wait_for("it sees that", |daemon| daemon.log().contains("has been deleted or is being deleted"));
    assert_eq!(end(&scene, daemon, false), "DaemonSet leave-kubectl/istio-cni-node has been deleted");
}

#[test]
fn everything_stays_when_the_permissions_alone_went() {
    let Some(scene) = Scene::start("leave-revoked") else { return };
    scene.create_daemon_set(DAEMON_SET);
    let daemon = scene.daemon_that_knows(DAEMON_SET);
    remove_account(&scene);
    let why = end(&scene, daemon, true);
    assert!(why.contains("(403)") || why.contains("(401)"), "{why}");
}

#[test]
fn everything_stays_when_a_deleted_daemon_set_is_there_again() {
    let Some(scene) = Scene::start("leave-again") else { return };
    scene.create_daemon_set(DAEMON_SET);
    let mut daemon = scene.daemon_that_knows(DAEMON_SET);
    scene.api.admin().delete(&scene.daemon_set());
    daemon.wait_for("it sees that", |daemon| daemon.log().contains("has been deleted or is being deleted"));
    scene.create_daemon_set(DAEMON_SET);
    let found = |daemon: &Daemon| daemon.logged("found the agent's DaemonSet", "leave-again/istio-cni-node");
    daemon.wait_for("it sees that, too", |daemon| found(daemon) == 2);
    // Whoever deletes and creates it within a moment, such as `kubectl replace --force`, wants an agent on the node.
    remove_account(&scene);
    end(&scene, daemon, true);
}

#[test]
fn everything_stays_when_there_never_was_such_a_daemon_set() {
    let Some(scene) = Scene::start("leave-never") else { return };
    let daemon = scene.daemon();
    scene.wait_until_watched("daemonsets");
    let why = end(&scene, daemon, true);
    assert_eq!(why, "DaemonSet leave-never/istio-cni-node has never been seen");
}

#[test]
fn the_daemon_set_that_owns_our_pod_counts_whatever_its_name() {
    let Some(scene) = Scene::start("leave-owner") else { return };
    scene.create_daemon_set(DAEMON_SET); // one that is not ours stays
    let owner = scene.create_daemon_set("mesh-agent");
    let mut pod = ApiServer::pod(scene.name, "mesh-agent-x7k2p");
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "mesh-agent", "controller": true,
        "uid": owner["metadata"]["uid"],
    }]);
    scene.api.create_pod(&pod);
    let scene = scene.with_env("POD_NAME", "mesh-agent-x7k2p");
    let why = end(&scene, scene.daemon_that_knows("mesh-agent"), true);
    assert_eq!(why, "DaemonSet leave-owner/mesh-agent still selects this node");
    let daemon = scene.daemon_that_knows("mesh-agent");
    scene.api.admin().delete(&scene.path("apps/v1", "daemonsets", "mesh-agent"));
    assert_eq!(end(&scene, daemon, false), "DaemonSet leave-owner/mesh-agent has been deleted");
}

#[test]
fn the_daemon_set_that_we_are_told_counts_before_the_owner_of_our_pod() {
    let Some(scene) = Scene::start("leave-told") else { return };
    scene.create_daemon_set("told");
    let scene = scene.with_env("DAEMON_SET", "told");
    let daemon = scene.daemon_that_knows("told");
    scene.api.admin().delete(&scene.path("apps/v1", "daemonsets", "told"));
    assert_eq!(end(&scene, daemon, false), "DaemonSet leave-told/told has been deleted");
}
