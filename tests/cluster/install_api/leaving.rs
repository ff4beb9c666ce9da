//! The agent's interpretation of its end (`CLEANUP_ON_EXIT=auto`): an upgrade leaves everything unchanged, a removal leaves
//! nothing.

use std::time::Duration;

use kit::{ApiServer, Daemon};
use serde_json::{Value, json};

use super::fixture::{ClusterFixture, DAEMON_SET};
use crate::istio_charts::release::logged_shutdown;

/// Istio's manifests have a grace period of five seconds, part of which the kubelet uses.
pub(super) const END: Duration = Duration::from_secs(4);

/// Sends SIGTERM and checks the files that remain; returns the agent's messages about its end.
pub(super) fn end(fixture: &ClusterFixture, daemon: Daemon, stays: bool) -> String {
    let (status, log) = daemon.terminate();
    let took = logged_shutdown(&log);
    assert!(status.success(), "{status}: {log}");
    assert!(took < END, "{took:?}: {log}");
    assert_eq!(fixture.is_installed(), stays, "{log}");
    let words = if stays { "the plugin stays installed\treason=" } else { "the plugin is removed\treason=" };
    let (_, why) = log.rsplit_once(words).unwrap_or_else(|| panic!("it does not say why: {log}"));
    why.lines().next().unwrap().trim_matches('"').replace("\\\"", "\"")
}

/// Reason why everything stays: the watch shows our DaemonSet, and getting it failed.
pub(super) fn shown_by_watch(namespace: &str, why: &str) -> String {
    format!("DaemonSet {namespace}/istio-cni-node exists, as its watch shows ({why})")
}

/// The API server's error when our account may not get our DaemonSet.
pub(super) fn forbidden(namespace: &str) -> String {
    format!(
        "cannot get DaemonSet {namespace}/istio-cni-node: daemonsets.apps \"istio-cni-node\" is forbidden: User \
         \"system:serviceaccount:{namespace}:istio-cni\" cannot get resource \"daemonsets\" in API group \"apps\" in the \
         namespace \"{namespace}\" (403)"
    )
}

#[test]
fn everything_stays_while_the_daemon_set_wants_the_node() {
    let Some(fixture) = ClusterFixture::start("leave-upgrade") else { return };
    fixture.create_daemon_set(DAEMON_SET);
    let before = || std::fs::read(fixture.conflist()).unwrap();
    let daemon = fixture.daemon();
    let conflist = before();
    let why = end(&fixture, daemon, true);
    assert_eq!(why, "DaemonSet leave-upgrade/istio-cni-node still selects this node");
    assert_eq!(before(), conflist);
    // The next agent finds everything in place.
    let next = fixture.daemon();
    assert_eq!((before(), next.logged("installation updated", "") > 0), (conflist, false));
}

#[test]
fn everything_goes_when_the_daemon_set_was_deleted() {
    let Some(fixture) = ClusterFixture::start("leave-deleted") else { return };
    fixture.create_daemon_set(DAEMON_SET);
    let daemon = fixture.daemon_that_knows(DAEMON_SET);
    fixture.api.admin().delete(&fixture.daemon_set());
    assert_eq!(end(&fixture, daemon, false), "DaemonSet leave-deleted/istio-cni-node has been deleted");
}

/// As with `kubectl delete --cascade=foreground`: the pods are deleted first.
#[test]
fn everything_goes_when_the_daemon_set_is_being_deleted() {
    let Some(fixture) = ClusterFixture::start("leave-deleting") else { return };
    fixture.create_daemon_set(DAEMON_SET);
    let daemon = fixture.daemon_that_knows(DAEMON_SET);
    let foreground = json!({"propagationPolicy": "Foreground"});
    let answer = fixture.api.admin().request("DELETE", &fixture.daemon_set(), Some(&foreground));
    assert!(answer.body["metadata"]["deletionTimestamp"].is_string(), "{}", answer.body);
    assert_eq!(end(&fixture, daemon, false), "DaemonSet leave-deleting/istio-cni-node is being deleted");
    fixture.api.admin().patch(&fixture.daemon_set(), &json!({"metadata": {"finalizers": null}}));
}

#[test]
fn everything_goes_from_a_node_that_the_daemon_set_does_not_want_any_more() {
    let Some(fixture) = ClusterFixture::start("leave-unwanted") else { return };
    fixture.create_daemon_set(DAEMON_SET);
    let placement = |placement: Value| {
        let spec = json!({"spec": {"template": {"spec": placement}}});
        fixture.api.admin().patch(&fixture.daemon_set(), &spec);
    };
    let node = format!("/api/v1/nodes/{}", fixture.name);
    let label = |value: Value| {
        fixture.api.admin().patch(&node, &json!({"metadata": {"labels": {"mesh": value}}}));
    };
    let gone = |words: &str| {
        let why = end(&fixture, fixture.daemon(), false);
        assert!(
            why.starts_with("DaemonSet leave-unwanted/istio-cni-node no longer selects this node"),
            "{why}"
        );
        assert!(why.ends_with(words), "{why}");
    };
    placement(json!({"nodeSelector": {"mesh": "yes"}}));
    end(&fixture, fixture.daemon(), true);
    label(json!(null));
    gone("nodeSelector asks for the label mesh=yes");
    label(json!("yes"));
    let asks = |operator: &str| {
        let terms = json!([{"matchExpressions": [{"key": "mesh", "operator": operator}]}]);
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}})
    };
    placement(json!({"affinity": asks("Exists")}));
    end(&fixture, fixture.daemon(), true);
    placement(json!({"affinity": asks("DoesNotExist")}));
    gone("node affinity excludes this node");
    placement(json!({"affinity": null}));
    fixture.api.admin().patch(&node, &json!({"spec": {"taints": [{"key": "out", "effect": "NoExecute"}]}}));
    gone("does not tolerate the node's taint out");
    placement(json!({"tolerations": [{"operator": "Exists", "effect": "NoExecute"}]}));
    end(&fixture, fixture.daemon(), true);
}

/// Waits until our own credential is invalid. The API server caches tokens for ten seconds, and rules for less.
fn wait_until_refused(fixture: &ClusterFixture) {
    let client = fixture.client();
    kit::until("our credential is refused", || {
        matches!(client.request("GET", &fixture.daemon_set(), None).status, 401 | 403)
    });
}

/// Waits until the agent's watch has shown that its DaemonSet is deleted.
fn wait_until_seen_deleted(daemon: &mut Daemon) {
    daemon.wait_for("it sees that", |daemon| {
        daemon.logged("the agent's DaemonSet has been deleted or is being deleted", "daemon_set=") > 0
    });
}

/// Deletes the service account, as a package manager does after or before the DaemonSet.
fn remove_account(fixture: &ClusterFixture) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = format!("kit:{}:istio-cni", fixture.name);
    for path in [
        format!("{rbac}/clusterrolebindings/{role}"),
        format!("{rbac}/clusterroles/{role}"),
        fixture.path("v1", "serviceaccounts", "istio-cni"),
    ] {
        fixture.api.admin().delete(&path);
    }
    wait_until_refused(fixture);
}

#[test]
fn everything_goes_also_when_our_permissions_went_after_the_daemon_set() {
    let Some(fixture) = ClusterFixture::start("leave-helm") else { return };
    fixture.create_daemon_set(DAEMON_SET);
    let mut daemon = fixture.daemon_that_knows(DAEMON_SET);
    fixture.wait_until_watched("daemonsets");
    fixture.api.admin().delete(&fixture.daemon_set());
    wait_until_seen_deleted(&mut daemon);
    remove_account(&fixture);
    assert_eq!(end(&fixture, daemon, false), "DaemonSet leave-helm/istio-cni-node has been deleted");
}

/// As `kubectl delete -f` does, in the file's order. A watch outlives the permission to start it.
#[test]
fn everything_goes_also_when_our_permissions_went_before_the_daemon_set() {
    let Some(fixture) = ClusterFixture::start("leave-kubectl") else { return };
    fixture.create_daemon_set(DAEMON_SET);
    let mut daemon = fixture.daemon_that_knows(DAEMON_SET);
    fixture.wait_until_watched("daemonsets");
    remove_account(&fixture);
    fixture.api.admin().delete(&fixture.daemon_set());
    wait_until_seen_deleted(&mut daemon);
    assert_eq!(end(&fixture, daemon, false), "DaemonSet leave-kubectl/istio-cni-node has been deleted");
}

/// A role that is bound a moment after the agent's start, as by a package manager, is no permanent refusal.
#[test]
fn everything_goes_when_permissions_went_that_came_after_the_start() {
    let rules = kit::istio::plugin_rules();
    let Some(fixture) = ClusterFixture::allowed("leave-late-role", &rules) else { return };
    let path = format!("/apis/rbac.authorization.k8s.io/v1/clusterroles/kit:{}:istio-cni", fixture.name);
    let set_rules = |rules: &Value| fixture.api.admin().patch(&path, &json!({"rules": rules}));
    let own_pod = fixture.path("v1", "pods", "istio-cni-node-x7k2p");
    let is_refused = || fixture.client().request("GET", &own_pod, None).status == 403;
    set_rules(&json!([]));
    kit::until("our own pod is refused", is_refused);
    let daemon = fixture.daemon();
    fixture.wait_until_asked("pods");
    let asked = || fixture.requests().iter().filter(|request| request.uri.contains(&own_pod)).count();
    set_rules(&rules);
    kit::until("our own pod can be read", || !is_refused());
    let since = asked();
    kit::until("it is asked for again", || asked() > since);
    remove_account(&fixture);
    kit::until("it is refused again", || {
        matches!(fixture.client().request("GET", &own_pod, None).status, 401 | 403)
    });
    let why = end(&fixture, daemon, false);
    assert!(why.starts_with("permissions that we had are gone: "), "{why}");
}

#[test]
fn everything_stays_when_the_permissions_alone_went() {
    let Some(fixture) = ClusterFixture::start("leave-revoked") else { return };
    fixture.create_daemon_set(DAEMON_SET);
    let daemon = fixture.daemon_that_knows(DAEMON_SET);
    fixture.wait_until_watched("daemonsets");
    remove_account(&fixture);
    let why = end(&fixture, daemon, true);
    let get = "cannot get DaemonSet leave-revoked/istio-cni-node";
    let reasons = [forbidden("leave-revoked"), format!("{get}: Unauthorized (401)")];
    assert!(reasons.map(|reason| shown_by_watch("leave-revoked", &reason)).contains(&why), "{why}");
}

#[test]
fn everything_stays_when_a_deleted_daemon_set_is_there_again() {
    let Some(fixture) = ClusterFixture::start("leave-again") else { return };
    fixture.create_daemon_set(DAEMON_SET);
    let mut daemon = fixture.daemon_that_knows(DAEMON_SET);
    fixture.api.admin().delete(&fixture.daemon_set());
    wait_until_seen_deleted(&mut daemon);
    fixture.create_daemon_set(DAEMON_SET);
    let found = |daemon: &Daemon| daemon.logged("found the agent's DaemonSet", "leave-again/istio-cni-node");
    daemon.wait_for("it sees that, too", |daemon| found(daemon) == 2);
    // A user who deletes and recreates it within a moment, as with `kubectl replace --force`, wants an agent on the node.
    remove_account(&fixture);
    end(&fixture, daemon, true);
}

#[test]
fn everything_stays_when_there_never_was_such_a_daemon_set() {
    let Some(fixture) = ClusterFixture::start("leave-never") else { return };
    let daemon = fixture.daemon();
    fixture.wait_until_watched("daemonsets");
    let why = end(&fixture, daemon, true);
    assert_eq!(why, "DaemonSet leave-never/istio-cni-node has never been seen");
}

#[test]
fn the_daemon_set_that_owns_our_pod_counts_whatever_its_name() {
    let Some(fixture) = ClusterFixture::start("leave-owner") else { return };
    fixture.create_daemon_set(DAEMON_SET); // a foreign one stays
    let owner = fixture.create_daemon_set("mesh-agent");
    let mut pod = ApiServer::pod(fixture.name, "mesh-agent-x7k2p");
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "mesh-agent", "controller": true,
        "uid": owner["metadata"]["uid"],
    }]);
    fixture.api.create_pod(&pod);
    let fixture = fixture.with_env("POD_NAME", "mesh-agent-x7k2p");
    let why = end(&fixture, fixture.daemon_that_knows("mesh-agent"), true);
    assert_eq!(why, "DaemonSet leave-owner/mesh-agent still selects this node");
    let daemon = fixture.daemon_that_knows("mesh-agent");
    fixture.api.admin().delete(&fixture.path("apps/v1", "daemonsets", "mesh-agent"));
    assert_eq!(end(&fixture, daemon, false), "DaemonSet leave-owner/mesh-agent has been deleted");
}

#[test]
fn the_daemon_set_that_we_are_told_counts_before_the_owner_of_our_pod() {
    let Some(fixture) = ClusterFixture::start("leave-told") else { return };
    fixture.create_daemon_set("told");
    let fixture = fixture.with_env("DAEMON_SET", "told");
    let daemon = fixture.daemon_that_knows("told");
    fixture.api.admin().delete(&fixture.path("apps/v1", "daemonsets", "told"));
    assert_eq!(end(&fixture, daemon, false), "DaemonSet leave-told/told has been deleted");
}
