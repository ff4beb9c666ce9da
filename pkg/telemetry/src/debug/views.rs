//! Views of the state.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use axum::routing::{get, put};
use model::Reason;
use report::{LabelChange, SettingsChange, SimulatedChange, is_object_name};
use serde::Serialize;
use serde_json::to_string_pretty;
use tokio::task::spawn_blocking;

use super::query::query_parameter;
use super::{
    DebugHandler, HTML, build_response, error_response, json_response, levels, pretty_json, route_with_slash,
};

/// Renders a part of the state as text.
type RenderFn = fn(&report::StateReport) -> serde_json::Result<String>;

/// Path, description and renderer of each view.
const VIEWS: [(&str, &str, RenderFn); 13] = [
    ("state", "everything", |state| to_string_pretty(state)),
    ("pods", "the node's pods: captured or not, why, and what the kernel shows", |state| {
        to_string_pretty(&state.pods)
    }),
    ("ztunnel", "the node's ztunnel pods", |state| to_string_pretty(&state.ztunnels)),
    ("routes", "routes: desired, observed, difference", |state| to_string_pretty(&state.network.routes)),
    ("rules", "policy rules: desired, observed, difference", |state| to_string_pretty(&state.network.rules)),
    ("links", "links: desired, observed, difference", |state| to_string_pretty(&state.network.links)),
    ("ipsets", "members of sets: desired, observed, difference", |state| {
        to_string_pretty(&state.network.ipsets)
    }),
    ("firewall", "rules of the firewall: desired, observed, difference", |state| {
        to_string_pretty(&state.network.firewall)
    }),
    ("sysctls", "kernel settings: desired, observed, difference", |state| {
        to_string_pretty(&state.network.sysctls)
    }),
    ("installation", "files of ours on the node", |state| to_string_pretty(&state.installation)),
    ("plan", "what would be done now", |state| to_string_pretty(&state.plan)),
    ("history", "the last changes, newest first", |state| to_string_pretty(&state.history)),
    ("config", "effective settings, and where each came from", |state| to_string_pretty(&state.config)),
];

pub(super) fn add_routes(router: Router<DebugHandler>) -> Router<DebugHandler> {
    let router = VIEWS.into_iter().fold(router, |router, (name, _, render)| {
        let handler = get(move |State(desk): State<DebugHandler>| render_view(desk, render));
        route_with_slash(router, &format!("/debug/{name}"), handler)
    });
    let router = route_with_slash(router, "/debug", get(async || pretty_json(&list_paths())));
    let router = route_with_slash(router, "/debug/explain", get(explain_pod));
    let router = route_with_slash(router, "/debug/prove", put(prove_pod));
    let router = route_with_slash(router, "/debug/simulate", get(simulate_change));
    let page = get(async || build_response(StatusCode::OK, HTML, report::PAGE.to_owned()));
    router.route("/", page.clone()).route("/index.html", page)
}

/// Lists each readable path with its description.
fn list_paths() -> BTreeMap<String, &'static str> {
    let others = [
        ("explain?pod=NAMESPACE/NAME", "why a pod is captured, or why not, and what to do about it"),
        (
            "simulate?namespace=NAMESPACE&pod=NAME&labels=KEY=VALUE,KEY-",
            "what a change of labels of a pod, or without pod of a namespace, would do to pods; it changes nothing",
        ),
        (
            "simulate?settings=JSON",
            "what an agent with other settings would do to pods; docs/debug-http.md has the form",
        ),
        ("log", levels::ABOUT),
        ("lines", levels::ABOUT_LINES),
    ];
    let views = VIEWS.into_iter().map(|(name, about, _)| (name, about));
    views.chain(others).map(|(name, about)| (format!("/debug/{name}"), about)).collect()
}

async fn render_view(desk: DebugHandler, render: RenderFn) -> Response {
    let state: Arc<report::StateReport> = match desk.inspect.clone().observe_state().await {
        Ok(state) => state,
        Err(why) => return error_response(StatusCode::SERVICE_UNAVAILABLE, why.as_str()),
    };
    // Serialising a megabyte takes a while, and this thread also answers probes.
    match spawn_blocking(move || render(&state)).await {
        Ok(text) => json_response(text),
        Err(_) => error_response(StatusCode::INTERNAL_SERVER_ERROR, "cannot be shown; see the agent's log"),
    }
}

async fn explain_pod(State(desk): State<DebugHandler>, uri: Uri) -> Response {
    match asked_pod(&uri) {
        Ok((namespace, name)) => answer_question(desk.inspect.clone().explain_pod(namespace, name).await),
        Err(why) => error_response(StatusCode::BAD_REQUEST, why),
    }
}

/// Proves a pod. PUT, because it sends packets: the guard refuses it over TCP.
async fn prove_pod(State(desk): State<DebugHandler>, uri: Uri) -> Response {
    match asked_pod(&uri) {
        Ok((namespace, name)) => answer_question(desk.inspect.clone().prove_pod(namespace, name).await),
        Err(why) => error_response(StatusCode::BAD_REQUEST, why),
    }
}

fn answer_question(found: Result<impl Serialize, Reason>) -> Response {
    match found {
        Ok(value) => pretty_json(&value),
        Err(why) => error_response(StatusCode::SERVICE_UNAVAILABLE, why.as_str()),
    }
}

/// Returns namespace and name of the requested pod.
fn asked_pod(uri: &Uri) -> Result<(String, String), &'static str> {
    let asked = query_parameter(uri, "pod").unwrap_or_default();
    let Some((namespace, name)) = asked.split_once('/').filter(|(_, name)| !name.contains('/')) else {
        return Err("ask for ?pod=NAMESPACE/NAME");
    };
    if [namespace, name].into_iter().all(is_object_name) {
        Ok((namespace.to_owned(), name.to_owned()))
    } else {
        Err("not the names of a namespace and a pod")
    }
}

async fn simulate_change(State(desk): State<DebugHandler>, uri: Uri) -> Response {
    match asked_change(&uri) {
        Ok(change) => answer_question(desk.inspect.clone().simulate_change(change).await),
        Err(why) => error_response(StatusCode::BAD_REQUEST, &why),
    }
}

fn asked_change(uri: &Uri) -> Result<SimulatedChange, String> {
    if let Some(settings) = query_parameter(uri, "settings") {
        let change = SettingsChange::from_text(&settings);
        return change.map(SimulatedChange::Settings).map_err(|error| error.to_string());
    }
    let [namespace, pod, labels] = ["namespace", "pod", "labels"].map(|name| query_parameter(uri, name));
    let [namespace, labels] = [namespace, labels].map(Option::unwrap_or_default);
    let change = LabelChange::parse(&namespace, pod.as_deref(), labels.split(','));
    change.map(SimulatedChange::Labels).map_err(|error| error.to_string())
}
