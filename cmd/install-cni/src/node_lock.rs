//! Lock that admits one agent at a time on a node.
//!
//! Two agents undo each other's work, and one with another capture mode removes the live capture of every pod. An agent therefore
//! takes this lock before it changes anything, and holds it until its process ends for any reason.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

/// Mode of the file: only root can open it, and therefore hold the lock.
const MODE: u32 = 0o600;
/// Mode of its directory, if it has to be created; that of the sockets beside the lock.
const DIRECTORY_MODE: u32 = 0o750;
/// Time that a predecessor has to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Delay between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// The lock, held until it is dropped.
#[derive(Debug)]
pub(crate) struct NodeLock {
    path: PathBuf,
    _file: File,
}

impl NodeLock {
    /// Takes the lock. Waits a few seconds for an agent that is ending.
    ///
    /// # Errors
    /// Another agent runs on this node, or the file cannot be opened: only then the cause is an [`io::Error`].
    pub(crate) fn acquire(path: &Path) -> Result<NodeLock> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(file) = try_lock(path).with_context(|| format!("cannot lock {}", path.display()))? {
                return Ok(NodeLock { path: path.to_owned(), _file: file });
            }
            if Instant::now() >= deadline {
                bail!("another agent runs on this node: it holds {}. Nothing was changed", path.display());
            }
            thread::sleep(PAUSE); // flock(2) has no timeout
        }
    }

    /// Removes the file once nothing of ours is to stay on the node.
    pub(crate) fn remove_file(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

/// Tries to take the lock; `None`: another process holds it.
fn try_lock(path: &Path) -> io::Result<Option<File>> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path.parent().unwrap_or(Path::new("/")))?;
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(MODE).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    // An agent uninstalled between the two calls may have unlinked the file that we opened.
    let (ours, named) = (file.metadata()?, fs::metadata(path));
    let is_named = named.is_ok_and(|named| (named.dev(), named.ino()) == (ours.dev(), ours.ino()));
    Ok(is_named.then_some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holds_it_at_a_time_and_its_end_releases_it() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("agent.lock");
        let first = NodeLock::acquire(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, MODE);
        assert!(try_lock(&path).unwrap().is_none(), "it is held");
        drop(first);
        let second = NodeLock::acquire(&path).unwrap();
        // A file that was opened before its removal is no lock any more.
        second.remove_file().unwrap();
        assert!(!path.exists());
        assert!(try_lock(&path).unwrap().is_some());
    }

    #[test]
    fn a_missing_directory_is_made_and_one_that_cannot_be_is_an_error_with_its_path() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("run/istio-cni/agent.lock");
        let lock = NodeLock::acquire(&path).unwrap();
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, DIRECTORY_MODE);
        let below = path.join("agent.lock"); // below a file
        let error = NodeLock::acquire(&below).unwrap_err();
        assert!(error.is::<io::Error>(), "{error:#}");
        assert_eq!(error.to_string(), format!("cannot lock {}", below.display()));
        drop(lock);
    }
}
