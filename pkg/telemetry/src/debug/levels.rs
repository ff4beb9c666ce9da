//! Log levels: to look at and to change, for us and in ControlZ's shape.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::query::parameter;
use super::{DebugHandler, MAX_BODY, both, compact, pretty, refuse};
use crate::logging::{ALL_SCOPES, LevelError, LogScope, Logger, OutputLevel};

pub(super) const ABOUT: &str = "log levels; over the Unix socket, PUT ?scope=SCOPE&level=LEVEL, or JSON with these members, changes one; \
                                /debug/log/SCOPE is one alone";

pub(super) fn routes(router: Router<DebugHandler>) -> Router<DebugHandler> {
    let router = both(router, "/debug/log", get(list).put(change));
    let router = router.route("/debug/log/{scope}", get(one).put(change_one));
    let router = both(router, "/debug/lines", get(lines));
    let router = both(router, "/scopej", get(ctrlz_list));
    router.route("/scopej/{scope}", get(ctrlz_one).put(ctrlz_change))
}

pub(super) const ABOUT_LINES: &str = "the agent's last log lines";

async fn lines(State(desk): State<DebugHandler>) -> Response {
    super::answer(
        StatusCode::OK,
        HeaderValue::from_static("text/plain; charset=utf-8"),
        desk.0.logger.recent(),
    )
}

/// A status and a reason.
type LevelRejection = (StatusCode, String);

/// A scope in our words.
#[derive(Serialize)]
struct ShownScope {
    scope: String,
    level: &'static str,
    description: &'static str,
}

impl From<LogScope> for ShownScope {
    fn from(scope: LogScope) -> ShownScope {
        ShownScope { scope: scope.name, level: scope.level.as_str(), description: scope.description }
    }
}

/// Body of a request to change a level.
#[derive(Default, Deserialize)]
#[serde(default)]
struct LevelRequest {
    scope: Option<String>,
    level: Option<String>,
}

/// A scope in ControlZ's words. There are no stack traces; who shows callers is decided by a flag.
#[derive(Serialize)]
struct CtrlzScope {
    name: String,
    description: &'static str,
    output_level: &'static str,
    stack_trace_level: &'static str,
    log_callers: bool,
}

impl From<LogScope> for CtrlzScope {
    fn from(scope: LogScope) -> CtrlzScope {
        CtrlzScope {
            name: scope.name,
            description: scope.description,
            output_level: scope.level.as_str(),
            stack_trace_level: "none",
            log_callers: scope.callers,
        }
    }
}

/// Of what ControlZ's clients send, that which can be changed here.
#[derive(Default, Deserialize)]
#[serde(default)]
struct CtrlzWanted {
    output_level: Option<String>,
}

async fn list(State(desk): State<DebugHandler>) -> Response {
    all(&desk.0.logger)
}

async fn one(State(desk): State<DebugHandler>, Path(name): Path<String>) -> Response {
    show(&desk.0.logger, &name).unwrap_or_else(answer)
}

async fn change(State(desk): State<DebugHandler>, uri: Uri, body: Body) -> Response {
    changed(&desk, None, &uri, body).await.unwrap_or_else(answer)
}

async fn change_one(
    State(desk): State<DebugHandler>,
    Path(name): Path<String>,
    uri: Uri,
    body: Body,
) -> Response {
    changed(&desk, Some(name), &uri, body).await.unwrap_or_else(answer)
}

/// The path names the scope, or the query, or the body.
async fn changed(
    desk: &DebugHandler,
    named: Option<String>,
    uri: &Uri,
    body: Body,
) -> Result<Response, LevelRejection> {
    let sent: LevelRequest = read(body).await?;
    let scope = named.or_else(|| parameter(uri, "scope")).or(sent.scope);
    let level = parameter(uri, "level").or(sent.level);
    let Some((scope, level)) = scope.zip(level) else {
        return Err((StatusCode::BAD_REQUEST, "say which scope, and which level".to_owned()));
    };
    set(&desk.0.logger, &scope, &level)?;
    if scope == ALL_SCOPES { Ok(all(&desk.0.logger)) } else { show(&desk.0.logger, &scope) }
}

async fn ctrlz_list(State(desk): State<DebugHandler>) -> Response {
    let scopes: Vec<CtrlzScope> = desk.0.logger.scopes().into_iter().map(CtrlzScope::from).collect();
    compact(&scopes)
}

async fn ctrlz_one(State(desk): State<DebugHandler>, Path(name): Path<String>) -> Response {
    let scope = desk.0.logger.scope(&name).map_err(mistake);
    scope.map_or_else(answer, |scope| compact(&CtrlzScope::from(scope)))
}

async fn ctrlz_change(State(desk): State<DebugHandler>, Path(name): Path<String>, body: Body) -> Response {
    let change = async {
        let sent: CtrlzWanted = read(body).await?;
        match sent.output_level.filter(|level| !level.is_empty()) {
            Some(level) => set(&desk.0.logger, &name, &level),
            // What else there is cannot be changed; ControlZ answers the same to a request that changes nothing.
            None => desk.0.logger.scope(&name).map(drop).map_err(mistake),
        }
    };
    change.await.map_or_else(answer, |()| StatusCode::ACCEPTED.into_response())
}

fn all(logger: &Logger) -> Response {
    let scopes: Vec<ShownScope> = logger.scopes().into_iter().map(ShownScope::from).collect();
    pretty(&json!({"levels": OutputLevel::ALL.map(OutputLevel::as_str), "scopes": scopes}))
}

fn show(logger: &Logger, name: &str) -> Result<Response, LevelRejection> {
    Ok(pretty(&ShownScope::from(logger.scope(name).map_err(mistake)?)))
}

fn set(logger: &Logger, scope: &str, level: &str) -> Result<(), LevelRejection> {
    logger.change_level(scope, level).map(drop).map_err(mistake)
}

/// ControlZ answers 400 to both.
#[expect(clippy::needless_pass_by_value, reason = "where it stands, it takes over what failed")]
fn mistake(error: LevelError) -> LevelRejection {
    (StatusCode::BAD_REQUEST, error.to_string())
}

fn answer((status, why): LevelRejection) -> Response {
    refuse(status, &why)
}

/// No body is as good as an empty object.
async fn read<T: Default + for<'a> Deserialize<'a>>(body: Body) -> Result<T, LevelRejection> {
    let too_long =
        |_| (StatusCode::PAYLOAD_TOO_LARGE, format!("the body is cut off, or longer than {MAX_BODY} bytes"));
    let bytes = to_bytes(body, MAX_BODY).await.map_err(too_long)?;
    if bytes.is_empty() {
        return Ok(T::default());
    }
    let unreadable = |error| (StatusCode::BAD_REQUEST, format!("unable to decode request: {error}"));
    serde_json::from_slice(&bytes).map_err(unreadable)
}
