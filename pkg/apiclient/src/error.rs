//! Why a `GET` failed.

use std::fmt;
use std::time::Duration;

use crate::ConfigError;

/// Failure of a request: the request, the server, the number of tries, the time, and why the last try failed. Shows no
/// token, key or password.
#[derive(Debug)]
pub struct Error {
    /// The request, as in `GET pods default/web-0`.
    pub asked: String,
    /// The server's URL, as far as the kubeconfig could be read.
    pub server: Option<String>,
    /// How often it was tried.
    pub tries: u32,
    /// For how long.
    pub elapsed: Duration,
    /// Why the last try failed.
    pub reason: FailureReason,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}", self.asked)?;
        if let Some(server) = &self.server {
            write!(f, " at the API server {server}")?;
        }
        write!(f, ": {}", self.reason)?;
        let times = if self.tries == 1 { "once" } else { "times" };
        match self.tries {
            1 => write!(f, " (tried {times}, {:.1} s)", self.elapsed.as_secs_f64()),
            tries => write!(f, " (tried {tries} {times} in {:.1} s)", self.elapsed.as_secs_f64()),
        }
    }
}

impl std::error::Error for Error {}

/// Why one try failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailureReason {
    /// The kubeconfig or a file that it names cannot be used.
    #[error("the kubeconfig cannot be used: {0}")]
    Config(String),
    /// The cryptography of TLS is not what this build requires.
    #[error("TLS is refused: {0}")]
    Provider(String),
    /// No connection, or it broke.
    #[error("no connection: {0}")]
    Unreachable(String),
    /// No answer in time. The text says what was waited for.
    #[error("no answer in time, waiting for {0}")]
    TimedOut(String),
    /// The server's certificate is not to be trusted.
    #[error("its certificate is not trusted: {0}")]
    Untrusted(String),
    /// 401, or our client certificate was refused: it does not know who we are.
    #[error("it does not accept our credential (401): {0}")]
    Unauthorized(String),
    /// 403: it knows, and we may not.
    #[error("it forbids this (403): {0}")]
    Forbidden(String),
    /// 404.
    #[error("it has no such object (404): {0}")]
    NotFound(String),
    /// 3xx: never followed, because the credential would go with it.
    #[error("it redirects ({status}) to {location:?}, which is not followed")]
    Redirected {
        /// The status.
        status: u16,
        /// The `Location` header, shortened.
        location: String,
    },
    /// Any other status that is not 200.
    #[error("it answered {status}: {message}")]
    Server {
        /// The status.
        status: u16,
        /// The message of the answer, shortened.
        message: String,
        /// Delay that `Retry-After` gives.
        retry_after: Option<Duration>,
    },
    /// The answer is not HTTP, too large, or not the JSON that was expected.
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
