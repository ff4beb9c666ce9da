//! Client configured by a person's kubeconfig: every authentication method that kube supports, including credential plugins.

use std::{io, path::PathBuf};

use kube::{
    Client, Config,
    client::AuthError,
    config::{ExecAuthCluster, InClusterError, Kubeconfig, KubeconfigError},
};
use model::describe_error;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use crate::{Error, KubeClient, proxy::proxy_by_environment};

/// Name of the API server in errors before its URL is known.
const KUBECONFIG: &str = "of the kubeconfig";
/// Error of a command outside of a cluster without a kubeconfig.
const NO_KUBECONFIG: &str = "there is none; set KUBECONFIG, or give --kubeconfig";
/// Maximum length of a credential plugin's standard error, in characters.
const COMPLAINT: usize = 4096;

/// Selection of kubeconfig, context and user, as by kubectl's flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeconfigChoice {
    /// File; `None`: those of the variable `KUBECONFIG`, else `~/.kube/config`, and if they configure nothing, the service account
    /// of the pod that this runs in.
    pub file: Option<PathBuf>,
    /// Context; `None`: the current one.
    pub context: Option<String>,
    /// User to impersonate; `None`: from the kubeconfig.
    pub user: Option<String>,
    /// Groups to impersonate; empty: from the kubeconfig.
    pub groups: Vec<String>,
}

/// Client, and further values of its kubeconfig.
#[derive(Clone)]
pub struct KubeconfigSession {
    /// Client of the API server.
    pub client: KubeClient,
    /// URL of the API server.
    pub server: String,
    /// Namespace of the context.
    pub namespace: String,
}

impl KubeClient {
    /// Returns a client, which connects at the first request. A credential plugin of the kubeconfig is executed here.
    ///
    /// # Errors
    /// The file or context does not exist, or the credential cannot be used.
    ///
    /// # Panics
    /// Outside of an async runtime.
    pub async fn from_kubeconfig(choice: &KubeconfigChoice) -> Result<KubeconfigSession, Error> {
        let kubeconfig = match &choice.file {
            Some(file) => Kubeconfig::read_from(file),
            None => read_existing(&default_files()),
        };
        let kubeconfig = kubeconfig.map_err(kubeconfig_error)?;
        let mut config = if choice.file.is_none() && choice.context.is_none() && is_empty(&kubeconfig) {
            Config::incluster().map_err(|cause| {
                kubeconfig_cause(match cause {
                    InClusterError::ReadEnvironmentVariable(_) => NO_KUBECONFIG.to_owned(),
                    other => format!("{NO_KUBECONFIG}; as in a pod: {}", describe_error(&other)),
                })
            })?
        } else {
            context_config(kubeconfig, choice.context.clone(), |name| std::env::var(name).ok())?
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
        let program = config.auth_info.exec.as_ref().and_then(|program| program.command.clone());
        let kube = Client::try_from(config).map_err(|cause| Error::Connection {
            server: server.clone(),
            cause: client_cause(&cause, program.as_deref().unwrap_or_default()),
        })?;
        Ok(KubeconfigSession { client: KubeClient { kube }, server, namespace })
    }
}

/// Describes why there is no client. For a credential plugin includes its standard error, but not its arguments, which may contain
/// secrets, as its standard output does.
fn client_cause(cause: &kube::Error, program: &str) -> String {
    match cause {
        kube::Error::Auth(AuthError::AuthExecRun { out, .. }) => {
            let complaint: String =
                String::from_utf8_lossy(&out.stderr).trim().chars().take(COMPLAINT).collect();
            let status = out.status;
            format!("the credential program {program:?} of the kubeconfig failed ({status}): {complaint}")
        }
        kube::Error::Auth(AuthError::AuthExecStart(cause)) => {
            format!("cannot run the credential program {program:?} of the kubeconfig: {cause}")
        }
        other => describe_error(other),
    }
}

fn kubeconfig_cause(cause: String) -> Error {
    Error::Connection { server: KUBECONFIG.to_owned(), cause }
}

fn kubeconfig_error(cause: impl std::error::Error + 'static) -> Error {
    Error::connection(KUBECONFIG, &cause)
}

/// Returns the configuration of a context; `None`: the current one. Not through [`Config::from_custom_kubeconfig`], which matches
/// `NO_PROXY` against the proxy instead of the server. `variable` returns the value of an environment variable.
fn context_config(
    kubeconfig: Kubeconfig,
    context: Option<String>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Config, Error> {
    let Kubeconfig { contexts, clusters, auth_infos, current_context, .. } = kubeconfig;
    let name = context.or(current_context);
    let name = name.ok_or_else(|| kubeconfig_cause("no context is current; give --context".to_owned()))?;
    let context = contexts.into_iter().find(|found| found.name == name).and_then(|found| found.context);
    let context = context.ok_or_else(|| kubeconfig_cause(format!("it has no context {name:?}")))?;
    let cluster = clusters.into_iter().find(|found| found.name == context.cluster);
    let cluster = cluster.and_then(|found| found.cluster);
    let cluster =
        cluster.ok_or_else(|| kubeconfig_error(KubeconfigError::LoadClusterOfContext(context.cluster)))?;
    let of_program = ExecAuthCluster::try_from(&cluster).map_err(kubeconfig_error)?;
    let server = cluster.server.ok_or_else(|| kubeconfig_error(KubeconfigError::MissingClusterUrl))?;
    let user = auth_infos.into_iter().find(|found| Some(&found.name) == context.user.as_ref());
    let parsed = server.parse().map_err(KubeconfigError::ParseClusterUrl);
    let mut config = Config::new(parsed.map_err(kubeconfig_error)?);
    let proxy = match cluster.proxy_url.filter(|url| !url.is_empty()) {
        Some(url) => url.parse().map(Some),
        None => proxy_by_environment(&config.cluster_url, variable),
    };
    config.proxy_url = proxy.map_err(KubeconfigError::ParseProxyUrl).map_err(kubeconfig_error)?;
    if let Some(pem) = &of_program.certificate_authority_data {
        let all = CertificateDer::pem_slice_iter(pem).map(|found| found.map(|found| found.to_vec()));
        config.root_cert = Some(all.collect::<Result<_, _>>().map_err(kubeconfig_error)?);
    }
    config.auth_info = user.and_then(|found| found.auth_info).unwrap_or_default();
    if let Some(program) = config.auth_info.exec.as_mut().filter(|program| program.provide_cluster_info) {
        program.cluster = Some(of_program);
    }
    config.default_namespace = context.namespace.unwrap_or(config.default_namespace);
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or_default();
    config.disable_compression = cluster.disable_compression.unwrap_or_default();
    config.tls_server_name = cluster.tls_server_name;
    Ok(config)
}

/// Returns the files used if none is given.
fn default_files() -> Vec<PathBuf> {
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let mut files: Vec<PathBuf> = std::env::split_paths(&listed).collect();
    files.retain(|file| !file.as_os_str().is_empty());
    if files.is_empty() {
        files.extend(std::env::home_dir().map(|home| home.join(".kube").join("config")));
    }
    files
}

/// Merges files. As with kubectl, one that does not exist is skipped, and an empty name of a current context counts as unset.
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

/// Whether a kubeconfig configures nothing, in which case alone the pod's service account is used.
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

    /// A proxy in the kubeconfig is used whatever `NO_PROXY` has, which applies to servers and the environment's proxy.
    #[test]
    fn a_context_names_server_proxy_authority_and_credential() {
        let text = r#"
            current-context: other
            contexts:
              - {name: other, context: {cluster: other}}
              - {name: shop, context: {cluster: shop, user: me, namespace: shop}}
            clusters:
              - {name: other, cluster: {server: "https://10.1.2.3:6443"}}
              - name: shop
                cluster:
                  server: https://10.1.2.4:6443
                  proxy-url: http://10.0.0.5:3128
                  tls-server-name: api
                  certificate-authority-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFRSUQKLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQo=
            users:
              - {name: me, user: {exec: {command: login, provideClusterInfo: true}}}"#;
        let config = |context: Option<&str>, no_proxy: &str| {
            let variable = |name: &str| match name {
                "HTTPS_PROXY" => Some("proxy:3128".to_owned()),
                "NO_PROXY" => Some(no_proxy.to_owned()),
                _ => None,
            };
            let kubeconfig = Kubeconfig::from_yaml(text).unwrap();
            context_config(kubeconfig, context.map(str::to_owned), variable)
        };
        let shop = config(Some("shop"), "10.0.0.0/8,").unwrap();
        assert_eq!(shop.cluster_url, "https://10.1.2.4:6443/");
        assert_eq!(shop.proxy_url.unwrap(), "http://10.0.0.5:3128/");
        assert_eq!((shop.tls_server_name.as_deref(), shop.default_namespace.as_str()), (Some("api"), "shop"));
        assert_eq!(shop.root_cert, Some(vec![vec![1, 2, 3]]));
        let informed = shop.auth_info.exec.unwrap().cluster.unwrap();
        assert_eq!(informed.server.as_deref(), Some("https://10.1.2.4:6443"));
        let other = config(None, "10.0.0.0/8,").unwrap();
        assert_eq!((other.proxy_url, other.default_namespace.as_str()), (None, "default"));
        assert_eq!(config(None, "proxy,").unwrap().proxy_url.unwrap(), "http://proxy:3128/");
        let error = config(Some("none"), "").unwrap_err().to_string();
        assert!(error.ends_with("it has no context \"none\""), "{error}");
    }

    /// Includes its error output, but not its arguments and its stdout.
    #[tokio::test]
    async fn a_credential_program_that_fails_is_named_with_what_it_wrote() {
        let directory = tempfile::tempdir().unwrap();
        for (command, expected) in [
            ("sh", "the credential program \"sh\" of the kubeconfig failed (exit status: 1): log in again"),
            (
                "/absent",
                "cannot run the credential program \"/absent\" of the kubeconfig: No such file or directory (os error 2)",
            ),
        ] {
            let file = directory.path().join("config");
            let user = format!(
                "{{apiVersion: client.authentication.k8s.io/v1, command: {command}, interactiveMode: Never, \
                 args: [-c, \"echo secret; echo log in again >&2; exit 1\"]}}"
            );
            let text = GOOD.replace("cluster: b}", "cluster: b, user: me}")
                + &format!("\n        users: [{{name: me, user: {{exec: {user}}}}}]");
            std::fs::write(&file, text).unwrap();
            let choice = KubeconfigChoice { file: Some(file), ..KubeconfigChoice::default() };
            let error = KubeClient::from_kubeconfig(&choice).await.err().unwrap().to_string();
            let (_, cause) = error.split_once("https://192.0.2.1:6443/: ").unwrap();
            assert_eq!(cause, expected);
        }
    }

    /// As in client-go: a pod's service account is used only without any configuration, never in place of an invalid one.
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
        for files in [&[&broken][..], &[&good, &broken], &[&absent, &broken], &[&directory.path().to_owned()]]
        {
            read(files).unwrap_err();
        }
    }
}
