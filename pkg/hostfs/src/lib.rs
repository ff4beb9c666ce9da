//! File operations of an installer on the host: reads that never block, atomic replacement, watches.
//!
//! A kill -9 or a power loss at any moment leaves either the old or the new complete file at a path, never a part. A temporary that
//! an interrupted [`write()`] or [`copy()`] leaves beside it is removed by the next one, by [`remove()`] or by [`remove_stale`].
//! Files that already match are not touched, so repeating a pass wakes no watcher of the directory, ourselves included.
//!
//! [`wait_for_child`] is here, too, because the installed plugin is executed once; iptables tools are waited for with it as well.
//!
//! Called by the installer, on one plain thread; everything here is synchronous. The crate must not know what the files mean,
//! change a file in place, create directories, or log.

mod child;
mod copy;
mod directory;
mod error;
mod fingerprint;
mod read;
mod resolve;
mod staged;
mod stale;
mod watch;
mod write;

pub use child::wait_for_child;
pub use copy::{copy, is_copy};
pub use directory::{check_linked, check_writable, list, remove, rename};
pub use error::Error;
pub use fingerprint::{FileFingerprint, conclusive_fingerprint, fingerprint};
pub use read::read;
pub use resolve::resolve;
pub use stale::remove_stale;
pub use watch::{DirectoryWatcher, WakeReason, Waker};
pub use write::{WriteOutcome, write};
