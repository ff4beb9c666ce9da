//! A fake source of a node's state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use report::{
    CaptureState, Comparison, KernelView, NodeSimulation, PodState, RedirectionMode, RouteState,
    SimulatedChange, StateReason, StateReport,
};
use serde_json::{Value, json};
use tokio::time::sleep;
use tower_service::Service as _;

use super::super::*;
use crate::logging::tests::parse_arguments;

/// Counts requests.
#[derive(Default)]
pub(super) struct Fake {
    pub(super) state: Arc<StateReport>,
    pub(super) broken: AtomicBool,
    /// Duration of an observation.
    pub(super) takes: Duration,
    pub(super) asked: AtomicUsize,
    pub(super) now: AtomicUsize,
    pub(super) most: AtomicUsize,
}

/// Counts down even if the client has disconnected.
struct Within<'a>(&'a AtomicUsize);

impl Drop for Within<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl StateInspector for Fake {
    fn observe_state(self: Arc<Self>) -> InspectionFuture<Arc<StateReport>> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.most.fetch_max(self.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let _within = Within(&self.now);
            if !self.takes.is_zero() {
                sleep(self.takes).await;
            }
            let broken = self.broken.load(Ordering::SeqCst);
            if broken { Err("the owner does not answer".into()) } else { Ok(Arc::clone(&self.state)) }
        })
    }

    fn explain_pod(self: Arc<Self>, namespace: String, name: String) -> InspectionFuture<Value> {
        Box::pin(async move {
            let broken = self.broken.load(Ordering::SeqCst);
            let answer = || json!({"pod": format!("{namespace}/{name}")});
            if broken { Err("the owner does not answer".into()) } else { Ok(answer()) }
        })
    }

    fn prove_pod(self: Arc<Self>, namespace: String, name: String) -> InspectionFuture<Value> {
        Box::pin(async move { Ok(json!({"proven": format!("{namespace}/{name}")})) })
    }

    /// Returns the change instead of an answer.
    fn simulate_change(self: Arc<Self>, change: SimulatedChange) -> InspectionFuture<NodeSimulation> {
        let problem = Some(change.to_string());
        Box::pin(async { Ok(NodeSimulation { problem, ..NodeSimulation::default() }) })
    }
}

fn pod(number: usize) -> PodState {
    PodState {
        namespace: "shop".to_owned(),
        name: format!("web-{number}"),
        ips: vec![[10, 0, 0, 1].into()],
        phase: "Running".to_owned(),
        capture: CaptureState::Captured,
        mode: Some(RedirectionMode::Node),
        reason: StateReason {
            code: "ambient-namespace".to_owned(),
            message: "its namespace is labelled".to_owned(),
        },
        kernel: KernelView { observed: vec!["x".repeat(3500)], ..KernelView::default() },
        ..PodState::default()
    }
}

/// A state with this number of pods, of four kilobytes each.
pub(super) fn state(pods: usize) -> Arc<StateReport> {
    let mut state = StateReport { schema: report::SCHEMA.to_owned(), ..StateReport::default() };
    state.pods = (0..pods).map(pod).collect();
    let route = |metric| RouteState {
        netns: "node".to_owned(),
        family: 4,
        table: 100,
        destination: "default".to_owned(),
        kind: "unicast".to_owned(),
        gateway: None,
        device: Some("istioin".to_owned()),
        metric,
    };
    state.network.routes = Comparison::compare_sets(vec![route(1)], vec![route(2)]);
    Arc::new(state)
}

pub(super) const BUILD: BuildInfo = BuildInfo {
    version: "1.2.3",
    revision: "abc",
    golang_version: "",
    status: "Clean",
    tag: "v1.2.3",
    date: "2026-01-02T03:04:05Z",
    tls_provider: String::new(),
};

/// A logger whose output is discarded.
pub(super) fn logger() -> Logger {
    Logger::open(parse_arguments(&["--log_target=/dev/null"]).unwrap()).unwrap()
}

pub(super) fn router(fake: &Arc<Fake>) -> Router {
    debug_router(Arc::clone(fake) as Arc<dyn StateInspector>, logger(), BUILD)
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        assert_eq!(
            (self.status, self.header("content-type")),
            (200, "application/json; charset=utf-8"),
            "{self:?}"
        );
        assert!(self.body.ends_with('\n'));
        serde_json::from_str(&self.body).unwrap()
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// A request from an address, with further headers, one a line.
pub(super) async fn ask_as(
    peer: Option<ConnectionPeer>,
    router: &Router,
    line: &str,
    headers: &str,
    body: &str,
) -> Answer {
    let (method, path) = line.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers.lines().filter_map(|line| line.split_once(": ")) {
        request = request.header(name, value);
    }
    if let Some(peer) = peer {
        request = request.extension(peer);
    }
    let response = router.clone().call(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// A peer of this user, over the loopback.
pub(super) fn local(address: &str, user: Option<u32>) -> Option<ConnectionPeer> {
    Some(ConnectionPeer::Local { address: address.parse().unwrap(), user })
}

/// A peer of root, over the loopback.
pub(super) fn root() -> Option<ConnectionPeer> {
    local("127.0.0.1:1", Some(0))
}

/// A request over the Unix socket.
pub(super) async fn ask(router: &Router, line: &str, body: &str) -> Answer {
    ask_as(Some(ConnectionPeer::Socket), router, line, "host: agent", body).await
}
