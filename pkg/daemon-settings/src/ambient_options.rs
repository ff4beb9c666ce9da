//! What the operator chose for ambient mode.

use std::path::PathBuf;

use netns::Netns;

use crate::EventSettings;

/// Where pods are read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodSource {
    /// The API server.
    Api,
    /// A directory of manifests.
    Directory(PathBuf),
}

/// What the operator chose for ambient mode.
#[derive(Clone, Debug)]
pub struct AmbientOptions {
    /// For the agent.
    pub agent: agent::AgentSettings,
    /// Where the plugin asks.
    pub socket: PathBuf,
    /// Where pods are read from.
    pub source: PodSource,
    /// A file that says what happens while no ztunnel is ready.
    pub fallback_file: Option<PathBuf>,
    /// The node's network namespace, if the daemon is in one of its own.
    pub host_network: Option<PathBuf>,
    /// For Istio's own plugin; `None`: it could not be served, because pods are captured on the node.
    pub events: Option<EventSettings>,
}

impl AmbientOptions {
    /// The node's network namespace; `None`: the daemon's own.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn node(&self) -> Result<Option<Netns>, netns::Error> {
        self.host_network.as_ref().map(Netns::open).transpose()
    }

    /// Takes everything off the node's network. Answers with what could not be removed, in sentences.
    pub fn uninstall(&self) -> Vec<String> {
        let remove = || agent::uninstall(&self.agent);
        match self.node() {
            Ok(None) => remove(),
            Ok(Some(node)) => node.run_in(remove).unwrap_or_else(|error| vec![error.to_string()]),
            Err(error) => vec![format!("cannot open the node's network namespace: {error}")],
        }
    }
}
