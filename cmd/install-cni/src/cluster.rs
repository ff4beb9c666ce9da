//! API resources of the daemon: watches its ConfigMap and its DaemonSet, publishes Events.
//!
//! The installation does not depend on any of them. While the API server is unavailable, the daemon continues with the last known
//! state.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use daemon_settings::{AgentIdentity, DaemonSettings};
use futures_util::StreamExt as _;
use installer::InstallerHandle;
use kube_api::{ApiConnection, ApiErrorKind, Error, KubeClient, ObjectRef};
use model::{DaemonSet, Pod};
use retry::{Attempts, Backoff, LastError};
use serde::Deserialize;
use tokio::{
    sync::watch,
    task::{JoinError, JoinHandle},
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

use crate::{
    notices::{self, NoticeReceivers},
    shutdown::{self, DaemonSetPresence, SharedShutdownFacts},
};

/// Timeout of one request for a pod.
const LOOK_UP: Duration = Duration::from_secs(5);

/// Returns `LOOK_UP`, or the time until the caller's deadline if that is shorter.
pub(crate) fn look_up_limit(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).min(LOOK_UP)
}

/// Access to the cluster, and the last known facts.
#[derive(Default)]
pub(crate) struct ClusterAccess {
    client: watch::Sender<Option<KubeClient>>,
    /// Facts that decide the shutdown.
    pub(crate) memory: SharedShutdownFacts,
}

impl ClusterAccess {
    /// Returns the client; `None` until a credential for one exists.
    pub(crate) fn client(&self) -> Option<KubeClient> {
        self.client.borrow().clone()
    }

    /// Waits up to `limit` for the client, which a newly started agent may not have yet.
    pub(crate) async fn client_within(&self, limit: Duration) -> Result<KubeClient> {
        let client = timeout(limit, self.wait_for_client()).await;
        client.map_err(|_| anyhow!("there is no credential for the API server yet"))
    }

    async fn wait_for_client(&self) -> KubeClient {
        let mut known = self.client.subscribe();
        loop {
            if let Some(client) = &*known.borrow_and_update() {
                return client.clone();
            }
            drop(known.changed().await); // the sender is a field of `self`
        }
    }
}

/// Connects, and keeps the facts for the shutdown up to date. The first request of all reads our own pod: without an answer to it,
/// permissions that are revoked later are no evidence of an uninstallation.
pub(crate) async fn follow_owner(settings: Arc<DaemonSettings>, cluster: Arc<ClusterAccess>) {
    let Some(connection) = &settings.api else { return };
    let client = connect_to_api(connection).await;
    cluster.client.send_replace(Some(client.clone()));
    follow_daemon_set(&client, &settings.identity, &cluster.memory).await;
}

/// Follows resources and publishes Events until it is dropped. `owner`: the task of [`follow_owner`], started before.
pub(crate) async fn follow_resources(
    settings: Arc<DaemonSettings>,
    cluster: Arc<ClusterAccess>,
    installer: InstallerHandle,
    sources: NoticeReceivers,
    owner: JoinHandle<()>,
) {
    if settings.api.is_none() {
        return;
    }
    let client = cluster.wait_for_client().await;
    let config_map = async {
        if let Some((object, key)) = &settings.config_map {
            follow_config_map(&client, object, key, &installer).await;
        }
    };
    let owner = async {
        if let Err(panic) = owner.await.map_err(JoinError::try_into_panic)
            && let Ok(panic) = panic
        {
            std::panic::resume_unwind(panic); // this task is supervised
        }
    };
    tokio::join!(config_map, owner, notices::publish_events(&client, &settings, sources));
}

/// Back-off while a resource does not exist yet.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LAST_BACKOFF: Duration = Duration::from_secs(60);
const BACKOFF: Backoff = Backoff::new(FIRST_BACKOFF, LAST_BACKOFF);

/// Retries until the credential can be read.
pub(crate) async fn connect_to_api(connection: &ApiConnection) -> KubeClient {
    let (mut attempts, mut last) = (BACKOFF.start_attempts(), LastError::default());
    loop {
        match KubeClient::new(connection) {
            Ok(client) => return client,
            Err(error) if last.replace(&error) => {
                warn!(target: "install", %error, "cannot read the credential for the API server");
            }
            Err(_) => {}
        }
        sleep(attempts.record_failure()).await;
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConfigMap {
    data: BTreeMap<String, String>,
}

async fn follow_config_map(client: &KubeClient, object: &ObjectRef, key: &str, installer: &InstallerHandle) {
    let mut last = LastError::default();
    let name = format!("{}/{}", object.namespace, object.name);
    let mut changes = std::pin::pin!(client.watch_object::<ConfigMap>(object));
    while let Some(change) = changes.next().await {
        let value = match change {
            Ok(config_map) => config_map.and_then(|mut config_map| config_map.data.remove(key)),
            Err(error) => {
                if last.replace(&error) {
                    warn!(target: "install", config_map = name, %error, "cannot watch the ConfigMap");
                }
                continue;
            }
        };
        match value {
            Some(text) => {
                if last.clear() {
                    info!(target: "install", config_map = name, "ConfigMap available again");
                }
                installer.set_template(text);
            }
            None => {
                if last.replace(&format_args!("no key {key}")) {
                    warn!(target: "install", config_map = name, key, "ConfigMap or its key is missing; keeping the last configuration");
                }
            }
        }
    }
}

/// Delay before a request that our role forbids is retried: roles change rarely, and there are many agents.
pub(crate) const REFUSED_DELAY: Duration = Duration::from_secs(600);

/// Keeps the facts for the shutdown up to date: whether our role permits reading our own pod, and the presence of our DaemonSet,
/// watched where our role permits it. While reading our own pod is forbidden, as before a role is bound, the DaemonSet is assumed
/// to have the default name.
async fn follow_daemon_set(client: &KubeClient, identity: &AgentIdentity, memory: &SharedShutdownFacts) {
    if identity.namespace.is_empty() {
        warn!(target: "install", "namespace of the agent unknown; nothing will be removed at shutdown");
        return;
    }
    let mut attempts = BACKOFF.start_attempts();
    let owner = match find_owner(client, identity, memory, &mut attempts).await {
        Ok(owner) => owner,
        Err(_) => tokio::select! {
            owner = wait_for_owner(client, identity, memory, attempts) => owner,
            () = follow_named(client, identity, memory, None) => None, // never returns
        },
    };
    follow_named(client, identity, memory, owner).await;
}

/// Follows the DaemonSet with the configured name, else with the name of our pod's owner, else with the default name.
async fn follow_named(
    client: &KubeClient,
    identity: &AgentIdentity,
    memory: &SharedShutdownFacts,
    owner: Option<String>,
) {
    let configured = Some(&identity.daemon_set).filter(|name| !name.is_empty()).cloned();
    let name = configured.or(owner).unwrap_or_else(|| DEFAULT_NAME.to_owned());
    let object = ObjectRef { group: "apps", kind: "DaemonSet", namespace: identity.namespace.clone(), name };
    memory.set_daemon_set(object.clone());
    let name = format!("{}/{}", object.namespace, object.name);
    let description = format!("DaemonSet {name}");
    let mut last = LastError::default();
    loop {
        let error = watch_daemon_set(client, &object, memory, &mut last).await;
        debug!(target: "install", %error, "watch of the DaemonSet refused; reading it at shutdown");
        if let Ok(daemon_set) =
            client.get::<DaemonSet>(&description, &shutdown::daemon_set_path(&object), LIMIT).await
        {
            record_daemon_set(memory, &name, Some(&daemon_set), false);
        }
        sleep(REFUSED_DELAY).await;
    }
}

/// Watches until an API server that is ready refuses the watch; returns the refusal.
async fn watch_daemon_set(
    client: &KubeClient,
    object: &ObjectRef,
    memory: &SharedShutdownFacts,
    last: &mut LastError,
) -> Error {
    let name = format!("{}/{}", object.namespace, object.name);
    let mut changes = std::pin::pin!(client.watch_object::<DaemonSet>(object));
    loop {
        match changes.next().await {
            Some(Ok(daemon_set)) => {
                if last.clear() {
                    info!(target: "install", daemon_set = name, "DaemonSet watched again");
                }
                record_daemon_set(memory, &name, daemon_set.as_ref(), true);
            }
            Some(Err(error)) => {
                memory.lose_watch();
                if error.kind() == ApiErrorKind::Refused && client.server_is_ready(LIMIT, None).await {
                    return error;
                }
                if last.replace(&error) {
                    warn!(target: "install", daemon_set = name, %error, "cannot watch the DaemonSet");
                }
            }
            None => std::future::pending().await, // a watch never ends by itself
        }
    }
}

fn record_daemon_set(
    memory: &SharedShutdownFacts,
    name: &str,
    daemon_set: Option<&DaemonSet>,
    watched: bool,
) {
    match memory.update_presence(daemon_set, watched) {
        Some(DaemonSetPresence::Present) => {
            info!(target: "install", daemon_set = name, "found the agent's DaemonSet");
        }
        Some(DaemonSetPresence::Deleted) => {
            info!(target: "install", daemon_set = name, "the agent's DaemonSet has been deleted or is being deleted");
        }
        Some(DaemonSetPresence::Unknown) | None => {}
    }
}

/// Name of our DaemonSet in Istio's charts.
const DEFAULT_NAME: &str = "istio-cni-node";
const LIMIT: Duration = Duration::from_secs(10);

/// Finds the DaemonSet that owns our pod; `None`: it has no such owner. Retries until the API server answers; returns a refusal.
async fn find_owner(
    client: &KubeClient,
    identity: &AgentIdentity,
    memory: &SharedShutdownFacts,
    attempts: &mut Attempts,
) -> Result<Option<String>, Error> {
    loop {
        match client.get::<Pod>("our own pod", &shutdown::own_pod_path(identity), LIMIT).await {
            Ok(pod) => {
                memory.set_pod_readable();
                return Ok(shutdown::owning_daemon_set(&pod).map(str::to_owned));
            }
            Err(error) if error.kind() == ApiErrorKind::NotFound => {
                memory.set_pod_readable();
                return Ok(None);
            }
            Err(error) if error.kind() == ApiErrorKind::Refused => return Err(error),
            Err(_) => sleep(attempts.record_failure()).await,
        }
    }
}

/// Waits until our role permits [`find_owner`].
async fn wait_for_owner(
    client: &KubeClient,
    identity: &AgentIdentity,
    memory: &SharedShutdownFacts,
    mut attempts: Attempts,
) -> Option<String> {
    loop {
        sleep(attempts.record_failure()).await;
        if let Ok(owner) = find_owner(client, identity, memory, &mut attempts).await {
            return owner;
        }
    }
}
