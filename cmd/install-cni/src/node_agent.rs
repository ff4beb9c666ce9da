//! The ambient part: a reconciler thread for the node's network, the plugin's socket, and what it follows in the API.

use std::{
    future::pending,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use agent::{
    AgentHandle, AgentMetrics, AgentNotice, AgentServer, AgentService, AgentStatus, AnnotationUpdate,
    FetchedPod, MeshPodMetrics, PluginMetrics, PodFetcher, Reconciler, ReconcilerInbox,
};
use anyhow::{Context as _, Result};
use daemon_settings::{AmbientOptions, DaemonSettings, PodSource};
use facts::follow_api;
use hostfs::DirectoryWatcher;
use model::{Namespace, Pod, PodName, PodUid};
use node_status::{NodeInspector, open_node};
use planner::node::ZtunnelFallback;
use prometheus_client::registry::Registry;
use retry::LastError;
use tokio::{
    runtime,
    sync::{mpsc, oneshot},
    time::sleep,
};
use tracing::warn;

use crate::{
    annotations::UPDATES,
    cluster::{ClusterAccess, connect, look_up_limit},
    events::EventServer,
    notices::NOTICES,
    supervise::{begun_again, restarted},
};

/// Removes everything from the node's network. Answers with what could not be removed, in sentences.
pub(crate) fn uninstall(options: &AmbientOptions) -> Vec<String> {
    let remove = || capture_modes::uninstall(&options.agent);
    match open_node(options) {
        Ok(None) => remove(),
        Ok(Some(node)) => node.run_in(remove).unwrap_or_else(|error| vec![error.to_string()]),
        Err(error) => vec![format!("{error:#}")],
    }
}

/// A file with one word.
const MAX_WORD: usize = 4096;
/// Until a list that could not be followed is tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// The file is read this often whatever the watch says.
const REGULAR: Duration = Duration::from_secs(60);

/// The ambient part at work.
pub(crate) struct RunningAgent {
    /// Sends to the reconciler.
    pub(crate) handle: AgentHandle,
    /// The reconciler, when its loop has ended.
    pub(crate) ended: oneshot::Receiver<Reconciler>,
    /// Pods to be marked.
    pub(crate) marks: mpsc::Receiver<AnnotationUpdate>,
    /// Notices for people, until the publisher takes the receiver.
    pub(crate) notices: Option<mpsc::Receiver<AgentNotice>>,
    /// For probes.
    pub(crate) status: Arc<AgentStatus>,
    /// For people who ask, until it is taken.
    pub(crate) inspector: Option<NodeInspector>,
    /// For Istio's own plugin, once it is served.
    pub(crate) events: Option<EventServer>,
}

/// Opens everything and starts the threads.
pub(crate) fn start(
    ambient: &AmbientOptions,
    registry: &mut Registry,
    mesh_pods: MeshPodMetrics,
) -> Result<RunningAgent> {
    let metrics = AgentMetrics::register(registry, mesh_pods);
    let status = Arc::new(AgentStatus::default());
    let (tell, marks) = mpsc::channel(UPDATES);
    let tell = Box::new(move |mark| drop(tell.try_send(mark)));
    let (notify, notices) = mpsc::channel(NOTICES);
    let notify = Box::new(move |notice| drop(notify.try_send(notice)));
    let settings = Arc::new(ambient.agent.clone());
    let node = open_node(ambient)?;
    let (handle, inbox) = ReconcilerInbox::new();
    let inspector = Some(NodeInspector::new(Arc::clone(&settings), handle.clone(), open_node(ambient)?));
    let (opened, open) = std::sync::mpsc::channel();
    let (say, ended) = oneshot::channel();
    let (of_owner, to_status) = (metrics, Arc::clone(&status));
    // Sockets and children of the thread that opens them are in its namespace.
    let to_mode = handle.clone();
    let work = move || match capture_modes::open(&settings, &to_mode, &of_owner) {
        Err(error) => drop(opened.send(Err(error.into()))),
        Ok(mode) => {
            drop(opened.send(Ok(())));
            let policy = settings.policy.clone();
            let mut owner = Reconciler::new(mode, policy, inbox, of_owner, to_status, tell, notify);
            owner.keep_history(&settings.history);
            owner.run();
            drop(say.send(owner)); // nobody asks any more when the daemon has ended
        }
    };
    let body = move || match node {
        None => work(),
        Some(node) => {
            if let Err(error) = node.run_in(work) {
                warn!(target: "ambient", %error, "cannot enter the node's network namespace");
            }
        }
    };
    thread::Builder::new().name("ambient".to_owned()).spawn(body).context("cannot start a thread")?;
    let opened: Result<()> = open.recv().context("the node's network namespace cannot be entered")?;
    opened.context(
        "cannot change the node's network, for which the container needs CAP_NET_ADMIN and CAP_SYS_ADMIN \
         (cni.privileged=true in the charts of Istio up to 1.20)",
    )?;
    if let Some(file) = ambient.fallback_file.clone() {
        let handle = handle.clone();
        let body = move || begun_again("the policy without ztunnel", || follow_fallback(&file, &handle));
        thread::Builder::new().name("fallback".to_owned()).spawn(body).context("cannot start a thread")?;
    }
    let notices = Some(notices);
    Ok(RunningAgent { handle, ended, marks, notices, status, inspector, events: None })
}

/// Serves our plugin, from now on, and listens for Istio's.
pub(crate) fn serve(
    ambient: &AmbientOptions,
    socket: &Path,
    handle: AgentHandle,
    (metrics, status): (PluginMetrics, Arc<AgentStatus>),
    cluster: Arc<ClusterAccess>,
    runtime: runtime::Handle,
) -> Result<Option<EventServer>> {
    let server = AgentServer::bind(socket).context("cannot serve the plugin")?;
    let lookup: PodFetcher = match &ambient.source {
        PodSource::Api => Box::new(move |name: &PodName, _: &PodUid, deadline| {
            runtime.block_on(look_up(&cluster, name, deadline)).map_err(|error| format!("{error:#}").into())
        }),
        PodSource::Directory(path) => {
            let path = path.display().to_string();
            Box::new(move |name: &PodName, _: &PodUid, _| {
                Err(format!("there is no pod {name} in {path}").into())
            })
        }
    };
    let service = AgentService::new(handle, ambient.agent.policy.clone(), lookup, metrics.clone(), status);
    let events = ambient.events.as_ref();
    let events = events.map(|settings| EventServer::bind(settings, service.clone(), metrics)).transpose()?;
    server.serve(service).context("cannot start a thread")?;
    Ok(events)
}

/// Labels can change at any time: neither answer may come from a cache.
async fn look_up(cluster: &ClusterAccess, name: &PodName, deadline: Instant) -> Result<FetchedPod> {
    let pod = format!("/api/v1/namespaces/{}/pods/{}", name.namespace, name.name);
    let namespace = format!("/api/v1/namespaces/{}", name.namespace);
    let limit = || look_up_limit(deadline);
    let client = cluster.client_within(limit()).await?;
    let pod: Pod = client.get(&format!("pod {name}"), &pod, limit()).await?;
    let namespace: Namespace =
        client.get(&format!("namespace {}", name.namespace), &namespace, limit()).await?;
    Ok((pod, Some(namespace)))
}

/// Follows pods and namespaces, until it is dropped.
pub(crate) async fn follow(settings: Arc<DaemonSettings>, handle: AgentHandle) {
    loop {
        restarted("the list of pods", (settings.clone(), handle.clone()), |(settings, handle)| {
            Box::pin(follow_once(Arc::clone(settings), handle.clone()))
        })
        .await;
        // It ends only where there is nothing that can be followed, or not yet.
        sleep(AGAIN).await;
    }
}

async fn follow_once(settings: Arc<DaemonSettings>, handle: AgentHandle) {
    let tell = move |fact| handle.tell(fact);
    let node = settings.identity.node.clone();
    match settings.ambient.as_ref().map(|ambient| &ambient.source) {
        Some(PodSource::Directory(path)) => match facts::follow_dir(path, &node, tell) {
            // It follows until it is dropped.
            Ok(_follower) => pending().await,
            Err(error) => warn!(target: "ambient", path = %path.display(), %error, "cannot watch"),
        },
        Some(PodSource::Api) => {
            let Some(connection) = &settings.api else { return };
            follow_api(connect(connection).await, &node, settings.identity.own_pod(), tell).await;
        }
        None => {}
    }
}

/// Reads the policy from a file, and again when it changes. A word that is none leaves the last one.
fn follow_fallback(file: &Path, handle: &AgentHandle) {
    let mut last = LastError::default();
    let mut watcher = match DirectoryWatcher::new() {
        Ok(watcher) => watcher,
        Err(error) => {
            warn!(target: "ambient", path = %file.display(), %error, "cannot watch");
            return;
        }
    };
    let directories: Vec<PathBuf> = file.parent().map(Path::to_owned).into_iter().collect();
    loop {
        watcher.watch(&directories);
        match read_fallback(file) {
            Ok(fallback) => {
                last.clear();
                handle.set_fallback(fallback);
            }
            Err(error) if last.replace(&error) => {
                warn!(target: "ambient", path = %file.display(), error, "invalid policy; keeping the last one");
            }
            Err(_) => {}
        }
        if let Err(error) = watcher.wait(REGULAR) {
            warn!(target: "ambient", path = %file.display(), %error, "cannot watch any more");
            return;
        }
    }
}

fn read_fallback(file: &Path) -> Result<ZtunnelFallback, String> {
    let bytes = hostfs::read(file, MAX_WORD).map_err(|error| error.to_string())?;
    String::from_utf8_lossy(&bytes).trim().parse()
}
