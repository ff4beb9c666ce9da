//! The node's agent: a reconciler on its own thread, and the sockets on which plugins query it.
//!
//! Without ambient mode it captures no pod and only identifies pods for the plugin, and the node does not depend on it: if it
//! cannot serve the plugin, the plugin queries the API server.

use std::{sync::Arc, thread};

use agent::{
    AgentHandle, AgentMetrics, AgentOutputs, AgentServer, AgentService, AgentStatus, AnnotationUpdate,
    MeshPodMetrics, PluginMetrics, PodFetcher, Reconciler, ReconcilerInbox,
};
use anyhow::{Context as _, Result};
use daemon_settings::{AmbientOptions, DaemonSettings};
use enrolment::EnrolmentPolicy;
use model::Notice;
use netns::Netns;
use node_status::{NodeInspector, open_node};
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use crate::{
    annotations::UPDATES,
    events::EventServer,
    notices::NOTICES,
    pod_source,
    supervise::{VitalTasks, restart_thread_on_panic},
};

/// Removes everything from the node's network. Returns what could not be removed, as messages.
pub(crate) fn remove_from_node(options: &AmbientOptions) -> Vec<String> {
    let remove = || capture_modes::uninstall(&options.agent);
    match open_node(options) {
        Ok(None) => remove(),
        Ok(Some(node)) => node.run_in(remove).unwrap_or_else(|error| vec![error.to_string()]),
        Err(error) => vec![model::describe_error(&*error)],
    }
}

/// A running reconciler.
pub(crate) struct RunningAgent {
    /// Sends requests to the reconciler.
    pub(crate) handle: AgentHandle,
    /// Yields the reconciler when its loop has ended.
    pub(crate) ended: oneshot::Receiver<Reconciler>,
    /// Pods to annotate.
    pub(crate) marks: mpsc::Receiver<AnnotationUpdate>,
    /// Notices to publish as Events.
    pub(crate) notices: mpsc::Receiver<Notice>,
    /// Health for probes.
    pub(crate) status: Arc<AgentStatus>,
    /// Answers state queries.
    pub(crate) inspector: NodeInspector,
}

/// Opens the capture mode and starts the reconciler's thread.
///
/// # Errors
/// The capture mode cannot be opened, or a thread cannot be started.
pub(crate) fn start_reconciler(
    settings: &Arc<DaemonSettings>,
    registry: &mut Registry,
    mesh_pods: MeshPodMetrics,
) -> Result<RunningAgent> {
    let ambient = settings.ambient.as_ref();
    let metrics = match ambient {
        Some(_) => AgentMetrics::register(registry, mesh_pods),
        // All of these metrics concern ambient mode.
        None => AgentMetrics::register(&mut Registry::default(), MeshPodMetrics::default()),
    };
    let status = Arc::new(AgentStatus::default());
    let (annotate, marks) = mpsc::channel(UPDATES);
    let annotate = Box::new(move |mark| drop(annotate.try_send(mark)));
    let (notify, notices) = mpsc::channel(NOTICES);
    let notify = Box::new(move |notice| drop(notify.try_send(notice)));
    let node = ambient.map(open_node).transpose()?.flatten();
    let (handle, inbox) = ReconcilerInbox::new();
    let inspector = NodeInspector::open(Arc::clone(settings), handle.clone())?;
    let (opened, open) = std::sync::mpsc::channel();
    let (end, ended) = oneshot::channel();
    let (policy, history, to_status) =
        (enrolment_policy(settings), settings.history_path(), Arc::clone(&status));
    let (capture, to_mode) = (ambient.map(|ambient| Arc::new(ambient.agent.clone())), handle.clone());
    // Sockets and child processes belong to the network namespace of the thread that opens them.
    let work = move || match capture_modes::open(capture.as_ref(), &to_mode, &metrics) {
        Err(error) => drop(opened.send(Err(error.into()))),
        Ok(mode) => {
            drop(opened.send(Ok(())));
            let mut reconciler = Reconciler::new(
                mode,
                policy,
                inbox,
                AgentOutputs { metrics, status: to_status, annotate, notify },
            );
            reconciler.keep_history(&history);
            reconciler.run();
            drop(end.send(reconciler)); // the receiver is dropped once the daemon has ended
        }
    };
    let body = move || run_on_node(node, work);
    thread::Builder::new().name("agent".to_owned()).spawn(body).context("cannot start a thread")?;
    let opened: Result<()> = open.recv().context("the node's network namespace cannot be entered")?;
    opened.context(
        "cannot change the node's network, for which the container needs CAP_NET_ADMIN and CAP_SYS_ADMIN \
         (cni.privileged=true in the charts of Istio up to 1.20)",
    )?;
    if let Some(file) = ambient.and_then(|ambient| ambient.fallback_file.clone()) {
        let handle = handle.clone();
        let follow = move || pod_source::follow_fallback(&file, &handle);
        let body = move || restart_thread_on_panic("the policy without ztunnel", &follow);
        thread::Builder::new().name("fallback".to_owned()).spawn(body).context("cannot start a thread")?;
    }
    Ok(RunningAgent { handle, ended, marks, notices, status, inspector })
}

/// Runs `work` in the node's network namespace. `node`: that namespace, if this process is in another one.
fn run_on_node(node: Option<Netns>, work: impl FnOnce() + Send) {
    let Some(node) = node else { return work() };
    if let Err(error) = node.run_in(work) {
        warn!(target: "ambient", %error, "cannot enter the node's network namespace");
    }
}

fn enrolment_policy(settings: &DaemonSettings) -> EnrolmentPolicy {
    settings.ambient.as_ref().map(|ambient| ambient.agent.policy.clone()).unwrap_or_default()
}

/// Starts serving our plugin, and listens for Istio's plugin if configured.
///
/// # Errors
/// A socket cannot be served; without ambient mode an error of our plugin's socket is only logged.
pub(crate) fn serve_plugin(
    settings: &DaemonSettings,
    agent: &RunningAgent,
    metrics: PluginMetrics,
    fetch: PodFetcher,
    vital: VitalTasks,
) -> Result<Option<EventServer>> {
    let server = match AgentServer::bind(&settings.agent_socket) {
        Err(error) if settings.ambient.is_none() => {
            let path = settings.agent_socket.display();
            warn!(target: "install", %path, %error, "cannot serve the plugin, which asks the API server instead");
            return Ok(None);
        }
        bound => bound.context("cannot serve the plugin")?,
    };
    let (handle, status) = (agent.handle.clone(), Arc::clone(&agent.status));
    let service = AgentService::new(handle, enrolment_policy(settings), fetch, metrics.clone(), status);
    let events = settings.ambient.as_ref().and_then(|ambient| ambient.events.as_ref());
    let events = events.map(|events| EventServer::bind(events, service.clone(), metrics)).transpose()?;
    let body = move || vital.watch_thread("the server of the plugin", || server.serve(&service));
    thread::Builder::new().name("agent.sock".to_owned()).spawn(body).context("cannot start a thread")?;
    Ok(events)
}
