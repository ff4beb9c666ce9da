//! Reading of regular files.

use std::fs::{self, File, FileType, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::Error;

const READ: &str = "read";

/// Reads a regular file of at most `limit` bytes; a symlink to one is followed. Never blocks.
///
/// # Errors
///
/// The kernel's error ([`Error::is_missing`] if there is no file). As text: an object that is not a regular file, and a file of
/// more than `limit` bytes, even if it only grows while it is read.
pub fn read(path: &Path, limit: usize) -> Result<Vec<u8>, Error> {
    let (file, meta) = open_regular(READ, path)?;
    let too_large = || Error::with_cause(READ, path, format!("it is larger than {limit} bytes"));
    let size = usize::try_from(meta.len()).ok().filter(|size| *size <= limit).ok_or_else(too_large)?;
    let mut content = Vec::with_capacity(size);
    // One byte more than allowed detects a file that has grown since.
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    file.take(most).read_to_end(&mut content).map_err(Error::at(READ, path))?;
    if content.len() > limit { Err(too_large()) } else { Ok(content) }
}

/// Opens a regular file for reading, and returns it with its metadata after opening. Anything else is an error as text.
pub(crate) fn open_regular(doing: &'static str, path: &Path) -> Result<(File, Metadata), Error> {
    // Checked before opening, because opening alone can have effects: on a device, or on the writer of a pipe.
    require_regular(doing, path, &fs::metadata(path).map_err(Error::at(doing, path))?)?;
    let file = open_nonblocking(path, OFlags::empty()).map_err(Error::at(doing, path))?;
    let meta = file.metadata().map_err(Error::at(doing, path))?;
    require_regular(doing, path, &meta)?;
    Ok((file, meta))
}

/// Opens for reading. An object created since the check must neither block us nor become our terminal: NONBLOCK and NOCTTY.
pub(crate) fn open_nonblocking(path: &Path, more: OFlags) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | more;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

pub(crate) fn require_regular(doing: &'static str, path: &Path, meta: &Metadata) -> Result<(), Error> {
    if meta.is_file() {
        return Ok(());
    }
    Err(Error::no_file(
        doing,
        path,
        format!("it is {}, not a regular file", file_kind_name(meta.file_type())),
    ))
}

fn file_kind_name(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a directory",
        kind if kind.is_symlink() => "a symbolic link",
        kind if kind.is_fifo() => "a named pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}
