//! The controller: one pass per configuration, or a single pass.

use std::time::Duration;

use kube_api::KubeClient;
use retry::LastError;
use tokio::time::timeout;
use tracing::info;

use crate::{ReadinessConfig, TAINT, config_source::ConfigSource, pass::TaintPass};

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
    /// There is no valid configuration, or the pass took longer than five minutes; the reason as a message.
    pub async fn run_once(&self) -> Result<(), String> {
        let config = self.config_source().read_config().await?;
        log_config(&config);
        let mut pass = TaintPass::new(&self.client, &config, &self.options.node_selector);
        if timeout(ONCE, pass.reconcile_nodes()).await.is_err() {
            let seconds = ONCE.as_secs();
            let Some(nodes) = pass.unsettled_nodes() else {
                return Err(format!("cannot list nodes and pods within {seconds} s"));
            };
            let (count, names) = (nodes.len(), nodes.iter().take(NAMED).copied().collect::<Vec<_>>());
            let names = names.join(", ");
            return Err(format!("cannot change the taints of {count} nodes within {seconds} s: {names}"));
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
