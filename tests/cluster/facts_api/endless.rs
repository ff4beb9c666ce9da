//! A watch whose line does not end, and watches that end as soon as they begin.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kit::{FakeApi, FakeReply, FakeRequest, NodeOptions, Pki, Pod};
use serde_json::{Value, json};

use super::older::{added, list, list_end, start, status, watched};
use crate::fixtures::ambient::{Ambient, MESH};

/// Bytes of the line: many times the agent's memory limit.
const LINE: usize = 150 << 20;
/// The agent's memory limit in KiB.
const MEMORY: u64 = 80 * 1024;

/// A watch with these events, and then a line without end, until the client closes.
fn endless(events: &[Value]) -> FakeReply {
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
    let mut bytes = format!("{head}{lines}{{\"type\":\"").into_bytes();
    bytes.resize(bytes.len() + LINE, b'x');
    FakeReply::Raw(bytes)
}

fn mesh(version: u32) -> Value {
    json!({"metadata": {"name": MESH, "uid": "m", "resourceVersion": version.to_string()}})
}

#[test]
fn a_line_without_end_needs_bounded_memory_and_other_watches_go_on() {
    let mut web = Pod::new(MESH, "web").manifest(&[]);
    web["metadata"]["resourceVersion"] = json!("3");
    web["status"] = json!({"phase": "Pending"});
    let attempts = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&attempts);
    let answer = move |request: &FakeRequest| {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        match path {
            "/api/v1/pods" if kit::is_streaming_list(query) => endless(&[added(&web), list_end(9)]),
            "/api/v1/pods" => {
                seen.fetch_add(1, Ordering::Relaxed);
                endless(&[])
            }
            _ if kit::is_streaming_list(query) => FakeReply::Json(422, status(422, "Invalid")),
            "/api/v1/namespaces" if kit::parameter(query, "resourceVersion").as_deref() == Some("5") => {
                let _ = kit::found_within(Duration::from_secs(60), || seen.load(Ordering::Relaxed) >= 3);
                watched(&[json!({"type": "MODIFIED", "object": mesh(12)})])
            }
            "/api/v1/namespaces" if kit::is_watch(query) => FakeReply::Hang,
            "/api/v1/namespaces" => list(5, &[mesh(4)]),
            _ if kit::is_watch(query) => FakeReply::Hang,
            _ => FakeReply::Json(404, status(404, "NotFound")),
        }
    };
    let mut fixture = Ambient::stopped(NodeOptions::default(), &[]);
    let address = SocketAddr::from((fixture.node.outside_ip(false), 6443));
    let api = FakeApi::start(fixture.node.outside(), address, answer);
    fixture.container.set_account("token", Pki::shared().server_ca_pem());
    fixture.container.set_env("POD_SOURCE", "api");
    fixture.container.set_env("KUBERNETES_SERVICE_HOST", &address.ip().to_string());
    fixture.container.set_env("KUBERNETES_SERVICE_PORT", "6443");
    fixture.start();
    let watched_on = || {
        api.requests().iter().any(|request| {
            request.path.starts_with("/api/v1/namespaces?")
                && kit::parameter(&request.path, "resourceVersion").as_deref() == Some("12")
        })
    };
    // The agent decrypts 8 MiB for each attempt.
    kit::until_within(Duration::from_secs(90), "the other watch goes on", watched_on);
    let told = fixture.container.exec(&["explain", "mesh/web", "-o", "json"]);
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(
        (&told["pod"], &told["found"]),
        (&json!("mesh/web"), &json!(true)),
        "known from before the line"
    );
    let (log, peak) = (fixture.daemon().log(), fixture.daemon().peak_kib());
    println!("at most {peak} KiB, {} attempts", attempts.load(Ordering::Relaxed));
    assert!(log.contains("a line of the watch has more than 8388608 bytes"), "{log}");
    assert!(peak < MEMORY, "{peak} KiB");
}

#[test]
fn a_server_that_ends_each_watch_at_once_is_asked_once_a_second() {
    for streamed in [true, false] {
        let times = Arc::new(Mutex::new(Vec::new()));
        let asked = Arc::clone(&times);
        let (_api, _follower, _node) = start(move |request| {
            asked.lock().unwrap().push(Instant::now());
            match request.path.as_str() {
                path if kit::is_streaming_list(path) && !streamed => {
                    FakeReply::Json(422, status(422, "Invalid"))
                }
                path if kit::is_watch(path) => watched(&[]),
                _ => list(5, &[]),
            }
        });
        let took = kit::until(format_args!("streamed: {streamed}: six requests"), || {
            times.lock().unwrap().get(..6).map(|six| six[5] - six[0])
        });
        assert!(took > Duration::from_millis(2500), "streamed: {streamed}: six requests in {took:?}");
    }
}
