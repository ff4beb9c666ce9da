//! What the daemon follows in the API: its ConfigMap and its DaemonSet; and what it tells: Events.
//!
//! Nothing here is needed for the installation. While the API server is away, everything goes on with what is known.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use futures_util::StreamExt as _;
use installer::Handle;
use kubeio::{Client, Connection, Error, Kind, Object};
use model::DaemonSet;
use serde::Deserialize;
use tracing::{debug, info, warn};

use crate::{
    notices::{self, Sources},
    settings::{Identity, Settings},
    shutdown::{self, Memory, OwnPod, Presence},
};

/// The cluster, as far as it is known.
#[derive(Default)]
pub(crate) struct Cluster {
    client: RwLock<Option<Client>>,
    /// What the shutdown needs to know.
    pub(crate) memory: Memory,
}

impl Cluster {
    /// The client; none as long as there is no credential for one.
    pub(crate) fn client(&self) -> Option<Client> {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_client(&self, client: &Client) {
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
    }
}

/// Follows and tells until it is dropped.
pub(crate) async fn follow(
    settings: Arc<Settings>,
    cluster: Arc<Cluster>,
    installer: Handle,
    sources: Sources,
) {
    let Some(connection) = &settings.api else { return };
    let client = connect(connection).await;
    cluster.set_client(&client);
    let config_map = async {
        if let Some((object, key)) = &settings.config_map {
            follow_config_map(&client, object, key, &installer).await;
        }
    };
    tokio::join!(
        config_map,
        follow_daemon_set(&client, &settings.identity, &cluster.memory),
        notices::publish(&client, &settings, sources),
    );
}

/// Pauses while something is not there yet.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// Tries until the credential can be read.
pub(crate) async fn connect(connection: &Connection) -> Client {
    let mut pause = FIRST_PAUSE;
    let mut said = WarnOnce::default();
    loop {
        match Client::new(connection) {
            Ok(client) => return client,
            Err(error) => said.warn(&error),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConfigMap {
    data: BTreeMap<String, String>,
}

async fn follow_config_map(client: &Client, object: &Object, key: &str, installer: &Handle) {
    let mut said = WarnOnce::default();
    let mut changes = std::pin::pin!(client.watch::<ConfigMap>(object));
    while let Some(change) = changes.next().await {
        let value = match change {
            Ok(config_map) => config_map.and_then(|mut config_map| config_map.data.remove(key)),
            Err(error) => {
                said.warn(&error);
                continue;
            }
        };
        match value {
            Some(text) => {
                said.forget();
                installer.set_template(text);
            }
            None => {
                let name = format!("{}/{}", object.namespace, object.name);
                said.warn(&format!(
                    "ConfigMap {name} or its key {key} is missing: the last configuration stays"
                ));
            }
        }
    }
}

/// Until a question that our role does not allow is asked again: roles change rarely, and there are many agents.
const REFUSED_PAUSE: Duration = Duration::from_secs(600);

/// Keeps what the shutdown needs to know up to date: our DaemonSet by a watch, where our role allows one.
async fn follow_daemon_set(client: &Client, identity: &Identity, memory: &Memory) {
    if identity.namespace.is_empty() {
        warn!(target: "install", "our namespace is not known, so that an upgrade cannot be distinguished from an uninstallation: nothing is removed at shutdown");
        return;
    }
    let name = daemon_set_name(client, identity, memory).await;
    let object = Object { group: "apps", kind: "DaemonSet", namespace: identity.namespace.clone(), name };
    memory.set_daemon_set(object.clone());
    let whole = format!("DaemonSet {}/{}", object.namespace, object.name);
    let mut said = WarnOnce::default();
    loop {
        let refusal = watch_daemon_set(client, &object, memory, &mut said).await;
        debug!(target: "install", "{refusal}: our DaemonSet is asked for at shutdown instead");
        if let Ok(daemon_set) =
            client.get::<DaemonSet>(&whole, &shutdown::daemon_set_path(&object), LIMIT).await
        {
            observe(memory, &whole, Some(&daemon_set), false);
        }
        tokio::time::sleep(REFUSED_PAUSE).await;
    }
}

/// Watches until that is refused; returns the refusal.
async fn watch_daemon_set(client: &Client, object: &Object, memory: &Memory, said: &mut WarnOnce) -> Error {
    let whole = format!("DaemonSet {}/{}", object.namespace, object.name);
    let mut changes = std::pin::pin!(client.watch::<DaemonSet>(object));
    loop {
        match changes.next().await {
            Some(Ok(daemon_set)) => {
                said.forget();
                observe(memory, &whole, daemon_set.as_ref(), true);
            }
            Some(Err(error)) => {
                memory.lose_watch();
                if error.kind() == Kind::Refused {
                    return error;
                }
                said.warn(&error);
            }
            None => std::future::pending().await, // a watch does not end by itself
        }
    }
}

fn observe(memory: &Memory, name: &str, daemon_set: Option<&DaemonSet>, watched: bool) {
    match memory.observe(daemon_set, watched) {
        Some(Presence::Present) => info!(target: "install", "{name} is ours"),
        Some(Presence::Deleted) => {
            info!(target: "install", "{name}, which is ours, has been deleted or is being deleted");
        }
        Some(Presence::Unknown) | None => {}
    }
}

/// The name that our DaemonSet has in Istio's charts.
const DEFAULT_NAME: &str = "istio-cni-node";
const LIMIT: Duration = Duration::from_secs(10);

/// As configured, or the owner of our pod, or the usual one. Tries until the API server answers.
async fn daemon_set_name(client: &Client, identity: &Identity, memory: &Memory) -> String {
    let mut pause = FIRST_PAUSE;
    let owner = loop {
        match client.get::<OwnPod>("our own pod", &shutdown::own_pod_path(identity), LIMIT).await {
            Ok(pod) => {
                memory.set_pod_readable();
                break pod.daemon_set().map(str::to_owned);
            }
            Err(error) if error.kind() == Kind::NotFound => {
                memory.set_pod_readable();
                break None;
            }
            Err(error) if error.kind() == Kind::Refused => break None,
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(LAST_PAUSE);
    };
    let configured = Some(&identity.daemon_set).filter(|name| !name.is_empty()).cloned();
    configured.or(owner).unwrap_or_else(|| DEFAULT_NAME.to_owned())
}

/// Logs a trouble once, not at each try.
#[derive(Debug, Default)]
pub(crate) struct WarnOnce(Option<String>);

impl WarnOnce {
    pub(crate) fn warn(&mut self, trouble: &dyn std::fmt::Display) {
        let trouble = trouble.to_string();
        if self.0.as_ref() != Some(&trouble) {
            warn!(target: "install", "{trouble}");
            self.0 = Some(trouble);
        }
    }

    pub(crate) fn forget(&mut self) {
        if self.0.take().is_some() {
            info!(target: "install", "the API server is available again");
        }
    }
}
