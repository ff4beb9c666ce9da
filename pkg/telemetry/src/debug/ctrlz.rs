//! The version, in the JSON shape of Istio's ControlZ. Scopes are in [`super::levels`].

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use serde::Serialize;

use super::{Build, DebugHandler, both, compact};

pub(super) fn routes(router: Router<DebugHandler>) -> Router<DebugHandler> {
    let version = get(async |State(desk): State<DebugHandler>| compact(&version(desk.0.build)));
    both(router, "/versionj", version)
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
    revision: &'static str,
    golang_version: &'static str,
    status: &'static str,
    tag: &'static str,
}

fn version(build: Build) -> Version {
    let Build { version, revision, status, tag } = build;
    Version { version, revision, golang_version: "", status, tag }
}
