//! A client as a person's kubeconfig describes it: every way to log in that kube knows, credential programs among them.

use std::path::PathBuf;

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::{Error, KubeClient, error};

/// Which kubeconfig is meant, and what in it, as kubectl's flags say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeconfigChoice {
    /// The file; `None`: those of the variable `KUBECONFIG`, else `~/.kube/config`, else the service account of the pod that this
    /// runs in.
    pub file: Option<PathBuf>,
    /// The context; `None`: the current one.
    pub context: Option<String>,
    /// The user to impersonate; `None`: as the kubeconfig has it.
    pub user: Option<String>,
    /// The groups to impersonate; empty: as the kubeconfig has it.
    pub groups: Vec<String>,
}

/// A client, and what its kubeconfig says besides.
#[derive(Clone)]
pub struct KubeconfigSession {
    /// The client.
    pub client: KubeClient,
    /// URL of the API server.
    pub server: String,
    /// The namespace of the context.
    pub namespace: String,
}

impl KubeClient {
    /// Prepares a client, which connects when it is first used. A credential program that the kubeconfig names runs here.
    ///
    /// # Errors
    /// There is no such file or context, or the credential cannot be used.
    ///
    /// # Panics
    /// Outside of an async runtime.
    pub async fn from_kubeconfig(choice: &KubeconfigChoice) -> Result<KubeconfigSession, Error> {
        let options = KubeConfigOptions { context: choice.context.clone(), ..KubeConfigOptions::default() };
        let config = match &choice.file {
            Some(file) => match Kubeconfig::read_from(file) {
                Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options).await,
                Err(cause) => Err(cause),
            },
            None => match Config::from_kubeconfig(&options).await {
                Err(cause) if choice.context.is_none() => Config::incluster().map_err(|_| cause),
                read => read,
            },
        };
        let mut config = config.map_err(|cause| Error::connection("of the kubeconfig", &cause))?;
        if choice.user.is_some() {
            config.auth_info.impersonate.clone_from(&choice.user);
        }
        if !choice.groups.is_empty() {
            config.auth_info.impersonate_groups = Some(choice.groups.clone());
        }
        config.connect_timeout = Some(crate::transport::LIMIT);
        config.write_timeout = Some(crate::transport::LIMIT);
        let (server, namespace) = (config.cluster_url.to_string(), config.default_namespace.clone());
        let client = Client::try_from(config);
        let kube = client.map_err(|cause| Error::Connection {
            server: server.clone(),
            cause: error::with_causes(&cause),
        })?;
        Ok(KubeconfigSession { client: KubeClient { kube }, server, namespace })
    }
}
