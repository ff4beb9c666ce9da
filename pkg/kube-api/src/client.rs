//! Client of the API server: credential, and single requests.

use std::{path::PathBuf, time::Duration};

use http::{Method, Request};
use kube::client::middleware::BaseUriLayer;
use model::{ApiServerTrust, describe_error};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use tower::Layer as _;

use crate::{
    Error,
    transport::{AsNobody, Transport},
};

/// Sleeps, between two requests.
///
/// # Panics
/// Outside of an async runtime with a clock.
pub async fn sleep_for(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Connection parameters of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiConnection {
    /// URL without a path, such as `https://10.96.0.1:443`.
    pub server: String,
    /// Certificate authority that the server's certificate is verified against, if any.
    pub trust: ApiServerTrust,
    /// File with the bearer token, read again when it changes.
    pub token: PathBuf,
    /// User agent of our requests.
    pub user_agent: String,
}

/// Client of the API server; clones share connections.
#[derive(Clone)]
pub struct KubeClient {
    pub(crate) kube: kube::Client,
}

/// Timeout of a request that changes an object, or reads one in order to change it.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
pub(crate) const JSON: &str = "application/json";

/// Change of an object.
pub(crate) enum ObjectChange {
    /// Create the object in the collection at the path.
    Create(Value),
    /// Replace the object.
    Replace(Value),
    /// Delete the object, with these options.
    Delete(Value),
    /// Set or remove members of the object (RFC 7396).
    MergePatch(Value),
    /// Like `MergePatch`, with lists merged by the keys of their objects, such as a node's conditions.
    StrategicMergePatch(Value),
}

impl KubeClient {
    /// Returns a client; reads the credential, and connects at the first request.
    ///
    /// # Errors
    /// The files cannot be read, or the URL is invalid.
    ///
    /// # Panics
    /// Outside of an async runtime.
    pub fn new(connection: &ApiConnection) -> Result<KubeClient, Error> {
        let url = connection.server.parse::<http::Uri>();
        let url = url.map_err(|cause| Error::connection(&connection.server, &cause))?;
        let transport = Transport::new(connection)
            .map_err(|cause| Error::Connection { server: connection.server.clone(), cause })?;
        // Not through `kube::Config`, which would link every authentication method into the program.
        Ok(KubeClient { kube: kube::Client::new(BaseUriLayer::new(url).layer(transport), "default") })
    }

    /// Gets the object at a path such as `/api/v1/nodes/n1`, and deserialises it as `T`.
    ///
    /// # Errors
    /// No response within `limit`, or not the object. `what` names the object in the error.
    pub async fn get<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        limit: Duration,
    ) -> Result<T, Error> {
        self.send_request(format!("get {what}"), (Method::GET, JSON, Vec::new()), path, limit).await
    }

    /// Changes the object at a path.
    ///
    /// # Errors
    /// The API server did not apply the change within `limit`.
    pub(crate) async fn change_object(
        &self,
        doing: String,
        path: &str,
        change: ObjectChange,
        limit: Duration,
    ) -> Result<(), Error> {
        let (method, kind, body) = match change {
            ObjectChange::Create(object) => (Method::POST, JSON, object),
            ObjectChange::Replace(object) => (Method::PUT, JSON, object),
            ObjectChange::Delete(options) => (Method::DELETE, JSON, options),
            ObjectChange::MergePatch(patch) => (Method::PATCH, "application/merge-patch+json", patch),
            ObjectChange::StrategicMergePatch(patch) => {
                (Method::PATCH, "application/strategic-merge-patch+json", patch)
            }
        };
        let content = (method, kind, body.to_string().into_bytes());
        self.send_request::<IgnoredAny>(doing, content, path, limit).await.map(drop)
    }

    /// Whether the API server is ready to serve, so that its refusals are final: one that has just started has not read its roles
    /// yet, and one without its storage finds no service account. A server that forbids the request counts as ready; one that does
    /// not accept our credential is asked anonymously. `has_expired`: our token has expired, so that no server accepts it.
    pub async fn server_is_ready(&self, limit: Duration, has_expired: bool) -> bool {
        match self.ask_readiness(None, limit).await {
            Some(401) if has_expired => false,
            Some(401) => matches!(self.ask_readiness(Some(AsNobody), limit).await, Some(200 | 401 | 403)),
            status => matches!(status, Some(200 | 403)),
        }
    }

    async fn ask_readiness(&self, who: Option<AsNobody>, limit: Duration) -> Option<u16> {
        let mut request = Request::builder().uri("/readyz").body(Vec::new()).ok()?;
        if let Some(nobody) = who {
            request.extensions_mut().insert(nobody);
        }
        match tokio::time::timeout(limit, self.kube.request_text(request)).await {
            Ok(Ok(_)) => Some(200),
            Ok(Err(kube::Error::Api(status))) => Some(status.code),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    async fn send_request<T: DeserializeOwned>(
        &self,
        doing: String,
        content: (Method, &str, Vec<u8>),
        path: &str,
        limit: Duration,
    ) -> Result<T, Error> {
        let request = make_request(&doing, content, path)?;
        wait_for_answer(doing, self.kube.request(request), limit).await
    }
}

/// Builds a request from method, content type and body, for a path.
pub(crate) fn make_request(
    doing: &str,
    (method, kind, body): (Method, &str, Vec<u8>),
    path: &str,
) -> Result<Request<Vec<u8>>, Error> {
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    request.body(body).map_err(|cause| Error::unavailable(doing, describe_error(&cause)))
}

/// Waits for the response to a request, at most `limit`.
pub(crate) async fn wait_for_answer<T>(
    doing: String,
    answer: impl Future<Output = Result<T, kube::Error>>,
    limit: Duration,
) -> Result<T, Error> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer.map_err(|cause| Error::request(doing, &cause)),
        Err(_) => Err(Error::Timeout { doing, limit }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "client error (Connect)" alone does not help a reader of an Event.
    #[test]
    fn why_a_server_is_not_reached_is_in_the_error() {
        let directory = tempfile::tempdir().unwrap();
        let token = directory.path().join("token");
        std::fs::write(&token, "secret").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(async {
            let connection = ApiConnection {
                server: "https://127.0.0.1:1".to_owned(),
                trust: ApiServerTrust::Anybody,
                token,
                user_agent: "test".to_owned(),
            };
            let client = KubeClient::new(&connection).unwrap();
            let limit = Duration::from_secs(5);
            client.get::<Value>("pod shop/web", "/api/v1/pods", limit).await.unwrap_err().to_string()
        });
        for part in ["cannot get pod shop/web", "Connection refused"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
