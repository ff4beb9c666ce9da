//! A file in the making: a temporary beside its target, which it replaces when it is complete.

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

/// Between the target's name and what makes a temporary unique. Istio's have the same form.
pub(crate) const INFIX: &str = ".tmp.";
/// How often a new temporary is tried while somebody who cleans up takes each for a left-over. On a busy machine that one
/// may win half of the times.
const TRIES: usize = 64;

/// A temporary being written. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct StagedFile<'a> {
    doing: &'static str,
    target: &'a Path,
    directory: OpenDirectory,
    temporary: TempPath,
    writer: File,
    /// Holds the lock that says "alive" to [`crate::remove_stale`]. Not the writer: that one must be closed before
    /// the rename, else a program could not be executed ("text file busy") until it is.
    reader: File,
}

impl<'a> StagedFile<'a> {
    /// Makes the temporary and locks it.
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
                Err(cause) if is_lost(&cause) => {}
                Err(cause) => return Err(Error::new(doing, target, cause)),
            }
        }
        Err(Error::with_cause(doing, target, "another process removes every temporary file at once"))
    }

    /// Where the content goes, from its beginning to its end.
    pub(crate) const fn writer(&mut self) -> &mut File {
        &mut self.writer
    }

    /// Gives it its mode, whatever the umask, and makes it last.
    pub(crate) fn complete(self, mode: u32) -> Result<CompleteFile<'a>, Error> {
        let Self { doing, target, directory, temporary, writer, reader } = self;
        rustix::fs::fchmod(&writer, Mode::from_raw_mode(mode)).map_err(Error::at(doing, target))?;
        writer.sync_all().map_err(Error::at(doing, target))?;
        Ok(CompleteFile { doing, target, directory, temporary, reader })
    }
}

/// A temporary with all its content and its mode, on disk. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct CompleteFile<'a> {
    doing: &'static str,
    target: &'a Path,
    directory: OpenDirectory,
    temporary: TempPath,
    /// For reading it back, from its beginning.
    pub(crate) reader: File,
}

impl CompleteFile<'_> {
    /// Puts it in its place. Should only the last step fail, the sync of the directory, it is there already.
    pub(crate) fn install(self) -> Result<(), Error> {
        let Self { doing, target, directory, temporary, reader: _locked } = self;
        temporary.persist(target).map_err(|failed| Error::new(doing, target, failed.error))?;
        directory.sync(doing, target)
    }
}

fn create_temporary(directory: &Path, prefix: &OsString) -> io::Result<(File, TempPath)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    // With an opener of our own the kernel's number of an error is kept.
    let made = tempfile::Builder::new()
        .prefix(prefix)
        .rand_bytes(8)
        .make_in(directory, |path| Ok(File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?)));
    Ok(made?.into_parts())
}

/// Takes the lock. Who cleans up may have come between making the file and this, and holds the lock while it
/// removes: then the lock is taken or the name is gone.
fn lock_new_file(file: File) -> io::Result<File> {
    if try_lock_file(&file) == LockOutcome::Taken || file.metadata()?.nlink() == 0 {
        return Err(Errno::NOENT.into());
    }
    Ok(file)
}

fn is_lost(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::NotFound
}

/// Result of an attempt to lock a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockOutcome {
    /// Ours, until the file is closed.
    Held,
    /// Somebody else's.
    Taken,
    /// The file system has no locks, or no exclusive ones for readers.
    Unknown,
}

/// Tries to lock a file against everybody else, without waiting.
pub(crate) fn try_lock_file(file: &File) -> LockOutcome {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => LockOutcome::Held,
        Err(Errno::WOULDBLOCK) => LockOutcome::Taken,
        Err(_) => LockOutcome::Unknown,
    }
}
