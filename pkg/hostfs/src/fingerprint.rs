//! Whether a file was touched.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Error;

/// Device, inode, size, mode, mtime and ctime of a file: equal ones mean that it was not touched in between.
///
/// As far as the file system's clock tells: before Linux 6.13 it ticks every few milliseconds, and a file written in
/// place twice within one tick, without a change of its size, looks untouched. Replacing (rename) is always seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFingerprint {
    dev: u64,
    ino: u64,
    size: u64,
    mode: u32,
    /// Seconds, nanoseconds.
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl FileFingerprint {
    /// The fingerprint of the file with this metadata.
    pub fn from_metadata(meta: &Metadata) -> Self {
        Self {
            dev: meta.dev(),
            ino: meta.ino(),
            size: meta.size(),
            mode: meta.mode(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Whether it was taken so long after the last touch that the file system's clock has ticked since: then any later
    /// touch shows, also of one who writes in place. `now`: when it was taken.
    pub fn is_conclusive(&self, now: SystemTime) -> bool {
        let (seconds, nanoseconds) = self.ctime.max(self.mtime);
        let seconds = u64::try_from(seconds).unwrap_or_default();
        let touched = UNIX_EPOCH + Duration::new(seconds, u32::try_from(nanoseconds).unwrap_or_default());
        now.duration_since(touched).is_ok_and(|since| since > TICK)
    }
}

/// Longer than a tick of any file system's clock on the node itself (1 to 10 ms).
const TICK: Duration = Duration::from_millis(100);

/// The fingerprint of what is at `path`, of a symlink itself; `None` if nothing is.
///
/// # Errors
///
/// What the kernel says, such as that a directory on the way may not be searched.
pub fn fingerprint(path: &Path) -> Result<Option<FileFingerprint>, Error> {
    Ok(read_metadata("stat", path)?.as_ref().map(FileFingerprint::from_metadata))
}

/// The fingerprint of a file that may be reached by symlinks; `None` if there is none.
///
/// # Errors
///
/// What the kernel says.
pub fn fingerprint_of_file(path: &Path) -> Result<Option<FileFingerprint>, Error> {
    match fs::metadata(path) {
        Ok(meta) => Ok(Some(FileFingerprint::from_metadata(&meta))),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(Error::new("stat", path, cause)),
    }
}

/// The fingerprint of such a file, if there is one and any later touch would show in it. Taken before the file is read,
/// an equal one later means that it says the same.
pub fn conclusive_fingerprint(path: &Path) -> Option<FileFingerprint> {
    let now = SystemTime::now();
    fingerprint_of_file(path).ok().flatten().filter(|touched| touched.is_conclusive(now))
}

/// Returns the metadata of the object at `path`, without following a symlink; `None` if there is none.
pub(crate) fn read_metadata(doing: &'static str, path: &Path) -> Result<Option<Metadata>, Error> {
    match fs::symlink_metadata(path) {
        Ok(meta) => Ok(Some(meta)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(Error::new(doing, path, cause)),
    }
}
