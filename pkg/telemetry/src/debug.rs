//! The node's state over HTTP, for troubleshooting by people and scripts.
//!
//! `/` is [`report::PAGE`]. Paths below `/debug/` return JSON made from one [`report::StateReport`]; `/debug` lists them. Paths of
//! Istio's ControlZ that scripts use (`/scopej/`, `/versionj/`) return its JSON shapes. Its HTML pages, its profiles
//! (`/debug/pprof/`), the descriptions of a Go process (`/memj/`, `/procj/`, `/envj/`, `/homej/`), and the operations that exit,
//! signal or collect garbage (`/homej/exit`, `/signalj/`, `/memj/forcecollection`) are not provided.
//!
//! Over TCP nothing can be changed by any client. Over the loopback interface only processes of user 0 may read, because with
//! hostNetwork it is the node's; from other machines every client that can connect may. Log levels are changed over the Unix
//! socket, which alone also serves `PUT /debug/prove`, which sends packets in a pod. A request costs at most one call of
//! [`StateInspector`], and each response is sent within [`DEADLINE`]. Nothing here is secret: neither the environment nor the
//! command line is shown.

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
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, get};
use model::Reason;

use crate::connections::ConnectionLimits;
use crate::http::serve_within;
use crate::logging::Logger;

pub use crate::connections::ConnectionPeer;

/// Maximum number of connections; more wait in the kernel's backlog. The expected clients are single people.
pub const MAX_CONNECTIONS: usize = 8;
/// Timeout of a response, after which it is 503.
pub const DEADLINE: Duration = Duration::from_secs(20);
/// Maximum length of a body, in bytes.
const MAX_BODY: usize = 16 * 1024;

/// A browser keeps half a dozen unused connections open, and there are few slots.
const LIMITS: ConnectionLimits = ConnectionLimits {
    head: Duration::from_secs(5),
    stall: Duration::from_secs(5),
    ..ConnectionLimits::with_maximum(MAX_CONNECTIONS)
};

const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// Asynchronous result of an inspection, or the error as a message.
pub type InspectionFuture<T> = Pin<Box<dyn Future<Output = Result<T, Reason>> + Send>>;

/// Access to the state of the node. A call whose caller has given up is dropped.
pub trait StateInspector: Send + Sync + 'static {
    /// Returns the state, from an observation that began after the call. Concurrent callers may share one.
    fn observe_state(self: Arc<Self>) -> InspectionFuture<Arc<report::StateReport>>;

    /// Explains why this pod is captured or not, and what to do about it; an unknown pod has an explanation, too.
    fn explain_pod(self: Arc<Self>, namespace: String, name: String) -> InspectionFuture<serde_json::Value>;

    /// Determines to where the kernel redirects packets sent in this pod's network namespace; one pod at a time.
    fn prove_pod(self: Arc<Self>, namespace: String, name: String) -> InspectionFuture<serde_json::Value>;

    /// Returns the effect of a change of labels or settings on the node's pods.
    fn simulate_change(
        self: Arc<Self>,
        change: report::SimulatedChange,
    ) -> InspectionFuture<report::NodeSimulation>;
}

/// Build information, with the field names of ControlZ.
#[derive(Clone, Debug, serde::Serialize)]
pub struct BuildInfo {
    /// Version of the program.
    pub version: &'static str,
    /// Commit; `unknown` if the build did not set it.
    pub revision: &'static str,
    /// Version of Go: empty, because none is used.
    pub golang_version: &'static str,
    /// `Clean`, `Modified` or `unknown`: whether the source tree matched the commit.
    pub status: &'static str,
    /// Tag; `unknown` if there is none.
    pub tag: &'static str,
    /// Commit time in UTC, as RFC 3339; `unknown` if the build did not set it.
    pub date: &'static str,
    /// Cryptographic provider of TLS, and whether it is in FIPS mode.
    pub tls_provider: String,
}

/// State shared by the handlers.
type DebugHandler = Arc<HandlerState>;

struct HandlerState {
    inspect: Arc<dyn StateInspector>,
    logger: Logger,
    build: BuildInfo,
}

/// Returns the router of all paths, for TCP ([`serve`]) and for a socket of root's ([`crate::local::RootServer`]).
pub fn debug_router(inspect: Arc<dyn StateInspector>, logger: Logger, build: BuildInfo) -> Router {
    let router = views::add_routes(Router::new());
    let router = levels::add_routes(router);
    let version = get(async |State(desk): State<DebugHandler>| compact_json(&desk.build));
    let router = route_with_slash(router, "/versionj", version);
    let desk = Arc::new(HandlerState { inspect, logger, build });
    router.with_state(desk).layer(axum::middleware::from_fn(guard::check_request))
}

/// Serves until `shutdown`; requests in flight may then complete. At most [`MAX_CONNECTIONS`] connections; a client that is slow,
/// silent or does not read is disconnected.
///
/// # Errors
/// The listener cannot be registered with the runtime.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_within(LIMITS, listener, &router, shutdown).await
}

/// Registers a path with and without a trailing slash, as ControlZ does.
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

/// Returns compact JSON, as ControlZ prints it.
fn compact_json(value: &impl serde::Serialize) -> Response {
    json_response(serde_json::to_string(value))
}

/// Returns indented JSON for people.
fn pretty_json(value: &impl serde::Serialize) -> Response {
    json_response(serde_json::to_string_pretty(value))
}

fn json_response(written: serde_json::Result<String>) -> Response {
    match written {
        Ok(text) => build_response(StatusCode::OK, JSON, text + "\n"),
        Err(error) => error_response(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}
