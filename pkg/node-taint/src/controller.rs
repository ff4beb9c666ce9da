//! The controller: one pass per configuration, or a single pass.

use std::time::Duration;

use kube_api::KubeClient;
use retry::LastError;
use tokio::time::timeout;
use tracing::info;

use crate::{
    ReadinessConfig, TAINT,
    config_source::{ConfigReadError, ConfigSource},
    pass::TaintPass,
};

/// Time limit of a single pass over all nodes.
const ONCE: Duration = Duration::from_secs(300);
/// Maximum number of nodes named in an error.
const NAMED: usize = 10;

/// The operator's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintOptions {
    /// Namespace of the ConfigMap.
    pub config_namespace: String,
    /// Name of the ConfigMap.
    pub config_name: String,
    /// Label selector of the nodes to handle; empty: all.
    pub node_selector: String,
}

/// The reason why a single pass is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// There is no configuration.
    #[error(transparent)]
    Config(#[from] ConfigReadError),
    /// Nodes or pods could not be listed.
    #[error("cannot list nodes and pods within {} s", ONCE.as_secs())]
    NotListed,
    /// Taints could not be changed.
    #[error("cannot change the taints of {count} nodes within {} s: {names}", ONCE.as_secs())]
    Unsettled {
        /// Number of nodes.
        count: usize,
        /// Names of up to ten of them.
        names: String,
    },
}

/// Adds and removes the taint.
#[derive(Clone)]
pub struct TaintController {
    /// The API server.
    pub client: KubeClient,
    /// The operator's options.
    pub options: TaintOptions,
}

impl TaintController {
    /// Maintains the taints of all nodes while it is polled. Without a valid configuration it changes none.
    pub async fn run(&self) {
        let mut source = self.config_source();
        let mut config = source.next_config(None).await;
        loop {
            log_config(&config);
            let mut pass = TaintPass::new(&self.client, &config, &self.options.node_selector);
            config = tokio::select! {
                () = pass.run() => return, // the pass does not end by itself
                next = source.next_config(Some(&config)) => next,
            };
        }
    }

    /// Evaluates every node once, and returns when the taints of all nodes are as desired.
    ///
    /// # Errors
    /// There is no valid configuration, or the pass took longer than five minutes.
    pub async fn run_once(&self) -> Result<(), OnceError> {
        let config = self.config_source().read_config().await?;
        log_config(&config);
        let mut pass = TaintPass::new(&self.client, &config, &self.options.node_selector);
        if timeout(ONCE, pass.reconcile_nodes()).await.is_err() {
            return Err(match pass.unsettled_nodes() {
                None => OnceError::NotListed,
                Some(nodes) => {
                    let names = nodes.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
                    OnceError::Unsettled { count: nodes.len(), names }
                }
            });
        }
        let (nodes, tainted) = pass.index.node_counts();
        info!(target: "taint", nodes, tainted, "all nodes are in the desired state");
        Ok(())
    }

    fn config_source(&self) -> ConfigSource<'_> {
        ConfigSource { client: &self.client, options: &self.options, last_error: LastError::default() }
    }
}

fn log_config(config: &ReadinessConfig) {
    let required: Vec<String> = config.requirements.iter().map(ToString::to_string).collect();
    info!(target: "taint", taint = TAINT.key, required = required.join("; "), "configuration read");
}
