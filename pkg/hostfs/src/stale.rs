//! Temporaries left by interrupted writes.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::Error;
use crate::directory::{OpenDirectory, parent_directory};
use crate::read::open_nonblocking;
use crate::staged::{INFIX, LockOutcome, try_lock_file};

const REMOVE: &str = "remove";

/// Removes the temporaries that interrupted writes of `name` left in `directory`: regular files named `<name>.tmp.` followed by
/// letters or digits, as ours and Istio's are. Returns what was removed; nothing if the directory does not exist.
///
/// A temporary that one of our processes is currently writing is locked, and kept. Istio does not lock: if an install-cni of
/// Istio's runs at the same time, its write can fail, and it retries.
///
/// # Errors
///
/// The kernel's error for the first one that cannot be removed, after all others were.
pub fn remove_stale(directory: &Path, name: &str) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(Error::new("list", directory, cause)),
    };
    let (mut removed, mut failed) = (Vec::new(), None);
    for entry in entries {
        let entry = entry.map_err(Error::at("list", directory))?;
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && is_temporary_for(name, &entry.file_name()) {
            match remove_unlocked(&entry.path()) {
                Ok(true) => removed.push(entry.path()),
                Ok(false) => {}
                Err(cause) => failed = failed.or(Some(cause)),
            }
        }
    }
    if let Some(first) = removed.first() {
        OpenDirectory::open_parent(REMOVE, first)?.sync(REMOVE, first)?;
    }
    failed.map_or(Ok(removed), Err)
}

/// Removes the temporaries that interrupted writes of this file left. A failure is ignored: they do no harm.
pub(crate) fn remove_leftovers(file: &Path) {
    if let Some(name) = file.file_name().and_then(OsStr::to_str) {
        drop(remove_stale(parent_directory(file), name));
    }
}

fn is_temporary_for(name: &str, found: &OsStr) -> bool {
    let rest = found.as_bytes().strip_prefix(name.as_bytes());
    let unique = rest.and_then(|rest| rest.strip_prefix(INFIX.as_bytes()));
    unique.is_some_and(|unique| !unique.is_empty() && unique.iter().all(u8::is_ascii_alphanumeric))
}

/// Removes a file unless it is locked. The lock is held until the file is removed, so that a writer that starts just now notices.
fn remove_unlocked(path: &Path) -> Result<bool, Error> {
    let file = match open_nonblocking(path, OFlags::NOFOLLOW) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(cause) => return Err(Error::new(REMOVE, path, cause)),
    };
    if try_lock_file(&file) != LockOutcome::Held {
        return Ok(false);
    }
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(Error::new(REMOVE, path, cause)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staged::StagedFile;

    #[test]
    fn only_the_form_of_temporaries_is_taken() {
        let is = |found: &str| is_temporary_for("a.conflist", found.as_ref());
        assert!(is("a.conflist.tmp.1234567890") && is("a.conflist.tmp.aZ09bcde"));
        for other in
            ["a.conflist", "a.conflist.tmp.", "a.conflist.tmp", "b.conflist.tmp.1", "a.conflist.tmp.1.bak"]
        {
            assert!(!is(other), "{other}");
        }
    }

    #[test]
    fn one_that_is_being_written_stays_until_its_writer_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("file");
        let names = || crate::list(directory.path()).unwrap();
        let staged = StagedFile::new("write", &target).unwrap();
        let made = names();
        assert_eq!(remove_stale(directory.path(), "file").unwrap(), Vec::<PathBuf>::new());
        let complete = staged.complete(0o644).unwrap();
        assert_eq!(remove_stale(directory.path(), "file").unwrap(), Vec::<PathBuf>::new());
        assert_eq!(names(), made, "the temporary of a living writer was removed");
        drop(complete);
        assert_eq!(names(), Vec::<std::ffi::OsString>::new(), "given up, it is removed");
    }

    #[test]
    fn a_complete_temporary_has_no_writer_left() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("file");
        let complete = StagedFile::new("write", &target).unwrap().complete(0o700).unwrap();
        let open = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
            let entry = entry.unwrap();
            let leads_to = fs::read_link(entry.path()).ok()?;
            leads_to.starts_with(directory.path()).then(|| {
                fs::read_to_string(format!("/proc/self/fdinfo/{}", entry.file_name().to_str().unwrap()))
                    .unwrap()
            })
        });
        for info in open {
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:\t")).unwrap();
            assert_eq!(u32::from_str_radix(flags, 8).unwrap() & 3, 0, "open for writing: {info}");
        }
        drop(complete);
    }
}
