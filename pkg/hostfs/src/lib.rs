//! Files on the host, as an installer needs them: read without ever blocking, replaced whole or not at all, watched.
//!
//! A kill -9 or a power loss at any moment leaves either the old or the new complete file at a path, never a part.
//! What an interrupted [`write()`] or [`copy()`] leaves beside it, [`remove_stale`] takes away. Nothing is touched that
//! is already as it should be, so repeating a pass wakes nobody who watches the directory, ourselves included.
//!
//! The plugin that was written is tried out, so [`wait_for_child`] is here, too; iptables tools are waited for by the same.
//!
//! Called by the installer, on one plain thread; everything here is synchronous. It must not know what the files
//! mean, change a file in place, make directories, or log.

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
pub use fingerprint::{FileFingerprint, conclusive_fingerprint, fingerprint, fingerprint_of_file};
pub use read::read;
pub use resolve::resolve;
pub use stale::remove_stale;
pub use watch::{DirectoryWatcher, WakeReason, Waker};
pub use write::{WriteOutcome, write};
