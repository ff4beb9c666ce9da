//! HTTP transport to the API server: a connection pool that verifies the server by the authority's file as it is when a connection
//! is made, and sends the token as it is in its file at each request. Response bodies are limited to what their reader may hold in
//! memory.

use std::{
    future::{self, Future},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{
    HeaderValue, Request, Response, Uri,
    header::{AUTHORIZATION, USER_AGENT},
};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use kube::client::Body;
use model::ApiServerTrust;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tower::Service;

use crate::{
    ApiConnection,
    bounded::{BodyBound, BoundedBody},
    reread::ReloadedFile,
};

/// Timeout of connecting, including the handshake, and of sending a request. [`BoundedBody`] ends a watch without data.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
/// Timeout from a request to the head of its response: nothing else ends the wait for a list or watch that the server never begins.
const HEAD: Duration = Duration::from_secs(30);

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
type PendingResult<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// Extension of a request that is sent without the token.
#[derive(Clone, Copy)]
pub(crate) struct AsNobody;

/// Sends requests with absolute URIs; clones share connections.
#[derive(Clone)]
pub(crate) struct Transport {
    pool: legacy::Client<TimeoutConnector<ApiConnector>, Body>,
    user_agent: Option<HeaderValue>,
    token: Arc<ReloadedFile<HeaderValue>>,
}

impl Transport {
    /// Reads the credential; does not connect.
    ///
    /// # Errors
    /// A file cannot be read, as text.
    pub(crate) fn new(connection: &ApiConnection) -> Result<Transport, String> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        let mut connector = TimeoutConnector::new(ApiConnector { http, tls: tls_source(&connection.trust)? });
        connector.set_connect_timeout(Some(LIMIT));
        connector.set_write_timeout(Some(LIMIT));
        Ok(Transport {
            pool: legacy::Client::builder(TokioExecutor::new()).build(connector),
            user_agent: HeaderValue::from_str(&connection.user_agent).ok(),
            token: Arc::new(ReloadedFile::new(&connection.token, bearer_header)?),
        })
    }
}

impl Service<Request<Body>> for Transport {
    type Response = Response<BoundedBody>;
    type Error = BoxError;
    type Future = PendingResult<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let is_nobodys = request.extensions().get::<AsNobody>().is_some();
        let headers = request.headers_mut();
        if !is_nobodys {
            headers.insert(AUTHORIZATION, self.token.current_value());
        }
        if let Some(user_agent) = &self.user_agent {
            headers.insert(USER_AGENT, user_agent.clone());
        }
        let bound = BodyBound::for_request(request.uri().query(), request.extensions().get().copied());
        let answer = self.pool.request(request);
        Box::pin(async move {
            let answer = tokio::time::timeout(HEAD, answer).await;
            let answer = answer.map_err(|_| format!("no answer within {HEAD:?}"))??;
            let is_success = answer.status().is_success();
            Ok(answer.map(|body| BoundedBody::new(body, bound, is_success)))
        })
    }
}

fn bearer_header(token: &[u8]) -> Result<HeaderValue, String> {
    let token = token.trim_ascii();
    if token.is_empty() {
        return Err("it is empty".to_owned());
    }
    let header = HeaderValue::from_bytes(&[b"Bearer ", token].concat());
    let mut header = header.map_err(|_| "it is not a valid token".to_owned())?;
    header.set_sensitive(true);
    Ok(header)
}

/// Current TLS configuration, which verifies the certificate of the server.
type TlsSource = Arc<dyn Fn() -> Arc<ClientConfig> + Send + Sync>;

fn tls_source(trust: &ApiServerTrust) -> Result<TlsSource, String> {
    let source: TlsSource = match trust {
        ApiServerTrust::Anybody => {
            let config = tls_config(None)?;
            Arc::new(move || Arc::clone(&config))
        }
        ApiServerTrust::Authority(file) => {
            let file = ReloadedFile::new(file, |pem| tls_config(Some(pem)))?;
            Arc::new(move || file.current_value())
        }
    };
    Ok(source)
}

fn tls_config(authority: Option<&[u8]>) -> Result<Arc<ClientConfig>, String> {
    apiclient::tls_config(authority).map(Arc::new).map_err(|reason| reason.to_string())
}

/// Establishes connections.
#[derive(Clone)]
struct ApiConnector {
    http: HttpConnector,
    tls: TlsSource,
}

impl Service<Uri> for ApiConnector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = PendingResult<Self::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.http.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let mut https = HttpsConnector::from((self.http.clone(), (self.tls)()));
        Box::pin(async move {
            future::poll_fn(|context| https.poll_ready(context)).await?;
            https.call(uri).await
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use tokio::time::Instant;

    use super::*;
    use crate::{Collection, KubeClient};

    /// `agent::watch_health` considers a watch that reports nothing for longer than this, its back-off included, as working.
    const LONGEST: Duration = Duration::from_secs(90);

    #[test]
    fn a_watch_that_the_server_never_answers_fails_again_and_again() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap(); // it accepts no connection: the kernel does
        let directory = tempfile::tempdir().unwrap();
        let token = directory.path().join("token");
        std::fs::write(&token, "secret").unwrap();
        let connection = ApiConnection {
            server: format!("http://{}", server.local_addr().unwrap()),
            trust: ApiServerTrust::Anybody,
            token,
            user_agent: "test".to_owned(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let client = KubeClient::new(&connection).unwrap();
            let collection = Collection { kind: "Pod", ..Collection::default() };
            let mut watch = std::pin::pin!(client.watch_all::<model::Pod, model::Pod>(&collection));
            for _ in 0..8 {
                let before = Instant::now();
                let next = tokio::time::timeout(LONGEST, watch.next()).await;
                let error = next.expect("an error in time").unwrap().unwrap_err().to_string();
                assert!(error.ends_with("no answer within 30s"), "{error}");
                assert!(before.elapsed() >= HEAD, "only after {:?}", before.elapsed());
            }
        });
    }
}
