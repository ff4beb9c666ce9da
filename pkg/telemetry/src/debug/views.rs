//! What is made from the state.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use axum::routing::{get, put};
use model::Reason;
use report::{LabelChange, is_object_name};
use serde::Serialize;
use tokio::task::spawn_blocking;

use super::query::parameter;
use super::{DebugHandler, HTML, JSON, answer, both, levels, pretty, refuse};

/// A part of the state as text.
type RenderFn = fn(&report::StateReport) -> serde_json::Result<String>;

/// Path, what it has, and how it is made.
const VIEWS: [(&str, &str, RenderFn); 13] = [
    ("state", "everything", |state| text(state)),
    ("pods", "the node's pods: captured or not, why, and what the kernel shows", |state| text(&state.pods)),
    ("ztunnel", "the node's ztunnel pods", |state| text(&state.ztunnels)),
    ("routes", "routes: desired, observed, difference", |state| text(&state.network.routes)),
    ("rules", "policy rules: desired, observed, difference", |state| text(&state.network.rules)),
    ("links", "links: desired, observed, difference", |state| text(&state.network.links)),
    ("ipsets", "members of sets: desired, observed, difference", |state| text(&state.network.ipsets)),
    ("firewall", "rules of the firewall: desired, observed, difference", |state| {
        text(&state.network.firewall)
    }),
    ("sysctls", "kernel settings: desired, observed, difference", |state| text(&state.network.sysctls)),
    ("installation", "files of ours on the node", |state| text(&state.installation)),
    ("plan", "what would be done now", |state| text(&state.plan)),
    ("history", "the last changes, newest first", |state| text(&state.history)),
    ("config", "effective settings, and where each came from", |state| text(&state.config)),
];

pub(super) fn routes(router: Router<DebugHandler>) -> Router<DebugHandler> {
    let router = VIEWS.into_iter().fold(router, |router, (name, _, render)| {
        let handler = get(move |State(desk): State<DebugHandler>| json(desk, render));
        both(router, &format!("/debug/{name}"), handler)
    });
    let router = both(router, "/debug", get(async || pretty(&index())));
    let router = both(router, "/debug/explain", get(explain));
    let router = both(router, "/debug/prove", put(prove));
    let router = both(router, "/debug/simulate", get(simulate));
    let page = get(async || answer(StatusCode::OK, HTML, report::PAGE.to_owned()));
    router.route("/", page.clone()).route("/index.html", page)
}

/// Each path that can be read, with what it has.
fn index() -> BTreeMap<String, &'static str> {
    let others = [
        ("explain?pod=NAMESPACE/NAME", "why a pod is captured, or why not, and what to do about it"),
        (
            "simulate?namespace=NAMESPACE&pod=NAME&labels=KEY=VALUE,KEY-",
            "what a change of labels of a pod, or without pod of a namespace, would do to pods; it changes nothing",
        ),
        ("log", levels::ABOUT),
        ("lines", levels::ABOUT_LINES),
    ];
    let views = VIEWS.into_iter().map(|(name, about, _)| (name, about));
    views.chain(others).map(|(name, about)| (format!("/debug/{name}"), about)).collect()
}

fn text(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(|text| text + "\n")
}

async fn json(desk: DebugHandler, render: RenderFn) -> Response {
    let state: Arc<report::StateReport> = match desk.0.inspect.state().await {
        Ok(state) => state,
        Err(why) => return refuse(StatusCode::SERVICE_UNAVAILABLE, why.as_str()),
    };
    // A megabyte takes a while to write down, and probes are answered by this thread.
    match spawn_blocking(move || render(&state)).await {
        Ok(Ok(text)) => answer(StatusCode::OK, JSON, text),
        Ok(Err(error)) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        Err(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "it could not be shown; the log says more"),
    }
}

async fn explain(State(desk): State<DebugHandler>, uri: Uri) -> Response {
    match asked_pod(&uri) {
        Ok((namespace, name)) => about_pod(desk.0.inspect.explain(namespace, name).await),
        Err(why) => refuse(StatusCode::BAD_REQUEST, why),
    }
}

/// A PUT, because it sends packets: the guard refuses it over TCP.
async fn prove(State(desk): State<DebugHandler>, uri: Uri) -> Response {
    match asked_pod(&uri) {
        Ok((namespace, name)) => about_pod(desk.0.inspect.prove(namespace, name).await),
        Err(why) => refuse(StatusCode::BAD_REQUEST, why),
    }
}

fn about_pod(found: Result<serde_json::Value, Reason>) -> Response {
    match found {
        Ok(value) => pretty(&value),
        Err(why) => refuse(StatusCode::SERVICE_UNAVAILABLE, why.as_str()),
    }
}

/// Namespace and name of the pod that is asked for.
fn asked_pod(uri: &Uri) -> Result<(String, String), &'static str> {
    let asked = parameter(uri, "pod").unwrap_or_default();
    let Some((namespace, name)) = asked.split_once('/').filter(|(_, name)| !name.contains('/')) else {
        return Err("ask for ?pod=NAMESPACE/NAME");
    };
    if [namespace, name].into_iter().all(is_object_name) {
        Ok((namespace.to_owned(), name.to_owned()))
    } else {
        Err("these are no names of a namespace and a pod")
    }
}

async fn simulate(State(desk): State<DebugHandler>, uri: Uri) -> Response {
    let [namespace, pod, labels] = ["namespace", "pod", "labels"].map(|name| parameter(&uri, name));
    let [namespace, labels] = [namespace, labels].map(Option::unwrap_or_default);
    let change = match LabelChange::parse(&namespace, pod.as_deref(), labels.split(',')) {
        Ok(change) => change,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    match desk.0.inspect.simulate(change).await {
        Ok(simulation) => pretty(&simulation),
        Err(why) => refuse(StatusCode::SERVICE_UNAVAILABLE, why.as_str()),
    }
}
