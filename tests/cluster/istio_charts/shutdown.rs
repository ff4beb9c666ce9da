//! The agent's interpretation of its end without permission to get DaemonSets: each row of the table of docs/install-cni.md.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use super::chart::named;
use super::release::Release;

/// Time for which the agent waits for evidence where its first requests decide nothing.
const EVIDENCE: Duration = Duration::from_secs(2);

/// A release of a chart that does not let the agent get DaemonSets, with a grace period of five seconds.
fn release(case: &str, name: &str) -> Option<(Release, kit::Daemon)> {
    let mut chart = named(case);
    chart.name = name.to_owned();
    let mut release = Release::install(chart)?;
    release.create_pod();
    let daemon = release.start();
    let pods = release.api.requests_with(name);
    assert!(pods.len() < 1000, "a start is cheap");
    release.wait_until_pod_is_read();
    Some((release, daemon))
}

#[test]
fn a_restarted_container_keeps_everything_at_once() {
    let Some((release, daemon)) = release("1-20-8-default", "shutdown-restart") else { return };
    let (log, took) = release.stop(daemon);
    assert!(
        kit::logged(&log, "the plugin stays installed", "reason=\"our own pod is not being deleted") == 1,
        "{log}"
    );
    assert!(release.is_installed() && took < EVIDENCE, "{took:?}: {log}");
}

#[test]
fn a_deleted_pod_alone_keeps_everything() {
    let Some((release, daemon)) = release("1-20-8-default", "shutdown-upgrade") else { return };
    release.delete_pod();
    let (log, _) = release.stop(daemon);
    assert!(
        kit::logged(
            &log,
            "the plugin stays installed",
            "reason=\"our own pod is being deleted and our permissions are in force"
        ) == 1,
        "{log}"
    );
    assert!(release.is_installed(), "{log}");
}

#[test]
fn bindings_that_are_replaced_meanwhile_keep_everything() {
    let Some((release, daemon)) = release("1-29-1-default", "shutdown-replaced") else { return };
    release.delete_pod();
    thread::scope(|scope| {
        let stopped = scope.spawn(|| release.stop(daemon).0);
        release.replace_bindings();
        let log = stopped.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(release.is_installed(), "{log}");
    });
}

#[test]
fn a_namespace_that_is_being_deleted_takes_everything_along() {
    let Some((release, daemon)) = release("1-20-8-default", "shutdown-namespace") else { return };
    // Without its controller the namespace and its objects stay, as during deletion.
    release.api.admin().request("DELETE", "/api/v1/namespaces/shutdown-namespace", None);
    release.delete_pod();
    let (log, took) = release.stop(daemon);
    assert!(
        kit::logged(&log, "the plugin is removed", "reason=\"namespace shutdown-namespace is being deleted")
            == 1,
        "{log}"
    );
    assert!(release.left_behind().is_empty() && took < EVIDENCE, "{took:?}: {log}");
}

#[test]
fn permissions_that_are_gone_take_everything_along_also_when_the_daemon_set_stays() {
    let Some((release, daemon)) = release("1-20-8-default", "shutdown-revoked") else { return };
    release.delete_rest();
    let (log, _) = release.stop(daemon);
    assert!(
        kit::logged(&log, "the plugin is removed", "reason=\"permissions that we had are gone") == 1,
        "{log}"
    );
    assert_eq!(release.left_behind(), Vec::<PathBuf>::new(), "{log}");
}

#[test]
fn an_api_server_that_cannot_be_reached_keeps_everything() {
    let Some((release, daemon)) = release("1-20-8-ambient", "shutdown-unreachable") else { return };
    release.delete_daemon_set();
    release.delete_pod();
    let (address, _) = kit::ApiServer::address();
    release.node.netns().sh(&format!("iptables -A OUTPUT -p tcp -d {address} -j DROP"));
    let (log, _) = release.stop(daemon);
    assert!(release.is_installed() && kit::logged(&log, "the plugin stays installed", "") == 1, "{log}");
}

#[test]
fn a_role_that_lets_it_get_the_daemon_set_decides_at_once() {
    let Some((release, daemon)) = release("1-29-1-ambient", "shutdown-get") else { return };
    release.delete_pod();
    let (log, took) = release.stop(daemon);
    assert!(
        kit::logged(
            &log,
            "the plugin stays installed",
            "reason=\"DaemonSet shutdown-get/istio-cni-node still selects this node"
        ) == 1,
        "{log}"
    );
    assert!(release.is_installed() && took < EVIDENCE, "{took:?}: {log}");
}

#[test]
fn a_role_that_lets_it_get_the_daemon_set_shows_its_deletion() {
    let Some((release, mut daemon)) = release("1-29-1-ambient", "shutdown-gone") else { return };
    daemon.wait_for("it has seen the DaemonSet", |daemon| {
        daemon.logged("found the agent's DaemonSet", "istio-cni-node") > 0
    });
    release.delete_daemon_set();
    release.delete_pod();
    let (log, _) = release.stop(daemon);
    assert!(
        kit::logged(
            &log,
            "the plugin is removed",
            "reason=\"DaemonSet shutdown-gone/istio-cni-node has been deleted"
        ) == 1,
        "{log}"
    );
    assert_eq!(release.left_behind(), Vec::<PathBuf>::new(), "{log}");
}

/// A recorded mistake: ambient mode in a container that may not change the node's network.
#[test]
fn an_ambient_agent_without_privileges_says_what_it_lacks() {
    let mut chart = named("1-20-8-ambient");
    chart.name = "shutdown-unprivileged".to_owned();
    let Some(mut release) = Release::install(chart) else { return };
    release.drop_capability("net_admin");
    release.create_pod();
    let mut daemon = release.container.start();
    let status = daemon.wait();
    assert_eq!(status.code(), Some(1));
    let needed = "CAP_NET_ADMIN and CAP_SYS_ADMIN (cni.privileged=true in the charts of Istio up to 1.20)";
    let refusal = "cannot open a handle on IP sets: kernel: operation not permitted (EPERM)";
    let complaint = format!(
        "install-cni: cannot change the node's network, for which the container needs {needed}: {refusal}"
    );
    assert!(kit::has_line(&daemon.log(), &complaint), "{}", daemon.log());
}
