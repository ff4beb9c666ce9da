//! Client of the API server: credential, and single requests.

use std::{
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{Method, Request, header::DATE};
use k8s_openapi::jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use kube::client::{Body, middleware::BaseUriLayer};
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
/// Status of a request that the API server rejects unprocessed, because it has too many.
const TOO_MANY: u16 = 429;
/// Maximum number of these before the last attempt, and the pause after each: what the API server asks for in `Retry-After`.
const MOST_REJECTIONS: u32 = 10;
const REJECTED: Duration = Duration::from_secs(1);

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
        let failed = |cause| Error::Connection { server: connection.server.clone(), cause };
        let url = connection.server.parse::<http::Uri>();
        let url = url.map_err(|cause| failed(describe_error(&cause)))?;
        let transport = Transport::new(connection).map_err(failed)?;
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
    /// yet, and then forbids this request, too; one without its storage finds no service account. A server that does not accept our
    /// credential is asked anonymously, and counts as ready if it accepts no anonymous requests. `expires`: when our token expires,
    /// in seconds since 1970; then no server accepts it any longer.
    pub async fn server_is_ready(&self, limit: Duration, expires: Option<i64>) -> bool {
        match self.ask_readiness(None, limit).await {
            Some((401, now)) if expires.is_some_and(|expires| expires <= now) => false,
            Some((401, _)) => {
                let anonymous = self.ask_readiness(Some(AsNobody), limit).await;
                matches!(anonymous, Some((200 | 401, _)))
            }
            answer => matches!(answer, Some((200, _))),
        }
    }

    /// Returns the status of the answer, and its time in seconds since 1970: the server's, because a node's clock may be wrong by
    /// hours, and then the kubelet does not renew the token in time.
    async fn ask_readiness(&self, who: Option<AsNobody>, limit: Duration) -> Option<(u16, i64)> {
        let mut request = Request::builder().uri("/readyz").body(Body::empty()).ok()?;
        if let Some(nobody) = who {
            request.extensions_mut().insert(nobody);
        }
        let answer = tokio::time::timeout(limit, self.kube.send(request)).await.ok()?.ok()?;
        let date = answer.headers().get(DATE);
        let date = date.and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
        Some((answer.status().as_u16(), date.map_or_else(read_clock, Timestamp::as_second)))
    }

    async fn send_request<T: DeserializeOwned>(
        &self,
        doing: String,
        content: (Method, &str, Vec<u8>),
        path: &str,
        limit: Duration,
    ) -> Result<T, Error> {
        let request = make_request(&doing, content, path)?;
        let answer = async {
            for _ in 0..MOST_REJECTIONS {
                match self.kube.request(request.clone()).await {
                    Err(kube::Error::Api(status)) if status.code == TOO_MANY => sleep_for(REJECTED).await,
                    answer => return answer,
                }
            }
            self.kube.request(request).await
        };
        wait_for_answer(doing, answer, limit).await
    }
}

/// Returns the time of this node's clock in seconds since 1970.
fn read_clock() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
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
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::TcpListener,
        thread,
    };

    use super::*;

    /// Runs `ask` with a client of this server.
    fn with_client<T>(server: String, ask: impl AsyncFnOnce(KubeClient) -> T) -> T {
        let directory = tempfile::tempdir().unwrap();
        let token = directory.path().join("token");
        std::fs::write(&token, "secret").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let trust = ApiServerTrust::Anybody;
        let connection = ApiConnection { server, trust, token, user_agent: "test".to_owned() };
        runtime.block_on(async { ask(KubeClient::new(&connection).unwrap()).await })
    }

    /// "client error (Connect)" alone does not help a reader of an Event.
    #[test]
    fn why_a_server_is_not_reached_is_in_the_error() {
        let error = with_client("https://127.0.0.1:1".to_owned(), async |client| {
            let limit = Duration::from_secs(5);
            client.get::<Value>("pod shop/web", "/api/v1/pods", limit).await.unwrap_err().to_string()
        });
        for part in ["cannot get pod shop/web", "Connection refused"] {
            assert!(error.contains(part), "{error}");
        }
    }

    /// Returns the URL of a server that accepts no token, and has this header with its time.
    fn unknowing_server(date: &'static str) -> String {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", server.local_addr().unwrap());
        thread::spawn(move || {
            while let Ok((mut client, _)) = server.accept() {
                let lines = BufReader::new(client.try_clone().unwrap()).lines().map_while(Result::ok);
                let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let has_token = head.iter().any(|line| line.to_lowercase().starts_with("authorization:"));
                let status = if has_token { 401 } else { 200 };
                let answer =
                    format!("HTTP/1.1 {status} No\r\n{date}content-length: 0\r\nconnection: close\r\n\r\n");
                client.write_all(answer.as_bytes()).unwrap();
            }
        });
        url
    }

    #[test]
    fn a_token_expires_by_the_clock_of_the_server_and_not_by_the_nodes() {
        let (early, late) =
            ("Date: Thu, 01 Jan 1970 00:00:30 GMT\r\n", "date: Fri, 01 Jan 2100 00:00:00 GMT\r\n");
        let year_2099 = Some(4_070_908_800);
        for (date, expires, is_ready) in [
            (late, None, true),
            (late, year_2099, false), // a node whose clock stood still
            (early, Some(60), true),  // a node whose clock is fast
            (early, Some(30), false),
            ("", Some(60), false), // no time: by our clock
            ("", year_2099, true),
            ("date: today\r\n", year_2099, true),
        ] {
            let answer = with_client(unknowing_server(date), async |client| {
                client.server_is_ready(Duration::from_secs(20), expires).await
            });
            assert_eq!(answer, is_ready, "{date:?} {expires:?}");
        }
    }
}
