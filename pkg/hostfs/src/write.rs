//! Replacing a file with given content.

use std::fs::Metadata;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::Error;
use crate::copy::is_same_content;
use crate::fingerprint::read_metadata;
use crate::read::{open_regular, require_regular};
use crate::staged::StagedFile;

const WRITE: &str = "write";
/// The bits of a mode that can be set: permissions, set-user-ID, set-group-ID, sticky.
pub(crate) const MODE: u32 = 0o7777;

/// Effect of a write or a copy on the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// Nothing: content and mode were there already.
    Unchanged,
    /// The new file is in place, and stays there through a power loss.
    Replaced,
}

/// Replaces a file whole, or makes it, with this content and these permission bits (umask does not matter).
///
/// If both are there already, nothing is touched. Who owns the file is not looked at; a new one is the caller's.
///
/// # Errors
///
/// What the kernel says; the old file is then as it was, and nothing is left beside it. (If only the last step failed,
/// the sync of the directory, the new file is in place.) In words: anything but a regular file or a symlink in its place. A
/// symlink itself is replaced; to write the file that it leads to, see [`crate::resolve`].
pub fn write(path: &Path, content: &[u8], mode: u32) -> Result<WriteOutcome, Error> {
    let mode = mode & MODE;
    if let Some(old) = existing_file(WRITE, path)?
        && is_unchanged(path, &old, content, mode)
    {
        return Ok(WriteOutcome::Unchanged);
    }
    let mut staged = StagedFile::new(WRITE, path)?;
    staged.writer().write_all(content).map_err(Error::at(WRITE, path))?;
    staged.complete(mode)?.install()?;
    Ok(WriteOutcome::Replaced)
}

/// The regular file that is to be replaced, if there is one. A symlink is replaced like nothing.
pub(crate) fn existing_file(doing: &'static str, path: &Path) -> Result<Option<Metadata>, Error> {
    let found = read_metadata(doing, path)?.filter(|meta| !meta.is_symlink());
    if let Some(meta) = &found {
        require_regular(doing, path, meta)?;
    }
    Ok(found)
}

/// One that cannot be read does not hold it: it is replaced, which is what helps.
fn is_unchanged(path: &Path, old: &Metadata, content: &[u8], mode: u32) -> bool {
    old.mode() & MODE == mode
        && u64::try_from(content.len()).is_ok_and(|size| size == old.len())
        && open_regular(WRITE, path).is_ok_and(|(file, _)| is_same_content(&file, content).unwrap_or(false))
}
