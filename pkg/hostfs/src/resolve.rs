//! Resolution of symlinks within a directory.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

use crate::Error;

const RESOLVE: &str = "resolve";
/// Maximum number of links followed; the kernel's own limit for one path.
const MOST_LINKS: usize = 40;

/// Returns the path of the file `name` of `directory`: itself if it is no symlink or missing, else the link's target.
///
/// Links are followed while every step stays in or below `directory`: one that leaves it leads to different files on the host and
/// in a container that has only this directory mounted.
///
/// # Errors
///
/// As text: a link that leaves the directory, dangles or loops (for the last two [`Error::is_no_file`] is true, as for one to
/// `/dev/null`), and a `name` that is not one plain name. Else the kernel's error.
pub fn resolve(directory: &Path, name: &OsStr) -> Result<PathBuf, Error> {
    let start = directory.join(name);
    let refuse = |cause: &str| Error::with_cause(RESOLVE, &start, cause);
    let no_file = |cause: &str| Error::no_file(RESOLVE, &start, cause);
    let leaves = || refuse("it is a link that leaves the directory");
    if !is_plain(name) {
        return Err(refuse("it is not a plain file name"));
    }
    // The current position, below `directory`; the remaining names, the next one last; the number of links so far.
    let (mut at, mut ahead, mut links) = (PathBuf::new(), vec![name.to_owned()], 0);
    while let Some(next) = ahead.pop() {
        if next == ".." {
            // The parent of `directory` may be another one on the host, even if the path leads back.
            if !at.pop() {
                return Err(leaves());
            }
            continue;
        }
        at.push(next);
        let mut to = match rustix::fs::readlink(directory.join(&at), Vec::new()) {
            Ok(to) => PathBuf::from(OsString::from_vec(to.into_bytes())),
            Err(Errno::INVAL) => continue, // not a link
            Err(Errno::NOENT | Errno::NOTDIR) if links == 0 => return Ok(start),
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(no_file("it is a link to a missing file")),
            Err(cause) => return Err(Error::new(RESOLVE, &start, cause)),
        };
        links += 1;
        if links > MOST_LINKS {
            return Err(no_file("it is a link that goes in circles"));
        }
        // With such a link administrators disable a file.
        if to == Path::new("/dev/null") {
            return Err(no_file("it is a link to /dev/null"));
        }
        // A target is relative to its link's own directory or, if absolute, to `directory`.
        at.pop();
        if to.is_absolute() {
            at.clear();
            to = relative_target(directory, &to).ok_or_else(leaves)?;
        }
        let names = to.components().filter(|part| *part != Component::CurDir);
        ahead.extend(names.rev().map(|part| part.as_os_str().to_owned()));
    }
    Ok(directory.join(at))
}

fn is_plain(name: &OsStr) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
}

fn relative_target(directory: &Path, to: &Path) -> Option<PathBuf> {
    let within = |directory: &Path| to.strip_prefix(directory).map(Path::to_owned).ok();
    within(directory).or_else(|| within(&fs::canonicalize(directory).ok()?))
}
