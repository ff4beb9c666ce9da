//! Errors of requests, with the attempted operation.

use std::time::Duration;

use model::describe_error;

/// Class of an error, as far as a caller acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiErrorKind {
    /// The object does not exist (404).
    NotFound,
    /// The credential is not accepted (401), or lacks the permission (403).
    Refused,
    /// The object is another one than expected, or has changed (409), or the change is invalid (422).
    Conflict,
    /// The requested data is too old (410), such as the next page of a list.
    Expired,
    /// Anything else: no connection, a timeout, a failing server.
    Unavailable,
}

/// An operation of the API server that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The credential or the certificate authority cannot be used.
    #[error("cannot prepare the connection to the API server {server}: {cause}")]
    Connection {
        /// URL of the server.
        server: String,
        /// Cause as text.
        cause: String,
    },
    /// A request failed.
    #[error("cannot {doing}: {cause}")]
    Request {
        /// Operation, such as "get DaemonSet kube-system/istio-cni-node".
        doing: String,
        /// Cause as text.
        cause: String,
        /// Class of the error.
        kind: ApiErrorKind,
    },
    /// No response within the timeout.
    #[error("cannot {doing}: no answer within {limit:?}")]
    Timeout {
        /// Operation, such as "get DaemonSet kube-system/istio-cni-node".
        doing: String,
        /// Timeout.
        limit: Duration,
    },
}

impl Error {
    /// Returns the class of the error.
    pub fn kind(&self) -> ApiErrorKind {
        match self {
            Error::Request { kind, .. } => *kind,
            Error::Connection { .. } | Error::Timeout { .. } => ApiErrorKind::Unavailable,
        }
    }

    pub(crate) fn unavailable(doing: impl Into<String>, cause: impl Into<String>) -> Error {
        Error::Request { doing: doing.into(), cause: cause.into(), kind: ApiErrorKind::Unavailable }
    }

    pub(crate) fn request(doing: String, cause: &kube::Error) -> Error {
        match cause {
            kube::Error::Api(status) => {
                let cause = format!("{} ({})", status.message, status.code);
                Error::Request { doing, cause, kind: kind_from_code(status.code) }
            }
            other => Error::unavailable(doing, describe_error(other)),
        }
    }
}

fn kind_from_code(code: u16) -> ApiErrorKind {
    match code {
        404 => ApiErrorKind::NotFound,
        401 | 403 => ApiErrorKind::Refused,
        409 | 422 => ApiErrorKind::Conflict,
        410 => ApiErrorKind::Expired,
        _ => ApiErrorKind::Unavailable,
    }
}
