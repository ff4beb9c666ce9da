//! Log levels: queries and changes, in our JSON and in ControlZ's.

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::query::query_parameter;
use super::{
    DebugHandler, MAX_BODY, TEXT, build_response, compact_json, error_response, pretty_json, route_with_slash,
};
use crate::logging::{ALL_SCOPES, LogScope, Logger, OutputLevel};

pub(super) const ABOUT: &str = "log levels; over the Unix socket, PUT ?scope=SCOPE&level=LEVEL, or JSON with these members, changes one; \
                                /debug/log/SCOPE is one alone";

pub(super) fn add_routes(router: Router<DebugHandler>) -> Router<DebugHandler> {
    let router = route_with_slash(router, "/debug/log", get(list_scopes).put(change_level));
    let router = route_with_slash(router, "/debug/log/{scope}", get(show_scope).put(change_level));
    let router = route_with_slash(router, "/debug/lines", get(show_lines));
    let router = route_with_slash(router, "/scopej", get(ctrlz_list));
    route_with_slash(router, "/scopej/{scope}", get(ctrlz_one).put(ctrlz_change))
}

pub(super) const ABOUT_LINES: &str = "the agent's last log lines";

async fn show_lines(State(desk): State<DebugHandler>) -> Response {
    build_response(StatusCode::OK, TEXT, desk.logger.recent_lines())
}

/// Status and reason.
type LevelRejection = (StatusCode, String);

/// Body of a request to change a level.
#[derive(Default, Deserialize)]
#[serde(default)]
struct LevelRequest {
    scope: Option<String>,
    level: Option<String>,
}

/// A scope in ControlZ's JSON. Stack traces are not supported; callers are configured by a flag.
#[derive(Serialize)]
struct CtrlzScope {
    name: String,
    description: &'static str,
    output_level: OutputLevel,
    stack_trace_level: &'static str,
    log_callers: bool,
}

impl From<LogScope> for CtrlzScope {
    fn from(scope: LogScope) -> CtrlzScope {
        CtrlzScope {
            name: scope.name,
            description: scope.description,
            output_level: scope.level,
            stack_trace_level: "none",
            log_callers: scope.callers,
        }
    }
}

/// The one field of ControlZ's request that can be changed here.
#[derive(Default, Deserialize)]
#[serde(default)]
struct CtrlzLevelChange {
    output_level: Option<String>,
}

async fn list_scopes(State(desk): State<DebugHandler>) -> Response {
    render_scopes(&desk.logger)
}

async fn show_scope(State(desk): State<DebugHandler>, Path(name): Path<String>) -> Response {
    render_scope(&desk.logger, &name).unwrap_or_else(rejection_response)
}

async fn change_level(
    State(desk): State<DebugHandler>,
    name: Option<Path<String>>,
    uri: Uri,
    body: Body,
) -> Response {
    let named = name.map(|Path(name)| name);
    apply_change(&desk.logger, named, &uri, body).await.unwrap_or_else(rejection_response)
}

/// Changes a level; the scope is named by the path, else by the query, else by the body.
async fn apply_change(
    logger: &Logger,
    named: Option<String>,
    uri: &Uri,
    body: Body,
) -> Result<Response, LevelRejection> {
    let sent: LevelRequest = read_json(body).await?;
    let scope = named.or_else(|| query_parameter(uri, "scope")).or(sent.scope);
    let level = query_parameter(uri, "level").or(sent.level);
    let Some((scope, level)) = scope.zip(level) else {
        return Err((StatusCode::BAD_REQUEST, "a scope and a level are required".to_owned()));
    };
    set_scope_level(logger, &scope, &level)?;
    if scope == ALL_SCOPES { Ok(render_scopes(logger)) } else { render_scope(logger, &scope) }
}

async fn ctrlz_list(State(desk): State<DebugHandler>) -> Response {
    let scopes: Vec<CtrlzScope> = desk.logger.scopes().into_iter().map(CtrlzScope::from).collect();
    compact_json(&scopes)
}

async fn ctrlz_one(State(desk): State<DebugHandler>, Path(name): Path<String>) -> Response {
    let scope = desk.logger.find_scope(&name).map_err(bad_request);
    scope.map_or_else(rejection_response, |scope| compact_json(&CtrlzScope::from(scope)))
}

async fn ctrlz_change(State(desk): State<DebugHandler>, Path(name): Path<String>, body: Body) -> Response {
    let change = async {
        let sent: CtrlzLevelChange = read_json(body).await?;
        match sent.output_level.filter(|level| !level.is_empty()) {
            Some(level) => set_scope_level(&desk.logger, &name, &level),
            // Other fields cannot be changed; ControlZ responds likewise to a request that changes nothing.
            None => desk.logger.find_scope(&name).map(drop).map_err(bad_request),
        }
    };
    change.await.map_or_else(rejection_response, |()| StatusCode::ACCEPTED.into_response())
}

fn render_scopes(logger: &Logger) -> Response {
    pretty_json(&json!({"levels": OutputLevel::ALL, "scopes": logger.scopes()}))
}

fn render_scope(logger: &Logger, name: &str) -> Result<Response, LevelRejection> {
    Ok(pretty_json(&logger.find_scope(name).map_err(bad_request)?))
}

fn set_scope_level(logger: &Logger, scope: &str, level: &str) -> Result<(), LevelRejection> {
    logger.change_level(scope, level).map_err(bad_request)
}

/// Maps both errors to 400, as ControlZ does.
fn bad_request(why: String) -> LevelRejection {
    (StatusCode::BAD_REQUEST, why)
}

fn rejection_response((status, why): LevelRejection) -> Response {
    error_response(status, &why)
}

/// Reads a JSON body; an empty body counts as an empty object.
async fn read_json<T: Default + for<'a> Deserialize<'a>>(body: Body) -> Result<T, LevelRejection> {
    let too_long =
        |_| (StatusCode::PAYLOAD_TOO_LARGE, format!("the body is cut off, or longer than {MAX_BODY} bytes"));
    let bytes = to_bytes(body, MAX_BODY).await.map_err(too_long)?;
    if bytes.is_empty() {
        return Ok(T::default());
    }
    let unreadable = |error| (StatusCode::BAD_REQUEST, format!("unable to decode request: {error}"));
    serde_json::from_slice(&bytes).map_err(unreadable)
}
