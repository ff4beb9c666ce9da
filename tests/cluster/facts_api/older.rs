//! API servers without streaming lists, that have just started, and watches that expire.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt as _;
use kit::{FakeApi, FakeReply, FakeRequest, Node, NodeOptions, Pki};
use kube_api::{ApiConnection, ApiErrorKind, KubeClient, ObjectRef};
use serde_json::{Value, json};

use super::fixture::{Credential, Follower, LIMIT, run};

fn pod(name: &str, version: u32) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": version.to_string()}})
}

pub(super) fn list(version: u32, items: &[Value]) -> FakeReply {
    let metadata = json!({"resourceVersion": version.to_string()});
    FakeReply::Json(200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}))
}

/// Lines of a watch, and its end.
pub(super) fn watched(events: &[Value]) -> FakeReply {
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
    FakeReply::Raw(format!("{head}content-length: {}\r\n\r\n{lines}", lines.len()).into_bytes())
}

pub(super) fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason,
        "reason": reason, "code": code})
}

/// The event of a new object.
pub(super) fn added(object: &Value) -> Value {
    json!({"type": "ADDED", "object": object})
}

/// The event that ends a streaming list.
pub(super) fn list_end(version: u32) -> Value {
    let annotations = json!({"k8s.io/initial-events-end": "true"});
    let metadata = json!({"resourceVersion": version.to_string(), "annotations": annotations});
    json!({"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}})
}

/// An API server outside a node, and a connection to it, of a client in the node's network.
fn serve_node(
    answer: impl Fn(&FakeRequest) -> FakeReply + Send + Sync + 'static,
) -> (FakeApi, ApiConnection, Node) {
    let node = Node::new(NodeOptions::default());
    let address = SocketAddr::from((node.outside_ip(false), 6443));
    let api = FakeApi::start(node.outside(), address, answer);
    let credential = Credential::new("token", Pki::shared().server_ca_pem());
    let connection = credential.connection(&api.url());
    std::mem::forget(credential); // its files are read later
    (api, connection, node)
}

pub(super) fn start(
    answer: impl Fn(&FakeRequest) -> FakeReply + Send + Sync + 'static,
) -> (FakeApi, Follower, Node) {
    let (api, connection, node) = serve_node(move |request| match request.path.as_str() {
        path if path.starts_with("/api/v1/pods") => answer(request),
        path if kit::has_segment(path, "pods") => FakeReply::Json(404, status(404, "NotFound")),
        path if kit::is_watch(path) && !kit::is_streaming_list(path) => FakeReply::Hang,
        path if kit::is_watch(path) => FakeReply::Json(422, status(422, "Invalid")),
        _ => list(1, &[json!({"metadata": {"name": "shop", "resourceVersion": "1"}})]),
    });
    let follower = node.netns().run(|| Follower::start(connection, "n1"));
    (api, follower, node)
}

#[test]
fn a_server_without_streaming_lists_is_asked_for_an_ordinary_one() {
    let (api, mut follower, _node) = start(|request| match request.path.as_str() {
        path if kit::is_streaming_list(path) => FakeReply::Json(422, status(422, "Invalid")),
        path if kit::is_watch(path) && kit::parameter(path, "resourceVersion").as_deref() == Some("5") => {
            watched(&[added(&pod("b", 6)), json!({"type": "DELETED", "object": pod("a", 7)})])
        }
        path if kit::is_watch(path) => FakeReply::Hang,
        _ => list(5, &[pod("a", 3)]),
    });
    follower.wait_for_pods("list and changes", &["b"]);
    assert_eq!(follower.lists(), 1);
    let paths: Vec<_> = api.requests().into_iter().map(|request| request.path).collect();
    let lists: Vec<_> =
        paths.iter().filter(|path| !kit::is_watch(path) && kit::has_segment(path, "pods")).collect();
    assert!(
        lists.len() == 1 && kit::parameter(lists[0], "resourceVersion").as_deref() == Some("0"),
        "from the server's cache: {paths:#?}"
    );
}

/// Serves a list, a watch that `refuse` ends as too old, and another list.
fn assert_new_list(streams: bool, refuse: fn() -> FakeReply) {
    let lists = AtomicUsize::new(0);
    let (_api, mut follower, _node) = start(move |request| match request.path.as_str() {
        path if kit::is_streaming_list(path) && streams => {
            lists.fetch_add(1, Ordering::Relaxed);
            watched(&[added(&pod("a", 3)), added(&pod("b", 4)), list_end(5)])
        }
        path if kit::is_streaming_list(path) => FakeReply::Json(422, status(422, "Invalid")),
        path if kit::is_watch(path) && kit::parameter(path, "resourceVersion").as_deref() == Some("5") => {
            refuse()
        }
        path if kit::is_watch(path) => FakeReply::Hang,
        _ if lists.fetch_add(1, Ordering::Relaxed) == 0 => list(5, &[pod("a", 3), pod("b", 4)]),
        _ => list(9, &[pod("b", 4), pod("c", 8)]),
    });
    follower.wait_for_pods("the first list", &["a", "b"]);
    follower.wait_for_pods("the second, with what happened between", &["b", "c"]);
    assert_eq!(follower.lists(), 2);
}

#[test]
fn a_watch_that_is_too_old_begins_with_a_new_list() {
    assert_new_list(false, || watched(&[json!({"type": "ERROR", "object": status(410, "Expired")})]));
}

/// The API server refuses within the watch; a proxy, or another server of its API, may refuse the request itself.
#[test]
fn a_watch_whose_request_is_too_old_begins_with_a_new_list() {
    for streams in [false, true] {
        assert_new_list(streams, || FakeReply::Json(410, status(410, "Expired")));
    }
}

#[test]
fn a_watch_of_one_object_whose_request_is_too_old_begins_with_a_new_list() {
    let lists = AtomicUsize::new(0);
    let (_api, connection, node) = serve_node(move |request| match request.path.as_str() {
        path if kit::is_watch(path) && kit::parameter(path, "resourceVersion").as_deref() == Some("5") => {
            FakeReply::Json(410, status(410, "Expired"))
        }
        path if kit::is_watch(path) => FakeReply::Hang,
        _ if lists.fetch_add(1, Ordering::Relaxed) == 0 => list(5, &[pod("a", 3)]),
        _ => list(9, &[pod("a", 8)]),
    });
    let object =
        ObjectRef { group: "", kind: "ConfigMap", namespace: "shop".to_owned(), name: "a".to_owned() };
    let versions = async {
        let client = KubeClient::new(&connection).unwrap();
        let changes = client.watch_object::<Value>(&object);
        let versions =
            changes.filter_map(async |change| Some(change.ok()??["metadata"]["resourceVersion"].take()));
        tokio::time::timeout(LIMIT, versions.take(2).collect::<Vec<_>>()).await.expect("a new list")
    };
    assert_eq!(node.netns().run(|| run(versions)), ["3", "8"]);
}

#[test]
fn a_stream_that_ends_within_its_list_tells_nothing_and_begins_anew() {
    let tries = AtomicUsize::new(0);
    let (_api, mut follower, _node) = start(move |request| match request.path.as_str() {
        path if kit::is_streaming_list(path) => {
            let (a, b) = (added(&pod("a", 3)), added(&pod("b", 4)));
            match tries.fetch_add(1, Ordering::Relaxed) {
                0 => watched(&[a]),
                _ => watched(&[a, b, list_end(9)]),
            }
        }
        _ => FakeReply::Hang,
    });
    follower.wait_for_pods("the whole list", &["a", "b"]);
    assert_eq!(follower.lists(), 1, "half a list is none: {:#?}", follower.told);
}

/// An API server that has just started refuses everything until it has read its roles.
#[test]
fn a_refusal_counts_only_if_the_server_is_ready() {
    let lists = AtomicUsize::new(0);
    let (api, connection, node) = serve_node(move |request| match request.path.as_str() {
        "/readyz" if lists.load(Ordering::Relaxed) > 1 => FakeReply::Json(200, json!({})),
        "/readyz" => FakeReply::Json(403, status(403, "Forbidden")), // it has not read its roles
        _ => {
            lists.fetch_add(1, Ordering::Relaxed);
            FakeReply::Json(403, status(403, "Forbidden"))
        }
    });
    let refusal = async {
        let client = KubeClient::new(&connection).unwrap();
        let refusal = cluster_facts::follow_pods(client, "n1", None, |_| ());
        tokio::time::timeout(LIMIT, refusal).await.expect("a refusal")
    };
    assert_eq!(node.netns().run(|| run(refusal)).kind(), ApiErrorKind::Refused);
    let paths: Vec<_> = api.requests().into_iter().map(|request| request.path).collect();
    assert_eq!(paths.iter().filter(|path| kit::is_watch(path)).count(), 2, "{paths:#?}");
}
