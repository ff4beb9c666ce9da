//! Errors of opening, entering and creating namespaces.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// A failed step, its object, and the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing exists at the path: for a pod, its sandbox was removed.
    #[error("no network namespace at {}", .path.display())]
    Missing {
        /// The path that was tried.
        path: PathBuf,
    },
    /// The kernel refused a step (entering and creating namespaces requires CAP_SYS_ADMIN).
    #[error("cannot {step}: {source}")]
    Kernel {
        /// The step.
        step: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Permission to open the namespace was denied.
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
        /// The step of preparing the mounts.
        step: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn open_error(path: &Path, errno: Errno) -> Self {
        let (path, source) = (path.to_owned(), errno.into());
        match errno {
            // ESRCH: a file of /proc whose process ended meanwhile
            // LOOP: a dangling symbolic link
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
