//! What can go wrong with namespaces.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Which step failed, on what, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing is at the path: of a pod, its sandbox is gone.
    #[error("no network namespace at {}", .path.display())]
    Missing {
        /// The path that was tried.
        path: PathBuf,
    },
    /// We may not open it.
    #[error("not allowed to open network namespace {}: {source}", .path.display())]
    Denied {
        /// The path that was tried.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The network namespace cannot be opened for another reason.
    #[error("cannot open network namespace {}: {source}", .path.display())]
    Open {
        /// The path that was tried.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file at the path is no network namespace.
    #[error("{} is {found}, not a network namespace", .path.display())]
    NotNetns {
        /// The path that was tried.
        path: PathBuf,
        /// Kind of the file that was found instead.
        found: &'static str,
    },
    /// A directory of network namespaces could not be read.
    #[error("cannot list the network namespaces in {}: {source}", .path.display())]
    List {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// No thread could be started to enter it.
    #[error("cannot start a thread for a network namespace: {source}")]
    Thread {
        /// The system's error.
        source: io::Error,
    },
    /// The kernel did not let the thread in (it wants CAP_SYS_ADMIN).
    #[error("cannot enter network namespace: {source}")]
    Enter {
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel did not let the process in (it wants CAP_SYS_ADMIN there, and a single thread).
    #[error("cannot enter user namespace: {source}")]
    EnterUser {
        /// The kernel's error.
        source: io::Error,
    },
    /// The private mounts could not be made; nothing has run.
    #[error("cannot prepare private mounts: {step}: {source}")]
    Sandbox {
        /// Which step of it.
        step: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A new namespace was refused (it wants CAP_SYS_ADMIN).
    #[error("cannot make a network namespace: {source}")]
    Create {
        /// The kernel's error.
        source: io::Error,
    },
    /// The name of a persistent namespace could not be made or removed.
    #[error("cannot {step} {}: {source}", .path.display())]
    Name {
        /// Which step of it.
        step: &'static str,
        /// The name.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn open_error(path: &Path, errno: Errno) -> Self {
        let (path, source) = (path.to_owned(), errno.into());
        match errno {
            // ESRCH: a file of /proc whose process ended between two steps
            // LOOP: a symbolic link that leads nowhere
            Errno::NOENT | Errno::NOTDIR | Errno::SRCH | Errno::LOOP => Self::Missing { path },
            Errno::NXIO | Errno::NODEV => Self::NotNetns { path, found: "a socket or a device" },
            Errno::ACCESS | Errno::PERM => Self::Denied { path, source },
            _ => Self::Open { path, source },
        }
    }

    pub(crate) fn list_error(path: &Path, source: io::Error) -> Self {
        Self::List { path: path.to_owned(), source }
    }

    pub(crate) fn name_error(step: &'static str, path: &Path, errno: Errno) -> Self {
        Self::Name { step, path: path.to_owned(), source: errno.into() }
    }
}
