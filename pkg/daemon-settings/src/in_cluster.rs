//! The API server, as a pod finds it: by two variables and its service account.

use kubeio::{ApiConnection, ApiServerTrust};

use crate::{HostEnvironment, SERVICE_ACCOUNT};

/// URL of the API server, as Istio puts it into the kubeconfig; the outer value is none when the environment names none.
///
/// # Errors
/// The port is none.
pub(crate) fn server(around: &dyn HostEnvironment) -> Option<Result<String, String>> {
    let variable = |name: &str| around.variable(name).filter(|value| !value.is_empty());
    let protocol = variable("KUBERNETES_SERVICE_PROTOCOL").unwrap_or_else(|| "https".to_owned());
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let url = format!("{protocol}://{host}:{port}");
    Some(match port.parse::<u16>() {
        Ok(_) => Ok(url),
        Err(_) => Err(format!("KUBERNETES_SERVICE_PORT: {port:?} is no port")),
    })
}

/// How a pod reaches the API server with its service account. `program`: how it calls itself there.
///
/// # Errors
/// The environment names no API server.
pub fn in_cluster(around: &dyn HostEnvironment, program: &str) -> Result<ApiConnection, String> {
    let server = server(around);
    let missing = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be set".to_owned();
    Ok(ApiConnection {
        server: server.unwrap_or(Err(missing))?,
        trust: ApiServerTrust::Authority(format!("{SERVICE_ACCOUNT}/ca.crt").into()),
        token: format!("{SERVICE_ACCOUNT}/token").into(),
        user_agent: format!("{program}/{} (millrace)", env!("CARGO_PKG_VERSION")),
    })
}
