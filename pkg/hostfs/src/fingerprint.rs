//! Detection of touched files.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Error;

/// Device, inode, size, mode, mtime and ctime of a file: equal ones mean that it was not touched in between.
///
/// Limited by the file system's clock: before Linux 6.13 it ticks every few milliseconds, and a file written in place twice within
/// one tick, without a change of its size, appears untouched. A replacement (rename) is always detected.
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
    /// Returns the fingerprint of the file with this metadata.
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

    /// Whether the object at `path` has this fingerprint; false if that is unknown. A symlink is not followed.
    pub fn is_current(&self, path: &Path) -> bool {
        matches!(fingerprint(path), Ok(Some(now)) if now == *self)
    }

    /// Whether the file was last touched before the other one, by the file system's clock.
    pub fn is_older_than(&self, other: &Self) -> bool {
        self.ctime < other.ctime
    }

    /// Whether the file system's clock has ticked between the last touch and `now`, when the fingerprint was taken: then any later
    /// touch is detected, also a write in place.
    pub fn is_conclusive(&self, now: SystemTime) -> bool {
        let (seconds, nanoseconds) = self.ctime.max(self.mtime);
        let seconds = u64::try_from(seconds).unwrap_or_default();
        let touched = UNIX_EPOCH + Duration::new(seconds, u32::try_from(nanoseconds).unwrap_or_default());
        now.duration_since(touched).is_ok_and(|since| since > TICK)
    }
}

/// Longer than a clock tick of any file system on the node itself (1 to 10 ms).
const TICK: Duration = Duration::from_millis(100);

/// Returns the fingerprint of the object at `path`, without following a symlink; `None` if there is none.
///
/// # Errors
///
/// The kernel's error, such as a parent directory without search permission.
pub fn fingerprint(path: &Path) -> Result<Option<FileFingerprint>, Error> {
    Ok(read_metadata("stat", path)?.as_ref().map(FileFingerprint::from_metadata))
}

/// Returns the fingerprint of a file, following symlinks, if it is conclusive. Taken before the file is read, an equal one later
/// means that the content is unchanged.
pub fn conclusive_fingerprint(path: &Path) -> Option<FileFingerprint> {
    let now = SystemTime::now();
    let touched = FileFingerprint::from_metadata(&fs::metadata(path).ok()?);
    touched.is_conclusive(now).then_some(touched)
}

/// Returns the metadata of the object at `path`, without following a symlink; `None` if there is none.
pub(crate) fn read_metadata(doing: &'static str, path: &Path) -> Result<Option<Metadata>, Error> {
    match fs::symlink_metadata(path) {
        Ok(meta) => Ok(Some(meta)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(Error::new(doing, path, cause)),
    }
}
