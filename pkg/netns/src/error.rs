//! What can go wrong with namespaces.

use std::fmt::Display;
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
    /// The kernel refused a step (entering and making namespaces wants CAP_SYS_ADMIN).
    #[error("cannot {step}: {source}")]
    Kernel {
        /// The step.
        step: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// We may not open it.
    #[error("not allowed to open network namespace {}: {source}", .path.display())]
    Denied {
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
    /// The private mounts could not be made; nothing has run.
    #[error("cannot prepare private mounts: {step}: {source}")]
    Sandbox {
        /// Which step of it.
        step: String,
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
            _ => kernel_error(format_args!("open network namespace {}", path.display()), source),
        }
    }
}

pub(crate) fn kernel_error(step: impl Display, source: impl Into<io::Error>) -> Error {
    Error::Kernel { step: step.to_string(), source: source.into() }
}
