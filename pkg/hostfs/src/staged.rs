//! Staged files: a temporary is written beside its target, and replaces it when complete.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tempfile::TempPath;

use crate::Error;
use crate::directory::{OpenDirectory, check_linked, parent_directory};
use crate::read::open_nonblocking;

/// Separator between the target's name and the unique suffix of a temporary. Istio's have the same form.
pub(crate) const INFIX: &str = ".tmp.";
/// Attempts to create a temporary while another process that cleans up removes each as stale. On a busy machine that process may
/// win half of the time.
const TRIES: usize = 64;

/// A temporary being written. Removed when dropped.
#[derive(Debug)]
pub(crate) struct StagedFile<'a> {
    doing: &'static str,
    target: &'a Path,
    directory: OpenDirectory,
    temporary: TempPath,
    writer: File,
    /// Holds the lock that marks the temporary as in use for [`crate::remove_stale`]. Not the writer: that one must be closed
    /// before the rename, else a program could not be executed ("text file busy") until it is.
    reader: File,
}

impl<'a> StagedFile<'a> {
    /// Creates the temporary and locks it.
    pub(crate) fn new(doing: &'static str, target: &'a Path) -> Result<Self, Error> {
        let Some(name) = target.file_name() else {
            return Err(Error::with_cause(doing, target, "it has no file name"));
        };
        let directory = OpenDirectory::open_parent(doing, target)?;
        let mut prefix = OsString::from(name);
        prefix.push(INFIX);
        for _ in 0..TRIES {
            let (writer, temporary) = match create_temporary(parent_directory(target), &prefix) {
                Ok(created) => created,
                Err(cause) => {
                    check_linked(parent_directory(target))?;
                    return Err(Error::new(doing, target, cause));
                }
            };
            match open_nonblocking(&temporary, OFlags::NOFOLLOW).and_then(lock_new_file) {
                Ok(reader) => return Ok(Self { doing, target, directory, temporary, writer, reader }),
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(Error::new(doing, target, cause)),
            }
        }
        Err(Error::with_cause(doing, target, "another process removes every temporary file at once"))
    }

    /// Returns the writer of the content.
    pub(crate) const fn writer(&mut self) -> &mut File {
        &mut self.writer
    }

    /// Sets the mode, regardless of the umask, and syncs the file.
    pub(crate) fn complete(self, mode: u32) -> Result<CompleteFile<'a>, Error> {
        let Self { doing, target, directory, temporary, writer, reader } = self;
        rustix::fs::fchmod(&writer, Mode::from_raw_mode(mode)).map_err(Error::at(doing, target))?;
        writer.sync_all().map_err(Error::at(doing, target))?;
        Ok(CompleteFile { doing, target, directory, temporary, reader })
    }
}

/// A temporary with its content and mode synced to disk. Removed when dropped.
#[derive(Debug)]
pub(crate) struct CompleteFile<'a> {
    doing: &'static str,
    target: &'a Path,
    directory: OpenDirectory,
    temporary: TempPath,
    /// Reader at the beginning of the content.
    pub(crate) reader: File,
}

impl CompleteFile<'_> {
    /// Renames the temporary to its target. If only the last step fails, the sync of the directory, the target is already replaced.
    pub(crate) fn install(self) -> Result<(), Error> {
        let Self { doing, target, directory, temporary, reader: _locked } = self;
        temporary.persist(target).map_err(|failed| Error::new(doing, target, failed.error))?;
        directory.sync(doing, target)
    }
}

fn create_temporary(directory: &Path, prefix: &OsString) -> io::Result<(File, TempPath)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    // A custom opener keeps the errno.
    let made = tempfile::Builder::new()
        .prefix(prefix)
        .rand_bytes(8)
        .make_in(directory, |path| Ok(File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?)));
    Ok(made?.into_parts())
}

/// Takes the lock. A concurrent [`crate::remove_stale`] may have run between creation and this call, and holds the lock while it
/// removes: then either the lock is taken or the name was removed.
fn lock_new_file(file: File) -> io::Result<File> {
    if try_lock_file(&file) == LockOutcome::Taken || file.metadata()?.nlink() == 0 {
        return Err(Errno::NOENT.into());
    }
    Ok(file)
}

/// Result of an attempt to lock a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockOutcome {
    /// Held by us, until the file is closed.
    Held,
    /// Held by another process.
    Taken,
    /// The file system has no locks, or no exclusive ones on read-only descriptors.
    Unknown,
}

/// Tries to take an exclusive lock on a file, without waiting.
pub(crate) fn try_lock_file(file: &File) -> LockOutcome {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => LockOutcome::Held,
        Err(Errno::WOULDBLOCK) => LockOutcome::Taken,
        Err(_) => LockOutcome::Unknown,
    }
}
