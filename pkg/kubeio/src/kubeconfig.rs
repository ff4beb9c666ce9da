//! A client as a person's kubeconfig describes it: every way to log in that kube knows, credential programs among them.

use std::{io, path::PathBuf};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use crate::{Error, KubeClient, error};

/// The API server in errors before its URL is known.
const KUBECONFIG: &str = "of the kubeconfig";

/// Which kubeconfig is meant, and what in it, as kubectl's flags say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeconfigChoice {
    /// The file; `None`: those of the variable `KUBECONFIG`, else `~/.kube/config`, and if they configure nothing, the service
    /// account of the pod that this runs in.
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
        let of_kubeconfig = |cause: KubeconfigError| Error::connection(KUBECONFIG, &cause);
        let kubeconfig = match &choice.file {
            Some(file) => Kubeconfig::read_from(file),
            None => read_existing(&default_files()),
        };
        let kubeconfig = kubeconfig.map_err(of_kubeconfig)?;
        let mut config = if choice.file.is_none() && choice.context.is_none() && is_empty(&kubeconfig) {
            Config::incluster().map_err(|cause| Error::Connection {
                server: KUBECONFIG.to_owned(),
                cause: format!("there is none, and no service account of a pod: {cause}"),
            })?
        } else {
            Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(of_kubeconfig)?
        };
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

/// Returns the files that count if none is chosen.
fn default_files() -> Vec<PathBuf> {
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let mut files: Vec<PathBuf> = std::env::split_paths(&listed).collect();
    files.retain(|file| !file.as_os_str().is_empty());
    if files.is_empty() {
        files.extend(std::env::home_dir().map(|home| home.join(".kube").join("config")));
    }
    files
}

/// Merges files. As with kubectl, one that does not exist is left out, and an empty name of a current context counts as none.
fn read_existing(files: &[PathBuf]) -> Result<Kubeconfig, KubeconfigError> {
    files.iter().try_fold(Kubeconfig::default(), |merged, file| match Kubeconfig::read_from(file) {
        Ok(mut next) => {
            next.current_context = next.current_context.filter(|name| !name.is_empty());
            merged.merge(next)
        }
        Err(KubeconfigError::ReadConfig(cause, _)) if cause.kind() == io::ErrorKind::NotFound => Ok(merged),
        Err(cause) => Err(cause),
    })
}

/// Whether there is nothing to connect to in it, which alone lets the service account of a pod count.
fn is_empty(kubeconfig: &Kubeconfig) -> bool {
    let Kubeconfig { clusters, contexts, auth_infos, current_context, .. } = kubeconfig;
    clusters.is_empty() && contexts.is_empty() && auth_infos.is_empty() && current_context.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        current-context: b
        contexts: [{name: b, context: {cluster: b}}]
        clusters: [{name: b, cluster: {server: "https://192.0.2.1:6443"}}]"#;

    /// As client-go does: only without any configuration a pod's service account counts, never in place of a broken one.
    #[test]
    fn absent_files_are_left_out_and_broken_ones_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (good, empty) = (file("good", GOOD), file("empty", "current-context: \"\"\nclusters: []\n"));
        let (broken, absent) = (file("broken", "clusters: ["), directory.path().join("absent"));
        let read = |files: &[&PathBuf]| {
            let files: Vec<PathBuf> = files.iter().map(|file| (*file).clone()).collect();
            read_existing(&files).map(|found| (is_empty(&found), found.current_context))
        };
        let found = (false, Some("b".to_owned()));
        for files in [&[&absent, &good][..], &[&good, &absent], &[&empty, &good]] {
            assert_eq!(read(files).unwrap(), found, "{files:?}");
        }
        for files in [&[][..], &[&absent], &[&absent, &empty]] {
            assert_eq!(read(files).unwrap(), (true, None), "{files:?}");
        }
        for files in [&[&broken][..], &[&good, &broken], &[&absent, &broken], &[&directory.path().to_owned()]] {
            read(files).unwrap_err();
        }
    }
}
