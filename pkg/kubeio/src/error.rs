//! What can go wrong, with what was being done.

use std::time::Duration;

/// Kind of an error, as far as a caller acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiErrorKind {
    /// There is no such object (404).
    NotFound,
    /// Our credential is not accepted (401), or does not allow this (403).
    Refused,
    /// The object is another one than was meant, or has changed (409), or the change is not one that can be made (422).
    Conflict,
    /// The requested data is too old (410), such as the next page of a list.
    Expired,
    /// Anything else: no connection, no answer in time, a failing server.
    Unavailable,
}

/// Something that the API server was to do was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The credential or the authority's certificates cannot be used.
    #[error("cannot prepare the connection to the API server {server}: {cause}")]
    Connection {
        /// URL of the server.
        server: String,
        /// In words.
        cause: String,
    },
    /// A request failed.
    #[error("cannot {doing}: {cause}")]
    Request {
        /// Such as "get DaemonSet kube-system/istio-cni-node".
        doing: String,
        /// In words.
        cause: String,
        /// For whoever acts on it.
        kind: ApiErrorKind,
    },
    /// No answer in time.
    #[error("cannot {doing}: no answer within {limit:?}")]
    Timeout {
        /// As above.
        doing: String,
        /// The time that was given.
        limit: Duration,
    },
}

impl Error {
    /// The kind of problem.
    pub fn kind(&self) -> ApiErrorKind {
        match self {
            Error::Request { kind, .. } => *kind,
            Error::Connection { .. } | Error::Timeout { .. } => ApiErrorKind::Unavailable,
        }
    }

    pub(crate) fn connection(server: &str, cause: &(dyn std::error::Error + 'static)) -> Error {
        Error::Connection { server: server.to_owned(), cause: with_causes(cause) }
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
            other => Error::unavailable(doing, with_causes(other)),
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

/// An error with its causes, each only when it says something new.
pub(crate) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let message = cause.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        next = cause.source();
    }
    text
}
