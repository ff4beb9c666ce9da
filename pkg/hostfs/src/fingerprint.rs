//! Whether a file was touched.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::Error;

/// Device, inode, size, mode, mtime and ctime of a file: equal ones mean that it was not touched in between.
///
/// As far as the file system's clock tells: before Linux 6.13 it ticks every few milliseconds, and a file written in
/// place twice within one tick, without a change of its size, looks untouched. Replacing (rename) is always seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    dev: u64,
    ino: u64,
    size: u64,
    mode: u32,
    /// Seconds, nanoseconds.
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl Fingerprint {
    pub(crate) fn of(meta: &Metadata) -> Self {
        Self {
            dev: meta.dev(),
            ino: meta.ino(),
            size: meta.size(),
            mode: meta.mode(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// The fingerprint of what is at `path`, of a symlink itself; `None` if nothing is.
///
/// # Errors
///
/// What the kernel says, such as that a directory on the way may not be searched.
pub fn fingerprint(path: &Path) -> Result<Option<Fingerprint>, Error> {
    Ok(look("look at", path)?.as_ref().map(Fingerprint::of))
}

/// What is at `path`, links not followed; `None` if nothing is.
pub(crate) fn look(doing: &'static str, path: &Path) -> Result<Option<Metadata>, Error> {
    match fs::symlink_metadata(path) {
        Ok(meta) => Ok(Some(meta)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(Error::new(doing, path, cause)),
    }
}
