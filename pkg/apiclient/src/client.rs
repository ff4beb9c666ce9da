//! Client with retries; each attempt reads all of its files again.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use http_response::{HttpError, HttpResponse};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::kubeconfig::{Kubeconfig, load_kubeconfig};
use crate::retry::{RetrySeries, random_fraction};
use crate::transport::{Deadline, DeadlineStream};
use crate::{Error, FailureReason, Resolver, RetryPolicy, Secret, ServerHost, tls};

/// Maximum size of a body, in bytes. The API server's objects are below 1.5 MiB (etcd's limit).
pub const MAX_BODY: usize = 4 * 1024 * 1024;

/// Required freshness of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Current state: the server reads from its store.
    Newest,
    /// State cached by the server (`resourceVersion=0`): responding from memory spares its store and about half of the time. A new
    /// object may be missing, or its predecessor of the same name may be returned.
    Cached,
}

/// Decision at the end of a delay between two attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// Retry.
    Try,
    /// Stop: the last failure is returned.
    GiveUp,
}

/// Client for the API server of a kubeconfig. Holds nothing open; creating one has no effect yet.
#[derive(Clone, Debug)]
pub struct ApiClient {
    kubeconfig: PathBuf,
    resolver: Resolver,
}

impl ApiClient {
    /// Returns a client with this kubeconfig; names are resolved by the system's files.
    pub fn new(kubeconfig: impl Into<PathBuf>) -> Self {
        ApiClient { kubeconfig: kubeconfig.into(), resolver: Resolver::default() }
    }

    /// Replaces the files by which names are resolved.
    #[must_use]
    pub fn with_resolver(mut self, resolver: Resolver) -> Self {
        self.resolver = resolver;
        self
    }

    /// `GET /<segment>/<segment>…`, decoded from JSON, as in `["api", "v1", "namespaces", "default", "pods", "web-0"]`. Segments
    /// are escaped. Blocks until a response, or until the policy ends the retries. Delays are made by `wait`, which may end one
    /// early because of a change, or give up.
    ///
    /// # Errors
    /// The reason why the last attempt failed.
    pub fn get_interruptible<T: DeserializeOwned>(
        &self,
        segments: &[&str],
        freshness: Freshness,
        policy: &RetryPolicy,
        wait: &dyn Fn(Duration) -> RetryDecision,
    ) -> Result<T, Error> {
        let start = Instant::now();
        let mut series = RetrySeries::default();
        let mut server = None;
        let mut before = None;
        loop {
            series.tries += 1;
            let left = policy.deadline.saturating_sub(start.elapsed());
            let attempt = Deadline::after(left.min(policy.per_try));
            let reason = match self.attempt_request(segments, freshness, attempt, &mut server) {
                Ok(value) => return Ok(value),
                Err(reason) => clearer_reason(reason, before.take(), left < policy.per_try),
            };
            let delay = series.next_delay(policy, &reason, start.elapsed(), random_fraction());
            if delay.is_none_or(|delay| wait(delay) == RetryDecision::GiveUp) {
                let (tries, elapsed) = (series.tries, start.elapsed());
                return Err(Error { asked: describe_request(segments), server, tries, elapsed, reason });
            }
            before = Some(reason);
        }
    }

    /// Makes one attempt. `server` is set as soon as it is known.
    fn attempt_request<T: DeserializeOwned>(
        &self,
        segments: &[&str],
        freshness: Freshness,
        deadline: Deadline,
        server: &mut Option<String>,
    ) -> Result<T, FailureReason> {
        let mut path = escaped_path(segments)
            .ok_or_else(|| FailureReason::config_error("the path of the request is invalid"))?;
        if freshness == Freshness::Cached {
            path.push_str("?resourceVersion=0");
        }
        let loaded = load_kubeconfig(&self.kubeconfig)?;
        *server = Some(loaded.server.to_string());
        let response = self.exchange_messages(&loaded, &path, deadline)?;
        if response.status == 200 {
            return decode_body(&response.body);
        }
        Err(refusal_reason(&response, loaded.authorization.as_ref()))
    }

    fn exchange_messages(
        &self,
        loaded: &Kubeconfig,
        path: &str,
        deadline: Deadline,
    ) -> Result<HttpResponse, FailureReason> {
        let addresses = match &loaded.server.host {
            ServerHost::Ip(ip) => vec![*ip],
            ServerHost::Name(name) => self
                .resolver
                .resolve(name, deadline)
                .map_err(|error| tls::failure_reason(&error, "looking up its name"))?,
        };
        let mut connection = DeadlineStream::open(&addresses, loaded.server.port, deadline)
            .map_err(|error| tls::failure_reason(&error, "connecting"))?;
        let request = request_bytes(loaded, path);
        let response = if loaded.server.https {
            http_response::receive::<MAX_BODY>(&mut tls::handshake_and_send(loaded, connection, &request)?)
        } else {
            connection.write_all(&request).map_err(|error| tls::failure_reason(&error, "the request"))?;
            http_response::receive::<MAX_BODY>(&mut connection)
        };
        response.map_err(|error| match error {
            HttpError::Io(error) => tls::failure_reason(&error, "the exchange"),
            HttpError::Malformed(what) => FailureReason::Malformed(what),
        })
    }
}

/// Selects the more informative reason: a last attempt with little time left times out whatever the cause; the reason of an earlier
/// one is clearer.
fn clearer_reason(last: FailureReason, before: Option<FailureReason>, cut_short: bool) -> FailureReason {
    match (last, before) {
        (FailureReason::TimedOut(_), Some(before)) if cut_short => before,
        (last, _) => last,
    }
}

fn request_bytes(loaded: &Kubeconfig, path: &str) -> Vec<u8> {
    let mut request = format!(
        "GET {}{path} HTTP/1.1\r\nHost: {}\r\nAccept: application/json\r\nUser-Agent: istio-cni\r\nConnection: close\r\n",
        loaded.server.prefix,
        loaded.server.authority()
    )
    .into_bytes();
    if let Some(value) = &loaded.authorization {
        request.extend_from_slice(b"Authorization: ");
        request.extend_from_slice(value.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    request
}

/// Returns the path; `None` if a segment is empty or would change the meaning of others.
fn escaped_path(segments: &[&str]) -> Option<String> {
    let mut path = String::new();
    for segment in segments {
        if matches!(*segment, "" | "." | "..") {
            return None;
        }
        path.push('/');
        for byte in segment.bytes() {
            // Unreserved characters (RFC 3986, section 2.3).
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
                path.push(char::from(byte));
            } else {
                path.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    (!path.is_empty()).then_some(path)
}

/// Formats `GET pods default/web-0`, or the path if it is no object of the core group.
fn describe_request(segments: &[&str]) -> String {
    match segments {
        ["api", "v1", "namespaces", namespace, kind, name] => format!("GET {kind} {namespace}/{name}"),
        ["api", "v1", kind, name] => format!("GET {kind} {name}"),
        _ => format!("GET /{}", segments.join("/")),
    }
}

/// Decodes a body. Errors do not contain values: a pod may have secrets in its environment.
fn decode_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, FailureReason> {
    serde_json::from_slice(body).map_err(|error| {
        let what = if error.is_data() { "JSON of another shape than expected" } else { "no JSON" };
        FailureReason::Malformed(format!("{what} (line {}, column {})", error.line(), error.column()))
    })
}

fn refusal_reason(response: &HttpResponse, authorization: Option<&Secret>) -> FailureReason {
    let message = status_message(response, authorization);
    match response.status {
        401 => FailureReason::Unauthorized(message),
        403 => FailureReason::Forbidden(message),
        404 => FailureReason::NotFound(message),
        status @ 300..=399 => {
            let location = response.header("Location").unwrap_or_default();
            FailureReason::Redirected { status, location: shorten_text(location) }
        }
        status => FailureReason::Server { status, message, retry_after: retry_after(response) },
    }
}

/// Returns the delay in seconds (RFC 9110, section 10.2.3 also has dates, which the API server does not send).
fn retry_after(response: &HttpResponse) -> Option<Duration> {
    response.header("Retry-After")?.parse().ok().map(Duration::from_secs)
}

/// Returns the message of a Kubernetes `Status`, or any other text.
fn status_message(response: &HttpResponse, authorization: Option<&Secret>) -> String {
    #[derive(Deserialize)]
    struct StatusBody {
        message: String,
    }
    let text = match serde_json::from_slice::<StatusBody>(&response.body) {
        Ok(status) => status.message,
        Err(_) => String::from_utf8_lossy(response.body.get(..300).unwrap_or(&response.body)).into_owned(),
    };
    // If a proxy echoes the request, our credential must not be logged.
    let credential = authorization.and_then(Secret::header_word).unwrap_or_default();
    let text = if credential.is_empty() { text } else { text.replace(credential, "[hidden]") };
    let text = shorten_text(&text);
    if text.is_empty() { "no message".to_owned() } else { text }
}

/// Truncates to at most 300 characters on one line.
fn shorten_text(text: &str) -> String {
    let line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(301).collect();
    if line.chars().count() > 300 { line.chars().take(300).chain("…".chars()).collect() } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_and_do_not_climb() {
        assert_eq!(escaped_path(&["api", "v1", "a b/c?d%"]).unwrap(), "/api/v1/a%20b%2Fc%3Fd%25");
        for bad in [&["api", ".."][..], &["", "x"], &["."], &[]] {
            assert_eq!(escaped_path(bad), None);
        }
    }

    #[test]
    fn requests_are_described_in_the_readers_words() {
        assert_eq!(describe_request(&["api", "v1", "namespaces", "ns", "pods", "web"]), "GET pods ns/web");
        assert_eq!(describe_request(&["api", "v1", "nodes", "n"]), "GET nodes n");
        assert_eq!(describe_request(&["version"]), "GET /version");
    }

    #[test]
    fn long_messages_are_cut_and_stay_on_one_line() {
        assert_eq!(shorten_text("a\r\nb"), "a  b");
        assert_eq!(shorten_text(&"ä".repeat(1000)).chars().count(), 301);
    }
}
