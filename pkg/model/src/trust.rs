//! Trust in the API server.

use std::path::PathBuf;

/// How the API server's certificate is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiServerTrust {
    /// Against the authorities in this PEM file, which is read again when it changes.
    Authority(PathBuf),
    /// Not verified.
    Anybody,
}
