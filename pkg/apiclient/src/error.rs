//! Errors of a `GET`.

use std::fmt;
use std::time::Duration;

use crate::ConfigError;

/// Failure of a request: the request, the server, the number of attempts, the time, and why the last attempt failed. Never contains
/// a token, key or password.
#[derive(Debug)]
pub struct Error {
    /// Request, as in `GET pods default/web-0`.
    pub asked: String,
    /// URL of the server, if the kubeconfig could be read.
    pub server: Option<String>,
    /// Number of attempts.
    pub tries: u32,
    /// Time since the first attempt.
    pub elapsed: Duration,
    /// Reason why the last attempt failed.
    pub reason: FailureReason,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.asked)?;
        if let Some(server) = &self.server {
            write!(f, " at the API server {server}")?;
        }
        write!(f, ": {}", self.reason)?;
        match self.tries {
            1 => write!(f, " (tried once, {:.1} s)", self.elapsed.as_secs_f64()),
            tries => write!(f, " (tried {tries} times in {:.1} s)", self.elapsed.as_secs_f64()),
        }
    }
}

impl std::error::Error for Error {}

/// Reason why one attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailureReason {
    /// The kubeconfig or a file that it names cannot be used.
    #[error("the kubeconfig cannot be used: {0}")]
    Config(String),
    /// The TLS provider is not the one that this build requires.
    #[error("TLS is refused: {0}")]
    Provider(String),
    /// No connection, or it failed.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// Timeout. The text names what was waited for.
    #[error("no answer in time, waiting for {0}")]
    TimedOut(String),
    /// The server's certificate is not trusted.
    #[error("its certificate is not trusted: {0}")]
    Untrusted(String),
    /// 401, or our client certificate was rejected: not authenticated.
    #[error("it does not accept our credential (401): {0}")]
    Unauthorized(String),
    /// 403: authenticated, without the permission.
    #[error("it forbids this (403): {0}")]
    Forbidden(String),
    /// 404.
    #[error("it has no such object (404): {0}")]
    NotFound(String),
    /// 3xx: never followed, because the credential would be sent along.
    #[error("it redirects ({status}) to {location:?}, which is not followed")]
    Redirected {
        /// Status of the response.
        status: u16,
        /// Header `Location`, truncated.
        location: String,
    },
    /// Any other status that is not 200.
    #[error("it answered {status}: {message}")]
    Server {
        /// Status of the response.
        status: u16,
        /// Message of the response, truncated.
        message: String,
        /// Delay that `Retry-After` gives.
        retry_after: Option<Duration>,
    },
    /// The response is not HTTP, too large, or not the expected JSON.
    #[error("the answer cannot be used: {0}")]
    Malformed(String),
}

impl FailureReason {
    pub(crate) fn config_error(what: impl Into<String>) -> Self {
        FailureReason::Config(what.into())
    }
}

impl From<ConfigError> for FailureReason {
    fn from(error: ConfigError) -> Self {
        FailureReason::Config(error.to_string())
    }
}
