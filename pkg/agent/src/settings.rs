//! How an agent is told to work.

use std::path::PathBuf;

use model::{Namespace, Pod, PodName};
use planner::{
    ambient::AmbientPolicy,
    node::{Fallback, NodeConfig},
};

/// What the operator chose, and where things are.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Names, numbers and marks of the node path.
    pub node: NodeConfig,
    /// Who is enrolled.
    pub policy: AmbientPolicy,
    /// What happens while no ztunnel is ready, at the start.
    pub fallback: Fallback,
    /// How the firewall tools are used.
    pub tools: netfilter::Options,
    /// Where the container runtime binds network namespaces.
    pub netns_directory: PathBuf,
    /// Where old values of kernel settings are kept.
    pub journal: PathBuf,
    /// The file that plugin and agent share.
    pub shared_config: PathBuf,
}

/// A pod whose annotation should say whether it is captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its name.
    pub pod: PodName,
    /// Its UID: of another pod of this name nothing is known.
    pub uid: String,
    /// It is captured.
    pub captured: bool,
}

/// Takes marks to the API server; must not wait.
pub type Tell = Box<dyn Fn(Mark) + Send>;

/// Asks the API server for a pod and its namespace, with a deadline. The error is a sentence.
pub type Lookup = Box<dyn Fn(&PodName) -> Result<(Pod, Namespace), String> + Send + Sync>;
