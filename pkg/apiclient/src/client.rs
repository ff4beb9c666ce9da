//! The client: tries, one after the other, each with everything read afresh.

use std::io::Write as _;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use http_response::{HttpError, HttpResponse};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::kubeconfig::{Kubeconfig, load_kubeconfig};
use crate::retry::{RetrySeries, random_fraction};
use crate::transport::{Deadline, DeadlineStream};
use crate::{Error, FailureReason, Resolver, RetryPolicy, Secret, ServerHost, tls};

/// The greatest body, in bytes. The API server's objects are below 1.5 MiB (etcd's limit).
pub const MAX_BODY: usize = 4 * 1024 * 1024;

/// How new an answer has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// As it is now: the server reads from its store.
    Newest,
    /// As the server last heard (`resourceVersion=0`): it answers from memory, which spares its store and about half of
    /// the time. An object that was just made may be missing, or be its predecessor of the same name.
    Cached,
}

/// Decision at the end of a pause between two tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// Another try.
    Try,
    /// No further try: the last failure is the answer.
    GiveUp,
}

/// Asks the API server that a kubeconfig names. Holds nothing open; making one does nothing yet.
#[derive(Clone, Debug)]
pub struct ApiClient {
    kubeconfig: PathBuf,
    resolver: Resolver,
}

impl ApiClient {
    /// A client with that kubeconfig; names are looked up with the system's files.
    pub fn new(kubeconfig: impl Into<PathBuf>) -> Self {
        ApiClient { kubeconfig: kubeconfig.into(), resolver: Resolver::default() }
    }

    /// Replaces the files with which names are looked up.
    #[must_use]
    pub fn with_resolver(mut self, resolver: Resolver) -> Self {
        self.resolver = resolver;
        self
    }

    /// `GET /<segment>/<segment>…`, decoded from JSON, as in `["api", "v1", "namespaces", "default", "pods", "web-0"]`.
    /// Segments are escaped. Blocks until there is an answer or the policy says that there will be none.
    ///
    /// # Errors
    /// Why the last try failed.
    pub fn get<T: DeserializeOwned>(
        &self,
        segments: &[&str],
        freshness: Freshness,
        policy: &RetryPolicy,
    ) -> Result<T, Error> {
        self.get_interruptible(segments, freshness, policy, &|delay| {
            sleep(delay);
            RetryDecision::Try
        })
    }

    /// [`ApiClient::get`], with pauses that the caller makes: it may end one early because something has changed, or give up.
    ///
    /// # Errors
    /// Why the last try failed.
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

    /// One try. `server` is set as soon as it is known.
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

/// Of two reasons the one to tell: a last try that had only the rest of the time runs out of it, whatever is wrong; what
/// an earlier one was told says more.
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

/// The path; none if a segment is empty or would change the meaning of others.
fn escaped_path(segments: &[&str]) -> Option<String> {
    let mut path = String::new();
    for segment in segments {
        if matches!(*segment, "" | "." | "..") {
            return None;
        }
        path.push('/');
        for byte in segment.bytes() {
            // RFC 3986, section 2.3.
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
                path.push(char::from(byte));
            } else {
                path.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    (!path.is_empty()).then_some(path)
}

/// `GET pods default/web-0`, or the path where it is no object of the core group.
fn describe_request(segments: &[&str]) -> String {
    match segments {
        ["api", "v1", "namespaces", namespace, kind, name] => format!("GET {kind} {namespace}/{name}"),
        ["api", "v1", kind, name] => format!("GET {kind} {name}"),
        _ => format!("GET /{}", segments.join("/")),
    }
}

/// Values do not show in the error: a pod may have secrets in its environment.
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

/// Seconds only (RFC 9110, section 10.2.3 also has dates, which the API server does not send).
fn retry_after(response: &HttpResponse) -> Option<Duration> {
    response.header("Retry-After")?.parse().ok().map(Duration::from_secs)
}

/// The message of a Kubernetes `Status`, or what there is of text.
fn status_message(response: &HttpResponse, authorization: Option<&Secret>) -> String {
    #[derive(Deserialize)]
    struct StatusBody {
        message: String,
    }
    let text = match serde_json::from_slice::<StatusBody>(&response.body) {
        Ok(status) => status.message,
        Err(_) => String::from_utf8_lossy(response.body.get(..300).unwrap_or(&response.body)).into_owned(),
    };
    // A proxy that echoes the request must not bring our credential into a log.
    let credential = authorization.and_then(Secret::header_word).unwrap_or_default();
    let text = if credential.is_empty() { text } else { text.replace(credential, "[hidden]") };
    let text = shorten_text(&text);
    if text.is_empty() { "no message".to_owned() } else { text }
}

/// At most 300 characters on one line.
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
