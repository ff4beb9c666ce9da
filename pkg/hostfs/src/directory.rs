//! Directories: listing, access checks, and durable changes of their entries.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Access, OFlags};
use rustix::io::Errno;

use crate::Error;
use crate::fingerprint::read_metadata;
use crate::read::open_nonblocking;
use crate::stale::remove_leftovers;

/// Removes a file, or a symlink itself, durably, and what interrupted writes of it left; false if there was no such file.
///
/// # Errors
///
/// The kernel's error; a directory is not removed.
pub fn remove(path: &Path) -> Result<bool, Error> {
    const REMOVE: &str = "remove";
    remove_leftovers(path);
    match rustix::fs::unlink(path) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(false),
        // A read-only file system returns this before it looks up the name.
        Err(Errno::ROFS) if read_metadata(REMOVE, path)?.is_none() => return Ok(false),
        Err(Errno::ISDIR) => return Err(Error::with_cause(REMOVE, path, "it is a directory")),
        Err(cause) => return Err(Error::new(REMOVE, path, cause)),
    }
    OpenDirectory::open_parent(REMOVE, path)?.sync(REMOVE, path)?;
    Ok(true)
}

/// Renames within a directory, durably. The object at `to` is replaced, unless it is a directory.
///
/// # Errors
///
/// The kernel's error. As text: a directory at `to`, and `to` in another directory.
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

/// Checks whether files can be created in a directory, as far as possible without creating one, which would wake watchers.
///
/// # Errors
///
/// The directory is missing ([`Error::is_missing`]), no directory, on a read-only mount, or not writable for us.
pub fn check_writable(directory: &Path) -> Result<(), Error> {
    const PUT: &str = "put files in";
    let meta = fs::metadata(directory).map_err(Error::at(PUT, directory))?;
    if !meta.is_dir() {
        return Err(Error::with_cause(PUT, directory, "it is not a directory"));
    }
    // Includes a check of the mount. Read permission is needed to sync the directory.
    let required = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    rustix::fs::access(directory, required).map_err(Error::at(PUT, directory))
}

/// Checks whether a directory still has a name on the host. One that was removed there while it is mounted here stays empty
/// forever: a directory created under its name since is another one, which only a new mount shows. (A rename is not detected.)
///
/// # Errors
///
/// The directory has no name, or is missing altogether.
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

/// Lists the names of all entries but directories, sorted bytewise. A symlink is listed, whatever its target.
///
/// # Errors
///
/// The kernel's error ([`Error::is_missing`] if the directory does not exist).
pub fn list(directory: &Path) -> Result<Vec<OsString>, Error> {
    const LIST: &str = "list";
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(Error::at(LIST, directory))? {
        let entry = entry.map_err(Error::at(LIST, directory))?;
        // No file type: removed since, on a file system whose listings lack types.
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
    /// Opens the parent of `path`. Done before any change there, so that it cannot fail halfway.
    pub(crate) fn open_parent(doing: &'static str, path: &Path) -> Result<Self, Error> {
        open_nonblocking(parent_directory(path), OFlags::DIRECTORY).map(Self).map_err(Error::at(doing, path))
    }

    /// Makes changes of its entries survive a power loss.
    pub(crate) fn sync(&self, doing: &'static str, path: &Path) -> Result<(), Error> {
        match rustix::fs::fsync(&self.0) {
            // INVAL: the file system cannot sync directories, as some network and FUSE ones.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(cause) => Err(Error::new(doing, path, cause)),
        }
    }
}

/// Returns the parent of a path; of a lone name that is the current directory.
pub(crate) fn parent_directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
