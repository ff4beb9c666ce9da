//! The version, in the JSON shape of Istio's ControlZ. Scopes are in [`super::levels`].

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use serde::Serialize;

use super::{BuildInfo, DebugHandler, compact_json, route_with_slash};

pub(super) fn add_routes(router: Router<DebugHandler>) -> Router<DebugHandler> {
    let version =
        get(async |State(desk): State<DebugHandler>| compact_json(&version_info(desk.0.build.clone())));
    route_with_slash(router, "/versionj", version)
}

#[derive(Serialize)]
struct VersionInfo {
    version: &'static str,
    revision: &'static str,
    golang_version: &'static str,
    status: &'static str,
    tag: &'static str,
    date: &'static str,
    tls_provider: String,
}

fn version_info(build: BuildInfo) -> VersionInfo {
    let BuildInfo { version, revision, status, tag, date, tls_provider } = build;
    VersionInfo { version, revision, golang_version: "", status, tag, date, tls_provider }
}
