//! The node's state over HTTP, for people who look for a fault and for their scripts.
//!
//! `/` is [`report::PAGE`]. Paths below `/debug/` answer with JSON made from one [`report::StateReport`]; `/debug` lists them.
//! Paths of Istio's ControlZ that scripts use (`/scopej/`, `/versionj/`) answer in its JSON shapes. Its HTML pages, its profiles
//! (`/debug/pprof/`), what describes a Go process (`/memj/`, `/procj/`, `/envj/`, `/homej/`), and what ends, signals or
//! collects (`/homej/exit`, `/signalj/`, `/memj/forcecollection`) are not provided.
//!
//! Over TCP nothing can be changed, whoever asks. Over the loopback processes of user 0 alone may read, because with hostNetwork
//! it is the node's; from other machines everybody who gets a connection may. Levels are changed over the Unix socket, and
//! packets are sent in a pod for it alone (`PUT /debug/prove`). A request costs one question to [`StateInspector`], at most, and
//! each answer comes within [`DEADLINE`]. Nothing here is a secret: neither the environment nor the command line is shown.

mod ctrlz;
mod guard;
mod levels;
mod query;
#[cfg(test)]
mod tests;
mod views;

use std::io;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;
use model::Reason;

use crate::connections::ConnectionLimits;
use crate::http::serve_within;
use crate::logging::Logger;

pub use crate::connections::ConnectionPeer;

/// Connections that are served at a time; more wait in the kernel. People look here, one at a time.
pub const MAX_CONNECTIONS: usize = 8;
/// For an answer: then it is 503.
pub const DEADLINE: Duration = Duration::from_secs(20);
/// The longest body that is taken, in bytes.
const MAX_BODY: usize = 16 * 1024;

/// A browser keeps half a dozen connections that it does not use, and there are not many places.
const LIMITS: ConnectionLimits = ConnectionLimits {
    head: Duration::from_secs(5),
    stall: Duration::from_secs(5),
    ..ConnectionLimits::with_maximum(MAX_CONNECTIONS)
};

const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// An answer that takes a while: the thing, or why there is none, in a sentence.
pub type InspectionFuture<T> = Pin<Box<dyn Future<Output = Result<T, Reason>> + Send>>;

/// Access to the state of the node. A question whose asker has gone is dropped.
pub trait StateInspector: Send + Sync + 'static {
    /// The state, by an observation that began after the call. Of several who ask at a time, some may get the same one.
    fn observe_state(self: Arc<Self>) -> InspectionFuture<Arc<report::StateReport>>;

    /// Why this pod is captured, or why not, and what to do about it; a pod that nobody knows has an answer, too.
    fn explain_pod(self: Arc<Self>, namespace: String, name: String) -> InspectionFuture<serde_json::Value>;

    /// Where the kernel leads packets that are sent in this pod's network namespace; one pod at a time.
    fn prove_pod(self: Arc<Self>, namespace: String, name: String) -> InspectionFuture<serde_json::Value>;

    /// Returns what a change of labels or settings would do to the node's pods.
    fn simulate_change(
        self: Arc<Self>,
        change: report::SimulatedChange,
    ) -> InspectionFuture<report::NodeSimulation>;
}

/// Description of the build, in ControlZ's terms.
#[derive(Clone, Debug, serde::Serialize)]
pub struct BuildInfo {
    /// The program's version.
    pub version: &'static str,
    /// The commit; `unknown` when nobody says.
    pub revision: &'static str,
    /// Empty: the version of Go, of which there is none.
    pub golang_version: &'static str,
    /// `Clean`, `Modified` or `unknown`: whether the tree was as in the commit.
    pub status: &'static str,
    /// The tag; `unknown` when there is none.
    pub tag: &'static str,
    /// When the commit was made, in UTC as RFC 3339 has it; `unknown` when nobody says.
    pub date: &'static str,
    /// The implementation of cryptography that TLS uses, and whether it is in FIPS mode.
    pub tls_provider: String,
}

/// State that the handlers share. A clone refers to the same state.
#[derive(Clone)]
struct DebugHandler(Arc<HandlerState>);

impl DebugHandler {
    fn inspector(&self) -> Arc<dyn StateInspector> {
        Arc::clone(&self.0.inspect)
    }
}

struct HandlerState {
    inspect: Arc<dyn StateInspector>,
    logger: Logger,
    build: BuildInfo,
}

/// All paths. The router serves TCP ([`serve`]) and a socket of root's ([`crate::local::RootServer`]) alike.
pub fn debug_router(inspect: Arc<dyn StateInspector>, logger: Logger, build: BuildInfo) -> Router {
    let router = views::add_routes(Router::new());
    let router = levels::add_routes(router);
    let router = ctrlz::add_routes(router);
    let desk = DebugHandler(Arc::new(HandlerState { inspect, logger, build }));
    router.with_state(desk).layer(axum::middleware::from_fn(guard::check_request))
}

/// Serves until `shutdown`; requests that are at work then may end. At most [`MAX_CONNECTIONS`] at a time, and a client
/// that is slow, silent or does not read is cut off.
///
/// # Errors
/// When the listener cannot be handed to the runtime.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_within(LIMITS, listener, &router, shutdown).await
}

/// With and without a slash at the end, as ControlZ has them.
fn route_with_slash(
    router: Router<DebugHandler>,
    path: &str,
    methods: MethodRouter<DebugHandler>,
) -> Router<DebugHandler> {
    router.route(path, methods.clone()).route(&format!("{path}/"), methods)
}

fn build_response(status: StatusCode, kind: HeaderValue, body: String) -> Response {
    (status, [(CONTENT_TYPE, kind)], body).into_response()
}

fn error_response(status: StatusCode, why: &str) -> Response {
    build_response(status, TEXT, format!("{why}\n"))
}

/// Compact, as ControlZ prints it.
fn compact_json(value: &impl serde::Serialize) -> Response {
    json_response(serde_json::to_string(value))
}

/// For people.
fn pretty_json(value: &impl serde::Serialize) -> Response {
    json_response(serde_json::to_string_pretty(value))
}

fn json_response(written: serde_json::Result<String>) -> Response {
    match written {
        Ok(text) => build_response(StatusCode::OK, JSON, text + "\n"),
        Err(error) => error_response(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}
