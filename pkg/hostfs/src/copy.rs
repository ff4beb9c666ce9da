//! Installation of a program.

use std::fs::File;
use std::io::{self, Read, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::Advice;

use crate::Error;
use crate::read::open_regular;
use crate::staged::{CompleteFile, StagedFile};
use crate::stale::remove_leftovers;
use crate::write::{MODE, WriteOutcome, existing_file};

const COPY: &str = "copy";
const INSTALL: &str = "install";
/// Bytes per read: a program may be larger than the memory we want to use.
const CHUNK: usize = 128 * 1024;

/// Copies a program, content and permission bits, and replaces `target` atomically. It may be running there.
///
/// If both already match, nothing is touched. The copy is read back and compared with the source before it is renamed to `target`.
///
/// # Errors
///
/// As [`crate::write()`], with the path of the side that failed. Also, as text: a source that is not a regular file (a symlink to
/// one is followed), and one that changes meanwhile.
pub fn copy(source: &Path, target: &Path) -> Result<WriteOutcome, Error> {
    remove_leftovers(target);
    let (from, meta) = open_regular(COPY, source)?;
    let mode = meta.mode() & MODE;
    if let Some(old) = existing_file(INSTALL, target)?
        && old.mode() & MODE == mode
        && is_copy(source, target)
    {
        return Ok(WriteOutcome::Unchanged);
    }
    let mut staged = StagedFile::new(INSTALL, target)?;
    copy_content(source, &from, target, staged.writer())?;
    let complete = staged.complete(mode)?;
    verify_copy(source, &from, target, &complete)?;
    complete.install()?;
    Ok(WriteOutcome::Replaced)
}

/// Whether `target` has the content of `source`, regardless of permission bits. False if either is missing, no regular file, or
/// cannot be read.
pub fn is_copy(source: &Path, target: &Path) -> bool {
    let (Ok((from, source_meta)), Ok((installed, found))) =
        (open_regular(COPY, source), open_regular(INSTALL, target))
    else {
        return false;
    };
    source_meta.len() == found.len() && is_same_content(&from, &installed).unwrap_or(false)
}

fn copy_content(source: &Path, from: &File, target: &Path, to: &mut File) -> Result<(), Error> {
    let mut chunk = Vec::with_capacity(CHUNK);
    while read_chunk(from, &mut chunk).map_err(Error::at(COPY, source))? {
        to.write_all(&chunk).map_err(Error::at(INSTALL, target))?;
    }
    Ok(())
}

fn verify_copy(
    source: &Path,
    mut from: &File,
    target: &Path,
    complete: &CompleteFile<'_>,
) -> Result<(), Error> {
    // Drops the page cache, so that the disk is read. Without it the comparison still detects a changed source.
    let _ = rustix::fs::fadvise(&complete.reader, 0, None, Advice::DontNeed);
    from.rewind().map_err(Error::at(COPY, source))?;
    if is_same_content(from, &complete.reader).map_err(Error::at(INSTALL, target))? {
        return Ok(());
    }
    let cause = format!("the copy differs from {}; was that changed meanwhile?", source.display());
    Err(Error::with_cause(INSTALL, target, cause))
}

/// Whether the remaining contents are equal.
pub(crate) fn is_same_content(left: impl Read, right: impl Read) -> io::Result<bool> {
    let (mut left, mut right) = (left, right);
    let (mut a, mut b) = (Vec::with_capacity(CHUNK), Vec::with_capacity(CHUNK));
    loop {
        let more = read_chunk(&mut left, &mut a)?;
        if read_chunk(&mut right, &mut b)? != more || a != b {
            return Ok(false);
        }
        if !more {
            return Ok(true);
        }
    }
}

/// Fills `chunk` with the next bytes, up to its capacity; false at the end.
fn read_chunk(from: impl Read, chunk: &mut Vec<u8>) -> io::Result<bool> {
    chunk.clear();
    from.take(CHUNK as u64).read_to_end(chunk)?;
    Ok(!chunk.is_empty())
}
