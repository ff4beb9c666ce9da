//! Polls the ConfigMap: Istio's role does not allow a watch.

use std::{collections::BTreeMap, time::Duration};

use kube_api::{KubeClient, sleep_for};
use model::null_is_empty;
use retry::LastError;
use serde::Deserialize;
use tracing::{error, info};

use crate::{ReadinessConfig, TaintOptions};

/// Interval between two requests for the ConfigMap.
const POLL: Duration = Duration::from_secs(10);
/// Timeout of one request.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConfigMap {
    #[serde(deserialize_with = "null_is_empty")]
    data: BTreeMap<String, String>,
}

/// The source of the configuration.
pub(crate) struct ConfigSource<'a> {
    pub(crate) client: &'a KubeClient,
    pub(crate) options: &'a TaintOptions,
    pub(crate) last_error: LastError,
}

impl ConfigSource<'_> {
    /// Reads the current configuration; returns why there is none, as a message.
    pub(crate) async fn read_config(&self) -> Result<ReadinessConfig, String> {
        let TaintOptions { config_namespace, config_name, .. } = self.options;
        let name = format!("{config_namespace}/{config_name}");
        let path = format!("/api/v1/namespaces/{config_namespace}/configmaps/{config_name}");
        let map = self.client.get::<ConfigMap>(&format!("ConfigMap {name}"), &path, LIMIT).await;
        let map = map.map_err(|error| error.to_string())?;
        ReadinessConfig::parse(&map.data).map_err(|cause| format!("cannot use ConfigMap {name}: {cause}"))
    }

    /// Returns the first configuration that is valid and differs from `known`. One that is invalid or cannot be read is logged, and
    /// the known one remains in effect.
    pub(crate) async fn next_config(&mut self, known: Option<&ReadinessConfig>) -> ReadinessConfig {
        if known.is_some() {
            sleep_for(POLL).await;
        }
        loop {
            match self.read_config().await {
                Ok(config) => {
                    if self.last_error.clear() {
                        info!(target: "taint", "configuration can be read again");
                    }
                    if known != Some(&config) {
                        return config;
                    }
                }
                Err(error) => {
                    if self.last_error.replace(&error) {
                        let has_config = known.is_some();
                        error!(target: "taint", %error, previous_is_kept = has_config, "cannot read the configuration");
                    }
                }
            }
            sleep_for(POLL).await;
        }
    }
}
