//! What can go wrong with files.

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

/// The path as a word of the sentence; a watcher's own descriptors have none.
fn place(path: &Path) -> String {
    if path.as_os_str().is_empty() { String::new() } else { format!(" {}", path.display()) }
}

impl Error {
    pub(crate) fn new(doing: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self { doing, path: path.to_owned(), source: source.into(), no_file: false }
    }

    /// A cause that the kernel has no number for.
    pub(crate) fn with_cause(doing: &'static str, path: &Path, cause: impl Into<String>) -> Self {
        Self::new(doing, path, io::Error::other(cause.into()))
    }

    /// The path leads to no regular file, wherever it is read.
    pub(crate) fn no_file(doing: &'static str, path: &Path, cause: impl Into<String>) -> Self {
        Self { no_file: true, ..Self::with_cause(doing, path, cause) }
    }

    /// For `map_err`.
    pub(crate) fn at<E: Into<io::Error>>(doing: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::new(doing, path, source)
    }

    /// The file or directory that was asked for; empty if a [`crate::DirectoryWatcher`] itself failed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The cause: what the kernel answered, or words of kind [`io::ErrorKind::Other`].
    pub const fn io_error(&self) -> &io::Error {
        &self.source
    }

    /// Whether it, or a directory on the way to it, does not exist. A dangling link is not missing.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    /// Whether nobody can read a file there, on the host as little as in a container: it is a directory, a device or the like,
    /// or a link that dangles.
    pub const fn is_no_file(&self) -> bool {
        self.no_file
    }
}
