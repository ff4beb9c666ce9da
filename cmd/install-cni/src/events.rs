//! `pluginevent.sock`: the HTTP endpoint that Istio's own plugin (1.29 to 1.31) calls at an ADD.
//!
//! `POST /cmdadd`: 200 without a body when the pod is captured, 400 for a body that is no event, else 500 with the reason, within
//! the plugin's timeout.

use std::{
    future::Future,
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use agent::{AgentService, PluginMetrics};
use agent_protocol::{AgentRequest, CniVerb, EVENT_PATH, PluginEvent};
use anyhow::{Context as _, Result};
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State,
    http::StatusCode,
    routing::post,
};
use cni_types::{K8sNamespace, K8sPodName};
use daemon_settings::EventSettings;
use netns::Netns;
use telemetry::local::RootServer;
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};
use tracing::{error, warn};

/// Maximum length of a body, in bytes.
const MAX_BODY: usize = 1024 * 1024;
/// Concurrent connections; more wait in the kernel's backlog.
const MAX_CONNECTIONS: usize = 128;
/// Pods in progress. One that timed out may still be in progress.
const MAX_PODS: usize = 256;
/// The plugin waits for five seconds; a later response reaches no one.
const LIMIT: Duration = Duration::from_millis(4500);
/// Deadline of the agent, by when it knows why a pod is not enrolled yet.
const DEADLINE: Duration = Duration::from_millis(4200);

/// Handles requests; clones share one state.
#[derive(Clone)]
struct PluginEventHandler {
    service: AgentService,
    settings: EventSettings,
    metrics: PluginMetrics,
    room: Arc<Semaphore>,
}

/// Status and reason.
type EventRejection = (StatusCode, String);

/// A listening server.
pub(crate) struct EventServer {
    server: RootServer,
    router: Router,
}

impl EventServer {
    /// Binds the socket.
    ///
    /// # Errors
    /// Another agent serves the socket, or the system refuses.
    pub(crate) fn bind(
        settings: &EventSettings,
        service: AgentService,
        metrics: PluginMetrics,
    ) -> Result<EventServer> {
        let server = RootServer::bind(&settings.socket).context("cannot serve Istio's own plugin")?;
        let room = Arc::new(Semaphore::new(MAX_PODS));
        let handler = PluginEventHandler { service, settings: settings.clone(), metrics, room };
        let router = Router::new().route(EVENT_PATH, post(answer_add)).with_state(handler);
        Ok(EventServer { server, router })
    }

    /// Serves until `shutdown`.
    pub(crate) async fn run(self, shutdown: impl Future<Output = ()>) {
        if let Err(error) = self.server.run(self.router, MAX_CONNECTIONS, shutdown).await {
            error!(target: "ambient", %error, "cannot serve Istio's own plugin");
        }
    }
}

async fn answer_add(State(handler): State<PluginEventHandler>, body: Body) -> EventRejection {
    let late = || Err(internal_error(&format!("the agent did not handle it within {LIMIT:?}")));
    let metrics = handler.metrics.clone();
    let done = timeout(LIMIT, enrol_pod(handler, body)).await.unwrap_or_else(|_| late());
    let (status, why) = done.map_or_else(|refusal| refusal, |()| (StatusCode::OK, String::new()));
    metrics.count_response(status.as_u16());
    if status != StatusCode::OK {
        warn!(target: "ambient", status = status.as_u16(), reason = why, "CNI event rejected");
    }
    (status, why)
}

async fn enrol_pod(handler: PluginEventHandler, body: Body) -> Result<(), EventRejection> {
    let deadline = Instant::now() + DEADLINE;
    let bytes = to_bytes(body, MAX_BODY).await.map_err(|error| bad_request(&format!("no body: {error}")))?;
    if bytes.is_empty() {
        return Err(bad_request(&"no body"));
    }
    let event = PluginEvent::parse(&bytes).map_err(|error| bad_request(&error))?;
    K8sNamespace::new(&event.namespace).map_err(|error| bad_request(&format!("PodNamespace: {error}")))?;
    K8sPodName::new(&event.name).map_err(|error| bad_request(&format!("PodName: {error}")))?;
    let PluginEventHandler { service, settings, room, .. } = handler;
    let permit = room.acquire_owned().await.map_err(|error| internal_error(&error))?;
    let asked = spawn_blocking(move || {
        let _permit = permit;
        ask_agent(&service, &settings, event, deadline)
    });
    asked.await.map_err(|error| internal_error(&error))?.map_err(|why| internal_error(&why))
}

fn bad_request(why: &impl ToString) -> EventRejection {
    (StatusCode::BAD_REQUEST, why.to_string())
}

fn internal_error(why: &impl ToString) -> EventRejection {
    (StatusCode::INTERNAL_SERVER_ERROR, why.to_string())
}

/// Waits for the agent's answer.
fn ask_agent(
    service: &AgentService,
    settings: &EventSettings,
    event: PluginEvent,
    deadline: Instant,
) -> Result<(), String> {
    let PluginEvent { netns, name, namespace, ips } = event;
    let pod = format!("pod {namespace}/{name}");
    let netns = open_netns(settings, &netns).map_err(|why| format!("{pod}: {why}"))?;
    let request = AgentRequest { namespace, name, ips, ..AgentRequest::new(CniVerb::Add) };
    let answer = service.answer_by(request, Some(netns), deadline);
    match answer.error {
        Some(why) => Err(format!("{pod}: {why}")),
        None if answer.enrolled => Ok(()),
        None => Err(format!("{pod} is not eligible: it does not belong to ambient mode")),
    }
}

/// Opens the network namespace with this path on the host.
fn open_netns(settings: &EventSettings, path: &str) -> Result<Netns, String> {
    let netns = open_any(settings, path)?;
    // The agent rejects the node's netns; this process may be in another one.
    let own = Netns::current().map_err(|error| error.to_string())?;
    if own.id() == netns.id() {
        return Err(format!("{path} is the network namespace of the node, or the agent's own"));
    }
    Ok(netns)
}

fn open_any(settings: &EventSettings, path: &str) -> Result<Netns, String> {
    let candidates = candidate_paths(settings, path)?;
    for place in &candidates {
        match Netns::open(place) {
            Err(netns::Error::Missing { .. }) => {}
            opened => return opened.map_err(|error| error.to_string()),
        }
    }
    let tried: Vec<String> = candidates.iter().map(|place| place.display().to_string()).collect();
    Err(format!("there is no network namespace {path}; looked for as {}", tried.join(", ")))
}

/// Returns candidate paths, in order of preference.
fn candidate_paths(settings: &EventSettings, path: &str) -> Result<Vec<PathBuf>, String> {
    let below = Path::new(path).strip_prefix("/").map_err(|_| format!("{path:?} is not an absolute path"))?;
    if !below.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(format!("{path:?} is not a plain path"));
    }
    if let Ok(process) = below.strip_prefix("proc") {
        // In the container this PID is another process, or none; `self` is always another one.
        let first = process.iter().next().and_then(|part| part.to_str()).unwrap_or_default();
        if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!("{path:?} names no process"));
        }
        return Ok(vec![settings.proc.join(process)]);
    }
    let mut candidates = vec![settings.root.join(below), Path::new("/").join(below)];
    // Istio's chart mounts the runtime's directory, whichever it is, at a fixed path.
    if let (Some(name), Ok(directory)) = (below.file_name(), settings.netns_directory.strip_prefix("/")) {
        let usual = settings.root.join(directory).join(name);
        if !candidates.contains(&usual) {
            candidates.push(usual);
        }
    }
    Ok(candidates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> EventSettings {
        let [socket, root, proc, netns_directory] =
            ["/event.sock", "/host", "/hostproc", "/var/run/netns"].map(PathBuf::from);
        EventSettings { socket, root, proc, netns_directory }
    }

    #[test]
    fn a_namespace_of_the_host_is_looked_for_where_it_may_be_mounted() {
        let of = |path: &str| {
            let found = candidate_paths(&settings(), path).unwrap();
            found.iter().map(|place| place.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(of("/var/run/netns/cni-1"), ["/host/var/run/netns/cni-1", "/var/run/netns/cni-1"]);
        assert_eq!(
            of("/var/run/docker/netns/cni-1"),
            ["/host/var/run/docker/netns/cni-1", "/var/run/docker/netns/cni-1", "/host/var/run/netns/cni-1"]
        );
        assert_eq!(of("/proc/17/ns/net"), ["/hostproc/17/ns/net"], "never a process of the container");
    }

    #[test]
    fn what_could_lead_elsewhere_is_no_path() {
        for path in [
            "",
            "netns",
            "./a",
            "/var/../proc/1/ns/net",
            "/proc",
            "/proc/self/ns/net",
            "/proc/1a/ns/net",
            "/..",
        ] {
            assert!(candidate_paths(&settings(), path).is_err(), "{path:?}");
        }
    }
}
