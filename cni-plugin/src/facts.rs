//! Where the plugin learns about a pod.

use std::{fmt, time::Duration};

use apiclient::{Client, Reason, RetryPolicy};
use cni_types::NetConf;
use model::{Namespace, Pod, PodName};

/// Who knows about pods. (The node agent will be the first to be asked; the API server is always the second.)
pub trait Facts {
    /// The pod as it is now.
    ///
    /// # Errors
    /// It could not be found out.
    fn pod(&self, name: &PodName) -> Result<Pod, Unknown>;

    /// A namespace as it is now.
    ///
    /// # Errors
    /// It could not be found out.
    fn namespace(&self, name: &str) -> Result<Namespace, Unknown>;
}

/// Why a fact is not known.
#[derive(Debug)]
pub enum Unknown {
    /// The configuration gives the plugin no credential.
    NoCredential,
    /// The kubeconfig cannot be used.
    Kubeconfig(Reason),
    /// The API server did not tell.
    Api(Box<apiclient::Error>),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unknown::NoCredential => f.write_str(
                "the plugin's configuration names no kubernetes.kubeconfig, so it cannot ask the API server; \
                 see whether the node agent (DaemonSet istio-cni-node) runs on this node, or let it write a kubeconfig",
            ),
            Unknown::Kubeconfig(error) => error.fmt(f),
            Unknown::Api(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Unknown {}

/// The Kubernetes API server, with the credential that the installer wrote.
#[derive(Debug)]
pub struct ApiServer {
    kubeconfig: Option<String>,
    policy: RetryPolicy,
}

impl ApiServer {
    /// Opens nothing; the credential is read at each request, because it changes.
    #[must_use]
    pub fn new(conf: &NetConf) -> ApiServer {
        let deadline = Duration::from_secs(conf.kubernetes.api_timeout_seconds.into());
        ApiServer {
            kubeconfig: conf.kubernetes.kubeconfig.clone(),
            policy: RetryPolicy { deadline, ..RetryPolicy::default() },
        }
    }

    /// Whether a request could be made: the kubeconfig is there and complete.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn is_usable(&self) -> Result<(), Unknown> {
        self.client()?.check().map_err(Unknown::Kubeconfig)
    }

    fn path(&self) -> Result<&str, Unknown> {
        self.kubeconfig.as_deref().ok_or(Unknown::NoCredential)
    }

    fn client(&self) -> Result<Client, Unknown> {
        Ok(Client::new(self.path()?))
    }
}

impl Facts for ApiServer {
    fn pod(&self, name: &PodName) -> Result<Pod, Unknown> {
        let path = ["api", "v1", "namespaces", &name.namespace, "pods", &name.name];
        self.client()?.get(&path, &self.policy).map_err(|error| Unknown::Api(Box::new(error)))
    }

    fn namespace(&self, name: &str) -> Result<Namespace, Unknown> {
        let path = ["api", "v1", "namespaces", name];
        self.client()?.get(&path, &self.policy).map_err(|error| Unknown::Api(Box::new(error)))
    }
}
