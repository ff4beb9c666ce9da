//! Version, in the JSON shape of Istio's ControlZ. Scopes are in [`super::levels`].

use axum::Router;
use axum::extract::State;
use axum::routing::get;

use super::{DebugHandler, compact_json, route_with_slash};

pub(super) fn add_routes(router: Router<DebugHandler>) -> Router<DebugHandler> {
    let version = get(async |State(desk): State<DebugHandler>| compact_json(&desk.0.build));
    route_with_slash(router, "/versionj", version)
}
