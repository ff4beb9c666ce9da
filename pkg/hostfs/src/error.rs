//! Errors of file operations.

use std::io;
use std::path::{Path, PathBuf};

/// A failed operation, its path and the cause: `cannot write /etc/cni/net.d/10-x.conflist: No space left on device`.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing}{}: {source}", place(.path))]
pub struct Error {
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
    no_file: bool,
}

/// Formats the path for the message; a watcher's own descriptors have none.
fn place(path: &Path) -> String {
    if path.as_os_str().is_empty() { String::new() } else { format!(" {}", path.display()) }
}

impl Error {
    pub(crate) fn new(doing: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self { doing, path: path.to_owned(), source: source.into(), no_file: false }
    }

    /// Returns an error whose cause is no errno.
    pub(crate) fn with_cause(doing: &'static str, path: &Path, cause: impl Into<String>) -> Self {
        Self::new(doing, path, io::Error::other(cause.into()))
    }

    /// Returns an error for a path that leads to no regular file, on the host or in a container.
    pub(crate) fn no_file(doing: &'static str, path: &Path, cause: impl Into<String>) -> Self {
        Self { no_file: true, ..Self::with_cause(doing, path, cause) }
    }

    /// Returns a function for `map_err`.
    pub(crate) fn at<E: Into<io::Error>>(doing: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::new(doing, path, source)
    }

    /// Returns the path of the operation; empty if a [`crate::DirectoryWatcher`] itself failed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the cause: the kernel's error, or a text of kind [`io::ErrorKind::Other`].
    pub const fn io_error(&self) -> &io::Error {
        &self.source
    }

    /// Whether the path, or a parent directory of it, does not exist. A dangling link is not missing.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    /// Whether no regular file can be read at the path, neither on the host nor in a container: it is a directory, a device or the
    /// like, or a dangling link.
    pub const fn is_no_file(&self) -> bool {
        self.no_file
    }
}
