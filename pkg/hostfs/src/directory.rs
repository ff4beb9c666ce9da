//! Directories: what is in them, what may be done in them, and making changes of them last.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Access, OFlags};
use rustix::io::Errno;

use crate::Error;
use crate::fingerprint::read_metadata;
use crate::read::open_nonblocking;

/// Removes a file, or a symlink itself, for good; false if nothing was there.
///
/// # Errors
///
/// What the kernel says; a directory is not removed.
pub fn remove(path: &Path) -> Result<bool, Error> {
    const REMOVE: &str = "remove";
    match rustix::fs::unlink(path) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(false),
        // A read-only file system answers so before it looks for the name.
        Err(Errno::ROFS) if read_metadata(REMOVE, path)?.is_none() => return Ok(false),
        Err(Errno::ISDIR) => return Err(Error::with_cause(REMOVE, path, "it is a directory")),
        Err(cause) => return Err(Error::new(REMOVE, path, cause)),
    }
    OpenDirectory::open_parent(REMOVE, path)?.sync(REMOVE, path)?;
    Ok(true)
}

/// Renames within a directory, for good. What is at `to` is replaced, unless it is a directory.
///
/// # Errors
///
/// What the kernel says. In words: a directory at `to`, and `to` in another directory.
pub fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    const RENAME: &str = "rename";
    if from.parent() != to.parent() {
        let cause = format!("{} is in another directory", to.display());
        return Err(Error::with_cause(RENAME, from, cause));
    }
    let directory = OpenDirectory::open_parent(RENAME, from)?;
    match rustix::fs::rename(from, to) {
        Ok(()) => directory.sync(RENAME, from),
        Err(Errno::ISDIR) => Err(Error::with_cause(RENAME, from, format!("{} is a directory", to.display()))),
        Err(cause) => Err(Error::new(RENAME, from, cause)),
    }
}

/// Whether files can be put there, as far as can be known without making one: that would wake who watches.
///
/// # Errors
///
/// Why not: it is missing ([`Error::is_missing`]), no directory, on a read-only mount, or not ours to write.
pub fn check_writable(directory: &Path) -> Result<(), Error> {
    const PUT: &str = "put files in";
    let meta = fs::metadata(directory).map_err(Error::at(PUT, directory))?;
    if !meta.is_dir() {
        return Err(Error::with_cause(PUT, directory, "it is not a directory"));
    }
    // This also asks the mount. Reading is for the sync of the directory.
    let required = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::access(directory, required).map_err(Error::at(PUT, directory))
}

/// Whether a directory still has a name on the host. One that was removed there while it is mounted here stays empty for
/// ever: what has been created under its name since is another one, which only a new mount shows. (One that was renamed looks
/// as if nothing had happened.)
///
/// # Errors
///
/// It has no name, or is missing altogether.
pub fn check_linked(directory: &Path) -> Result<(), Error> {
    const USE: &str = "use";
    match fs::metadata(directory).map_err(Error::at(USE, directory))?.nlink() {
        0 => Err(Error::with_cause(
            USE,
            directory,
            "it was removed on the host after it had been mounted here; delete this pod, so that the next one \
             mounts the present directory",
        )),
        _ => Ok(()),
    }
}

/// Names of the entries that are no directories, sorted bytewise. A symlink is none, wherever it leads.
///
/// # Errors
///
/// What the kernel says ([`Error::is_missing`] if there is no such directory).
pub fn list(directory: &Path) -> Result<Vec<OsString>, Error> {
    const LIST: &str = "list";
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(Error::at(LIST, directory))? {
        let entry = entry.map_err(Error::at(LIST, directory))?;
        // No kind: gone since, on a file system whose listings do not tell kinds.
        if entry.file_type().is_ok_and(|kind| !kind.is_dir()) {
            names.push(entry.file_name());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDirectory(File);

impl OpenDirectory {
    /// The one that `path` is in. Opened before anything is changed there, so that this cannot fail in between.
    pub(crate) fn open_parent(doing: &'static str, path: &Path) -> Result<Self, Error> {
        open_nonblocking(parent_directory(path), OFlags::DIRECTORY).map(Self).map_err(Error::at(doing, path))
    }

    /// Makes the names in it last through a power loss.
    pub(crate) fn sync(&self, doing: &'static str, path: &Path) -> Result<(), Error> {
        match rustix::fs::fsync(&self.0) {
            // INVAL: a file system that has no such thing for directories, as some network and FUSE ones.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(cause) => Err(Error::new(doing, path, cause)),
        }
    }
}

/// Where a path's last name is; of a lone name that is the current directory.
pub(crate) fn parent_directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
