//! The agent without ambient mode: it tells the plugin who a pod is, from the node's pods as the API server shows them, and
//! captures none.
//!
//! The node does not depend on it: where it cannot work, the plugin asks the API server.

use std::{sync::Arc, thread, time::Instant};

use agent::{
    AgentHandle, AgentMetrics, AgentServer, AgentService, AgentStatus, FetchedPod, MeshPodMetrics,
    PluginMetrics, PodFetcher, Reconciler, ReconcilerInbox, SidecarsOnly,
};
use anyhow::{Context as _, Result, anyhow};
use daemon_settings::DaemonSettings;
use facts::follow_pods;
use kubeio::{ApiConnection, ApiErrorKind};
use model::{Pod, PodName, PodUid};
use planner::{EnrolmentPolicy, Fact};
use prometheus_client::registry::Registry;
use retry::LastError;
use tokio::{runtime, time::sleep};
use tracing::{debug, info, warn};

use crate::{
    cluster::{ClusterAccess, REFUSED_PAUSE, connect, look_up_limit},
    supervise::restarted,
};

/// The loop that answers the plugin, and knows the node's pods where the role permits to follow them.
#[derive(Clone)]
pub(crate) struct SidecarAgent {
    pub(crate) handle: AgentHandle,
    pub(crate) status: Arc<AgentStatus>,
}

/// Serves the plugin until the process ends; `None`, after a warning: it cannot be served.
pub(crate) fn start(
    settings: &DaemonSettings,
    cluster: &Arc<ClusterAccess>,
    runtime: &runtime::Handle,
    plugin: &PluginMetrics,
) -> Option<SidecarAgent> {
    let started = serve(settings, cluster, runtime, plugin);
    let failed = |error| {
        let path = settings.agent_socket.display();
        warn!(target: "install", %path, error = format!("{error:#}"), "cannot serve the plugin, which asks the API server instead");
    };
    let agent = started.map_err(failed).ok()?;
    if let Some(connection) = settings.api.clone() {
        let (node, own) = (settings.identity.node.clone(), settings.identity.own_pod());
        let handle = agent.handle.clone();
        let following = PodsOfNode { connection, node, own, handle, last: LastError::default() };
        runtime.spawn(restarted("the list of pods", following, |following| Box::pin(following.follow())));
    }
    Some(agent)
}

fn serve(
    settings: &DaemonSettings,
    cluster: &Arc<ClusterAccess>,
    runtime: &runtime::Handle,
    plugin: &PluginMetrics,
) -> Result<SidecarAgent> {
    let server = AgentServer::bind(&settings.agent_socket).map_err(|error| anyhow!("{error}"))?;
    let (handle, inbox) = ReconcilerInbox::new();
    let status = Arc::new(AgentStatus::default());
    // All of these are about ambient mode.
    let metrics = AgentMetrics::register(&mut Registry::default(), MeshPodMetrics::default());
    let policy = EnrolmentPolicy::default();
    let (of_loop, to_status) = (metrics, Arc::clone(&status));
    let (ignore_marks, history) = (Box::new(drop), settings.history());
    let body = move || {
        let mode = Box::new(SidecarsOnly);
        let policy = EnrolmentPolicy::default();
        let mut agent =
            Reconciler::new(mode, policy, inbox, of_loop, to_status, ignore_marks, Box::new(drop));
        agent.keep_history(&history);
        agent.run();
    };
    thread::Builder::new().name("agent".to_owned()).spawn(body).context("cannot start a thread")?;
    let (cluster, runtime) = (Arc::clone(cluster), runtime.clone());
    let lookup: PodFetcher = Box::new(move |name: &PodName, uid: &PodUid, deadline| {
        let found = runtime.block_on(look_up(&cluster, name, uid, deadline));
        found.map_err(|error| format!("{error:#}").into())
    });
    server
        .serve(AgentService::new(handle.clone(), policy, lookup, plugin.clone(), Arc::clone(&status)))
        .context("cannot start a thread")?;
    Ok(SidecarAgent { handle, status })
}

/// A pod that has the UID of the runtime was made by the same admission, which decides: that one the API server may take
/// from its cache.
async fn look_up(
    cluster: &ClusterAccess,
    name: &PodName,
    uid: &PodUid,
    deadline: Instant,
) -> Result<FetchedPod> {
    let limit = || look_up_limit(deadline);
    let client = cluster.client_within(limit()).await?;
    let (what, path) =
        (format!("pod {name}"), format!("/api/v1/namespaces/{}/pods/{}", name.namespace, name.name));
    if !uid.is_empty() {
        match client.get::<Pod>(&what, &format!("{path}?resourceVersion=0"), limit()).await {
            Ok(pod) if pod.has_runtime_uid(uid) => return Ok((pod, None)),
            Err(error) if error.kind() != ApiErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    Ok((client.get(&what, &path, limit()).await?, None))
}

/// The node whose pods are followed, and the identity that is used for it.
struct PodsOfNode {
    connection: ApiConnection,
    node: String,
    own: Option<PodName>,
    handle: AgentHandle,
    last: LastError,
}

impl PodsOfNode {
    /// Follows the node's pods, until it is dropped; where our role does not grant that, each pod is asked for when it starts.
    async fn follow(&mut self) {
        let client = connect(&self.connection).await;
        loop {
            let handle = self.handle.clone();
            let tell = move |fact: Fact| handle.tell(fact);
            let refusal = follow_pods(client.clone(), &self.node, self.own.clone(), tell).await;
            if self.last.replace(&refusal) {
                info!(target: "install", "no permission to watch the node's pods; getting each pod that starts");
                debug!(target: "install", error = %refusal, "watch of pods refused");
            }
            sleep(REFUSED_PAUSE).await;
        }
    }
}
