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
use kubeio::{Client, Connection, Error, Object};
use model::DaemonSet;
use serde::Deserialize;
use tracing::{info, warn};

use crate::{
    leave::{Ours, Seen},
    notices::{self, Sources},
    settings::{Identity, Settings},
};

/// The cluster, as far as it is known.
#[derive(Default)]
pub(crate) struct Cluster {
    client: RwLock<Option<Client>>,
    /// Our DaemonSet.
    pub(crate) ours: Ours,
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
        follow_daemon_set(&client, &settings.identity, &cluster.ours),
        notices::publish(&client, &settings, sources),
    );
}

/// Pauses while something is not there yet.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// Tries until the credential can be read.
pub(crate) async fn connect(connection: &Connection) -> Client {
    let mut pause = FIRST_PAUSE;
    let mut said = Said::default();
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
    let mut said = Said::default();
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

async fn follow_daemon_set(client: &Client, identity: &Identity, ours: &Ours) {
    if identity.namespace.is_empty() {
        warn!(target: "install", "our namespace is not known, so that an upgrade cannot be told from a removal: nothing is cleaned up");
        return;
    }
    let name = daemon_set_name(client, identity).await;
    let whole = format!("DaemonSet {}/{name}", identity.namespace);
    let object = Object { group: "apps", kind: "DaemonSet", namespace: identity.namespace.clone(), name };
    ours.is(object.clone());
    let mut said = Said::default();
    let mut changes = std::pin::pin!(client.watch::<DaemonSet>(&object));
    while let Some(change) = changes.next().await {
        match change {
            Ok(daemon_set) => {
                said.forget();
                match ours.saw(daemon_set.as_ref()) {
                    Some(Seen::There) => info!(target: "install", "{whole} is ours"),
                    Some(Seen::Gone) => {
                        info!(target: "install", "{whole}, which is ours, is gone or being deleted");
                    }
                    Some(Seen::Nothing) | None => {}
                }
            }
            Err(error) => said.warn(&error),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Owned {
    metadata: OwnedMeta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OwnedMeta {
    #[serde(rename = "ownerReferences")]
    owners: Vec<Owner>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Owner {
    kind: String,
    name: String,
}

/// The name that our DaemonSet has in Istio's charts.
const DEFAULT_NAME: &str = "istio-cni-node";
const LIMIT: Duration = Duration::from_secs(10);

/// As told, or the owner of our pod, or the usual one.
async fn daemon_set_name(client: &Client, identity: &Identity) -> String {
    if !identity.daemon_set.is_empty() {
        return identity.daemon_set.clone();
    }
    let path = format!("/api/v1/namespaces/{}/pods/{}", identity.namespace, identity.pod);
    let pod: Result<Owned, Error> = client.get("our own pod", &path, LIMIT).await;
    let owner =
        pod.ok().and_then(|pod| pod.metadata.owners.into_iter().find(|owner| owner.kind == "DaemonSet"));
    owner.map_or_else(|| DEFAULT_NAME.to_owned(), |owner| owner.name)
}

/// Logs a trouble once, not at each try.
#[derive(Debug, Default)]
pub(crate) struct Said(Option<String>);

impl Said {
    pub(crate) fn warn(&mut self, trouble: &dyn std::fmt::Display) {
        let trouble = trouble.to_string();
        if self.0.as_ref() != Some(&trouble) {
            warn!(target: "install", "{trouble}");
            self.0 = Some(trouble);
        }
    }

    pub(crate) fn forget(&mut self) {
        if self.0.take().is_some() {
            info!(target: "install", "the API server answers again");
        }
    }
}
