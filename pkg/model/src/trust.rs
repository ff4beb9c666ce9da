//! Whom to believe.

use std::path::PathBuf;

/// Whom to believe to be the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiServerTrust {
    /// Whoever has a certificate of an authority in this PEM file, which is read again when it changes.
    Authority(PathBuf),
    /// Anybody.
    Anybody,
}
