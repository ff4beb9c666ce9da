//! A small client of the API server, with which tests prepare the state that the code under test finds.

use std::time::Duration;

use serde_json::Value;
use ureq::http::{Method, Request, Response};
use ureq::tls::{self, RootCerts, TlsConfig};
use ureq::{Agent, AsSendBody, Body};

use crate::api::Auth;
use crate::pki::{Certificate, Pki};

/// A client of one API server with one credential.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    url: String,
    token: Option<String>,
    limit: Duration,
}

/// Status and body of a response; the body is null if it is not JSON.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Response body.
    pub body: Value,
}

impl Client {
    /// A client of this server. It connects from the namespace of the calling thread.
    #[must_use]
    pub fn new(url: &str, auth: &Auth) -> Self {
        let token = match auth {
            Auth::Token(token) | Auth::Insecure(token) => Some(token.clone()),
            Auth::TokenFile(path) => Some(std::fs::read_to_string(path).expect("a token")),
            Auth::ClientCert { .. } | Auth::Anonymous => None,
        };
        let certificate = match auth {
            Auth::ClientCert { user, group } => Some(Pki::shared().client(user, group)),
            _ => None,
        };
        // The first call sets the provider of the process; later ones would set the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let root = tls::Certificate::from_pem(Pki::shared().server_ca_pem().as_bytes()).expect("our own CA");
        let own = certificate.map(|certificate: Certificate| {
            let cert =
                tls::Certificate::from_pem(certificate.cert_pem.as_bytes()).expect("our own certificate");
            let key = tls::PrivateKey::from_pem(certificate.key_pem.as_bytes()).expect("our own key");
            tls::ClientCert::new_with_certs(&[cert], key)
        });
        let tls =
            TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[root])).client_cert(own).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent("kit")
            .build();
        Self { agent: config.into(), url: url.to_owned(), token, limit: Duration::from_secs(30) }
    }

    /// Sets the time limit for one request, in place of 30 seconds.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sends one request. `Err` is the reason why no response was received.
    pub fn try_request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, String> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let method = Method::from_bytes(method.as_bytes()).expect("an HTTP method");
        let mut request =
            Request::builder().method(method).uri(format!("{}{path}", self.url)).header("content-type", kind);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = match body {
            Some(body) => self.run(request.body(body.to_string()).expect("a request")),
            None => self.run(request.body(()).expect("a request")),
        };
        let mut answer = answer.map_err(|e| e.to_string())?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().read_to_string().map_err(|e| e.to_string())?;
        Ok(Answer { status, body: serde_json::from_str(&text).unwrap_or(Value::Null) })
    }

    /// Sends one request, which must receive a response of any status.
    pub fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        self.try_request(method, path, body).unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    /// The object at `path`, which must exist.
    pub fn get(&self, path: &str) -> Value {
        self.must("GET", path, None)
    }

    /// Creates an object in the collection at `path`, and returns it as stored.
    pub fn create(&self, path: &str, object: &Value) -> Value {
        self.must("POST", path, Some(object))
    }

    /// Deletes the object at `path` immediately, without a grace period.
    pub fn delete(&self, path: &str) -> Value {
        self.must("DELETE", &format!("{path}?gracePeriodSeconds=0"), None)
    }

    /// Merge-patches the object at `path`.
    pub fn patch(&self, path: &str, patch: &Value) -> Value {
        self.must("PATCH", path, Some(patch))
    }

    /// Merge-patches the status of the object at `path`.
    pub fn patch_status(&self, path: &str, status: &Value) -> Value {
        self.must("PATCH", &format!("{path}/status"), Some(&serde_json::json!({"status": status})))
    }

    fn run<B: AsSendBody>(&self, request: Request<B>) -> Result<Response<Body>, ureq::Error> {
        self.agent.run(self.agent.configure_request(request).timeout_global(Some(self.limit)).build())
    }

    fn must(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let answer = self.request(method, path, body);
        assert!((200..300).contains(&answer.status), "{method} {path}: {} {}", answer.status, answer.body);
        answer.body
    }
}
