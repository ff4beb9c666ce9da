//! The agent's end when the API server cannot explain it: then nothing is removed, and the end is quick.

use std::net::SocketAddr;
use std::time::Duration;

use kit::{FakeApi, FakeReply, FakeRequest};
use serde_json::{Value, json};

use super::fixture::{ClusterFixture, DAEMON_SET};
use super::leaving::{end, forbidden, shown_by_watch};

#[test]
fn everything_stays_when_the_api_server_is_away() {
    let Some(fixture) = ClusterFixture::start("leave-away") else { return };
    fixture.create_daemon_set(DAEMON_SET);
    let get = "cannot get DaemonSet leave-away/istio-cni-node";
    let connect =
        "ServiceError: client error (Connect): tcp connect error: Connection refused (os error 111)";
    for (how, failed) in [
        ("DROP", format!("{get}: no answer within 1.5s")),
        ("REJECT --reject-with tcp-reset", format!("{get}: {connect}")),
    ] {
        let daemon = fixture.daemon_that_knows(DAEMON_SET);
        fixture.cut_off(how);
        fixture.node.netns().sh("ss --kill --tcp state established dport = :6443");
        let why = end(&fixture, daemon, true);
        // The watch may have ended by then, or not.
        let expected = [shown_by_watch("leave-away", &failed), failed];
        assert!(expected.contains(&why), "{how}: {why}");
        fixture.connect();
    }
}

#[test]
fn everything_stays_when_the_api_server_never_was_there() {
    let Some(fixture) = ClusterFixture::start("leave-nowhere") else { return };
    fixture.create_daemon_set(DAEMON_SET);
    fixture.cut_off("DROP");
    end(&fixture, fixture.daemon(), true);
}

/// Permissions of Istio's own ClusterRole. With permissions in force, a deleted DaemonSet alone cannot be distinguished from an
/// upgrade.
#[test]
fn everything_stays_and_the_log_says_why_when_we_may_not_see_daemon_sets() {
    let Some(fixture) = ClusterFixture::allowed("leave-forbidden", &kit::istio::plugin_rules()) else {
        return;
    };
    fixture.create_daemon_set(DAEMON_SET);
    let daemon = fixture.daemon();
    fixture.wait_until_asked("daemonsets");
    fixture.api.admin().delete(&fixture.daemon_set());
    let why = end(&fixture, daemon, true);
    assert_eq!(why, forbidden("leave-forbidden"));
}

#[test]
fn everything_stays_when_the_node_is_unknown() {
    let Some(fixture) = ClusterFixture::start("leave-nameless") else { return };
    fixture.create_daemon_set(DAEMON_SET);
    let fixture = fixture.with_env("NODE_NAME", "no-such-node");
    let why = end(&fixture, fixture.daemon_that_knows(DAEMON_SET), true);
    assert!(why.ends_with("istio-cni-node exists, and our Node object was not found"), "{why}");
}

/// A slow API server: the response about the DaemonSet is just in time, the one about the Node is not.
fn slow(request: &FakeRequest) -> FakeReply {
    let daemon_set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": DAEMON_SET, "namespace": "leave-slow", "resourceVersion": "7"},
    });
    let list = |items: Value| json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": items});
    match request.path.as_str() {
        path if kit::is_watch(path) => FakeReply::Hang,
        path if path.split('?').next().is_some_and(|path| path.ends_with("/daemonsets")) => {
            FakeReply::Json(200, list(json!([daemon_set])))
        }
        path if kit::has_segment(path, "daemonsets") => {
            FakeReply::Late(Duration::from_millis(1200), Box::new(FakeReply::Json(200, daemon_set)))
        }
        path if kit::has_segment(path, "nodes") => FakeReply::Hang,
        _ => {
            FakeReply::Json(404, json!({"kind": "Status", "status": "Failure", "message": "no", "code": 404}))
        }
    }
}

#[test]
fn a_slow_api_server_does_not_make_the_end_take_longer_than_the_kubelet_waits() {
    let Some(fixture) = ClusterFixture::start("leave-slow") else { return };
    let address = SocketAddr::from((fixture.node.outside_ip(false), 6443));
    let _fake = FakeApi::start(fixture.node.outside(), address, slow);
    let fixture = fixture.with_env("KUBERNETES_SERVICE_HOST", &address.ip().to_string());
    let exists = "DaemonSet leave-slow/istio-cni-node exists";
    let expected = format!("{exists}, and cannot get Node leave-slow: no answer within 1.5s");
    // On a busy machine, the first response may be too late.
    kit::until(&expected, || end(&fixture, fixture.daemon_that_knows(DAEMON_SET), true) == expected);
}
