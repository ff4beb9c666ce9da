//! In-cluster connection to the API server: by two variables and the service account.

use kube_api::ApiConnection;
use model::{ApiServerTrust, Reason};

use crate::{HostEnvironment, SERVICE_ACCOUNT};

/// Returns the URL of the API server, as Istio writes it to the kubeconfig; `None`: the environment has none.
pub(crate) fn server_url(around: &dyn HostEnvironment, mistakes: &mut Vec<String>) -> Option<String> {
    let variable = |name: &str| around.variable(name).filter(|value| !value.is_empty());
    let protocol = variable("KUBERNETES_SERVICE_PROTOCOL").unwrap_or_else(|| "https".to_owned());
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    if port.parse::<u16>().is_err() {
        mistakes.push(format!("KUBERNETES_SERVICE_PORT: {port:?} is not a port"));
    }
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Some(format!("{protocol}://{host}:{port}"))
}

/// Returns the in-cluster connection with the pod's service account. `program`: the name in the user agent.
///
/// # Errors
/// The environment has no API server, or its port is invalid.
pub fn in_cluster(around: &dyn HostEnvironment, program: &str) -> Result<ApiConnection, Reason> {
    let mut mistakes = Vec::new();
    let server = server_url(around, &mut mistakes);
    if let Some(mistake) = mistakes.pop() {
        return Err(mistake.into());
    }
    let server = server.ok_or("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be set")?;
    let trust = ApiServerTrust::Authority(format!("{SERVICE_ACCOUNT}/ca.crt").into());
    Ok(account_connection(server, trust, program))
}

/// Returns a connection as the pod's service account.
pub(crate) fn account_connection(server: String, trust: ApiServerTrust, program: &str) -> ApiConnection {
    ApiConnection {
        server,
        trust,
        token: format!("{SERVICE_ACCOUNT}/token").into(),
        user_agent: format!("{program}/{} (millrace)", env!("CARGO_PKG_VERSION")),
    }
}
