//! Atomic replacement of a file's content.

use std::fs::Metadata;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::Error;
use crate::copy::is_same_content;
use crate::fingerprint::read_metadata;
use crate::read::{open_regular, require_regular};
use crate::staged::StagedFile;
use crate::stale::remove_leftovers;

const WRITE: &str = "write";
/// Mask of the mode bits that can be set: permissions, set-user-ID, set-group-ID, sticky.
pub(crate) const MODE: u32 = 0o7777;

/// Effect of a write or a copy on the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// No effect: content and mode already matched.
    Unchanged,
    /// The new file is in place, and survives a power loss.
    Replaced,
}

/// Replaces or creates a file atomically, with this content and these permission bits (regardless of the umask).
///
/// If both already match, nothing is touched. The owner is not compared; a new file is owned by the caller.
///
/// # Errors
///
/// The kernel's error; the old file is then unchanged, and no temporary is left. (If only the last step failed, the sync of the
/// directory, the new file is in place.) As text: anything but a regular file or a symlink at the path. A symlink itself is
/// replaced; to write its target, see [`crate::resolve`].
pub fn write(path: &Path, content: &[u8], mode: u32) -> Result<WriteOutcome, Error> {
    let mode = mode & MODE;
    if let Some(old) = existing_file(WRITE, path)?
        && is_unchanged(path, &old, content, mode)
    {
        return Ok(WriteOutcome::Unchanged);
    }
    remove_leftovers(path);
    let mut staged = StagedFile::new(WRITE, path)?;
    staged.writer().write_all(content).map_err(Error::at(WRITE, path))?;
    staged.complete(mode)?.install()?;
    Ok(WriteOutcome::Replaced)
}

/// Returns the regular file to be replaced, if there is one. A symlink counts as none.
pub(crate) fn existing_file(doing: &'static str, path: &Path) -> Result<Option<Metadata>, Error> {
    let found = read_metadata(doing, path)?.filter(|meta| !meta.is_symlink());
    if let Some(meta) = &found {
        require_regular(doing, path, meta)?;
    }
    Ok(found)
}

/// Whether the file has this content and mode. One that cannot be read does not, and is therefore replaced, which repairs it.
fn is_unchanged(path: &Path, old: &Metadata, content: &[u8], mode: u32) -> bool {
    old.mode() & MODE == mode
        && u64::try_from(content.len()).is_ok_and(|size| size == old.len())
        && open_regular(WRITE, path).is_ok_and(|(file, _)| is_same_content(&file, content).unwrap_or(false))
}
