//! Client configured by a person's kubeconfig: every authentication method that kube supports, including credential plugins.

use std::{io, path::PathBuf};

use http::{Request, Uri};
use kube::{
    Client, Config,
    client::{AuthError, Body, ConfigExt as _},
    config::{ExecAuthCluster, InClusterError, Kubeconfig, KubeconfigError},
};
use model::describe_error;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tower::Layer as _;

use crate::{Error, KubeClient, proxy::proxy_by_environment, transport::BoxError};

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
        // Kube's own retries would hide a server's answer (503) behind a time-out, and create an object twice (504).
        config.default_retry = false;
        let (server, namespace) = (config.cluster_url.to_string(), config.default_namespace.clone());
        let program = config.auth_info.exec.as_ref().and_then(|program| program.command.clone());
        let kube = open_client(config).map_err(|cause| Error::Connection {
            server: server.clone(),
            cause: client_cause(&cause, program.as_deref().unwrap_or_default()),
        })?;
        Ok(KubeconfigSession { client: KubeClient { kube }, server, namespace })
    }
}

/// Returns a client. The token of a credential plugin, if it returns one, is added here: kube's own client would run the plugin
/// again for each connector and for the expiry, while kubectl runs it once.
fn open_client(mut config: Config) -> Result<Client, kube::Error> {
    let token = if config.auth_info.exec.is_some() { config.auth_layer()? } else { None };
    let Some(token) = token else { return Client::try_from(config) };
    config.auth_info.exec = None;
    let client = Client::try_from(config)?;
    let namespace = client.default_namespace().to_owned();
    let authorized = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move { client.send(request).await.map_err(BoxError::from) }
    });
    Ok(Client::new(token.layer(authorized), namespace))
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
    kubeconfig_cause(describe_error(&cause))
}

/// Returns the configuration of a context; `None`: the current one. Not through [`Config::from_custom_kubeconfig`], which matches
/// `NO_PROXY` against the proxy instead of the server. `variable` returns the value of an environment variable.
fn context_config(
    kubeconfig: Kubeconfig,
    context: Option<String>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Config, Error> {
    let Kubeconfig { contexts, clusters, auth_infos, current_context, .. } = kubeconfig;
    let name = context.or(current_context).filter(|name| !name.is_empty());
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
    let proxy = cluster.proxy_url.filter(|url| !url.is_empty());
    let proxy = proxy.or_else(|| proxy_by_environment(&config.cluster_url, variable));
    // As in Go, where a proxy resolves names in any case.
    let proxy = proxy.map(|url| url.replacen("socks5h://", "socks5://", 1).parse::<Uri>()).transpose();
    config.proxy_url = proxy.map_err(KubeconfigError::ParseProxyUrl).map_err(kubeconfig_error)?;
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or_default();
    let proxies_tls = config.proxy_url.as_ref().is_some_and(|proxy| proxy.scheme_str() == Some("https"));
    let is_plain = config.cluster_url.scheme_str() == Some("http") && !proxies_tls;
    let trusts_any = config.accept_invalid_certs || is_plain;
    let pem = of_program.certificate_authority_data.as_deref().filter(|pem| !pem.trim_ascii().is_empty());
    // Without any, kube requires authorities of the system, which a container need not have.
    config.root_cert = if trusts_any { Some(Vec::new()) } else { pem.map(usable_authorities).transpose()? };
    config.auth_info = user.and_then(|found| found.auth_info).unwrap_or_default();
    if let Some(program) = config.auth_info.exec.as_mut().filter(|program| program.provide_cluster_info) {
        program.cluster = Some(of_program);
    }
    let namespace = context.namespace.filter(|name| !name.is_empty());
    config.default_namespace = namespace.unwrap_or(config.default_namespace);
    config.disable_compression = cluster.disable_compression.unwrap_or_default();
    config.tls_server_name = cluster.tls_server_name;
    Ok(config)
}

/// Returns the authorities of a bundle. Go, too, ignores those that it cannot read, unless there are no others.
fn usable_authorities(pem: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let all = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok);
    let usable = all.filter(|one| RootCertStore::empty().add(one.clone()).is_ok());
    let usable: Vec<Vec<u8>> = usable.map(|one| one.to_vec()).collect();
    let why = || kubeconfig_cause("its certificate authority is not PEM with a usable one".to_owned());
    (!usable.is_empty()).then_some(usable).ok_or_else(why)
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
    use std::io::{Read as _, Write as _};

    use super::*;

    const GOOD: &str = r#"
        current-context: b
        contexts: [{name: b, context: {cluster: b}}]
        clusters: [{name: b, cluster: {server: "https://192.0.2.1:6443"}}]"#;

    /// A bundle of a certificate that cannot be read and one that can.
    const BUNDLE: &str = "\
        LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1BQT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUtLS0tLQotLS0tLUJFR0lOIENF\
        UlRJRklDQVRFLS0tLS0KTUlJQmJ6Q0NBUldnQXdJQkFnSVVDOWhWUi9mZEgzOXM4dzY3d3F2Y1VuNWljTVF3Q2dZSUtvWkl6\
        ajBFQXdJd0RERUtNQWdHQTFVRUF3d0JZVEFnRncweU5qRXhNekF4TmpRMk1EWmFHQTh5TVRJMk1URXdOakUyTkRZd05sb3dE\
        REVLTUFnR0ExVUVBd3dCWVRCWk1CTUdCeXFHU000OUFnRUdDQ3FHU000OUF3RUhBMElBQkN5YnkzdlBKWHdJQXVxSlN1bmk5\
        Z1ZuOHNFT00zTHhsR1NYaEkvVmJST0k0cjlKYThIU1FMaGtqOWJlNXVCcjdNMmYxcmpPWlJ4K3VBZTdjS0RjRy8ralV6QlJN\
        QjBHQTFVZERnUVdCQlJ1Wmsyd3dYNEpNQ24wVUVwdlZCOHMzclJYaERBZkJnTlZIU01FR0RBV2dCUnVaazJ3d1g0Sk1DbjBV\
        RXB2VkI4czNyUlhoREFQQmdOVkhSTUJBZjhFQlRBREFRSC9NQW9HQ0NxR1NNNDlCQU1DQTBnQU1FVUNJUURVRHJDd3NzQ1RB\
        Q0pqVnVueWlqSkp1Tm90bmJXM01XdGk5SWQ3TXd5RzZBSWdaVW9iZkMyMWFoaXdnZEp6V3I5MWdZdmZUdGVVU2xNR3VwZDRI\
        MzhNNHI0PQotLS0tLUVORCBDRVJUSUZJQ0FURS0tLS0tCg==";

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
                  certificate-authority-data: BUNDLE
            users:
              - {name: me, user: {exec: {command: login, provideClusterInfo: true}}}"#;
        let config = |context: Option<&str>, no_proxy: &str| {
            let variable = |name: &str| match name {
                "HTTPS_PROXY" => Some("proxy:3128".to_owned()),
                "NO_PROXY" => Some(no_proxy.to_owned()),
                _ => None,
            };
            let kubeconfig = Kubeconfig::from_yaml(&text.replace("BUNDLE", BUNDLE)).unwrap();
            context_config(kubeconfig, context.map(str::to_owned), variable)
        };
        let shop = config(Some("shop"), "10.0.0.0/8,").unwrap();
        assert_eq!(shop.cluster_url, "https://10.1.2.4:6443/");
        assert_eq!(shop.proxy_url.unwrap(), "http://10.0.0.5:3128/");
        assert_eq!((shop.tls_server_name.as_deref(), shop.default_namespace.as_str()), (Some("api"), "shop"));
        assert_eq!(shop.root_cert.map(|all| all.len()), Some(1));
        let informed = shop.auth_info.exec.unwrap().cluster.unwrap();
        assert_eq!(informed.server.as_deref(), Some("https://10.1.2.4:6443"));
        let other = config(None, "10.0.0.0/8,").unwrap();
        assert_eq!((other.proxy_url, other.default_namespace.as_str()), (None, "default"));
        assert_eq!(config(None, "proxy,").unwrap().proxy_url.unwrap(), "http://proxy:3128/");
        let by_proxy = |proxy: &str| {
            let text = GOOD.replace("{server", &format!("{{proxy-url: \"{proxy}\", server"));
            context_config(Kubeconfig::from_yaml(&text).unwrap(), None, |_| None)
        };
        assert_eq!(by_proxy("socks5h://socks:1080").unwrap().proxy_url.unwrap(), "socks5://socks:1080/");
        by_proxy("http://a b").unwrap_err();
        let error = config(Some("none"), "").unwrap_err().to_string();
        assert!(error.ends_with("it has no context \"none\""), "{error}");
    }

    #[test]
    fn only_a_verified_server_without_an_authority_needs_those_of_the_system() {
        for (cluster, expected) in [
            (r#"server: "https://192.0.2.1""#, None),
            (r#"server: "https://192.0.2.1", certificate-authority-data: """#, None),
            (r#"server: "https://192.0.2.1", insecure-skip-tls-verify: true"#, Some(vec![])),
            (r#"server: "http://192.0.2.1", certificate-authority-data: """#, Some(vec![])),
        ] {
            let text = format!(
                "current-context: b\ncontexts: [{{name: b, context: {{cluster: b, namespace: \"\"}}}}]\n\
                 clusters: [{{name: b, cluster: {{{cluster}}}}}]\n"
            );
            let config = context_config(Kubeconfig::from_yaml(&text).unwrap(), None, |_| None).unwrap();
            assert_eq!(config.root_cert, expected, "{cluster}");
            assert_eq!(config.default_namespace, "default", "an empty one is none");
        }
    }

    #[tokio::test]
    async fn a_credential_program_runs_once_and_its_token_is_sent() {
        let directory = tempfile::tempdir().unwrap();
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let head = std::thread::spawn(move || {
            let (mut stream, mut head) = (server.accept().unwrap().0, [0; 4096]);
            let length = stream.read(&mut head).unwrap();
            let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
            stream.write_all(answer).unwrap();
            String::from_utf8_lossy(&head[..length]).into_owned()
        });
        let (program, runs) = (directory.path().join("program"), directory.path().join("runs"));
        let status = r#"{"token": "one", "expirationTimestamp": "2999-01-01T00:00:00Z"}"#;
        let credential = format!(
            r#"{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {status}}}"#
        );
        std::fs::write(&program, format!("echo run >> {}\necho '{credential}'\n", runs.display())).unwrap();
        let text = format!(
            "current-context: b\ncontexts: [{{name: b, context: {{cluster: b, user: me}}}}]\n\
             clusters: [{{name: b, cluster: {{server: \"http://{address}\"}}}}]\n\
             users: [{{name: me, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, \
             interactiveMode: Never, args: [\"{}\"]}}}}}}]\n",
            program.display()
        );
        let file = directory.path().join("config");
        std::fs::write(&file, text).unwrap();
        let choice = KubeconfigChoice { file: Some(file), ..KubeconfigChoice::default() };
        let session = KubeClient::from_kubeconfig(&choice).await.unwrap();
        let limit = std::time::Duration::from_secs(10);
        session.client.get::<serde_json::Value>("an object", "/api", limit).await.unwrap();
        let head = head.join().unwrap();
        assert!(head.lines().any(|line| line == "authorization: Bearer one"), "{head}");
        assert_eq!(std::fs::read_to_string(&runs).unwrap(), "run\n");
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
