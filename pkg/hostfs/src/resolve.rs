//! Resolution of symlinks within a directory.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
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
    if !is_plain(name) {
        return Err(refuse("it is not a plain file name"));
    }
    let mut walk = PathWalk { directory, at: PathBuf::new(), ahead: vec![name.to_owned()], links: 0 };
    while let Some(next) = walk.ahead.pop() {
        match walk.enter_name(next) {
            Ok(()) => {}
            Err(WalkStop::Missing) if walk.links == 0 => return Ok(start),
            Err(WalkStop::Missing) => return Err(no_file("it is a link to a missing file")),
            Err(WalkStop::Masked) => return Err(no_file("it is a link to /dev/null")),
            Err(WalkStop::Leaves) => return Err(refuse("it is a link that leaves the directory")),
            Err(WalkStop::Circles) => return Err(no_file("it is a link that goes in circles")),
            Err(WalkStop::Kernel(cause)) => return Err(Error::new(RESOLVE, &start, cause)),
        }
    }
    Ok(directory.join(walk.at))
}

fn is_plain(name: &OsStr) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name)
}

/// State of the resolution.
struct PathWalk<'a> {
    directory: &'a Path,
    /// Current position, below `directory`.
    at: PathBuf,
    /// Remaining names, the next one last.
    ahead: Vec<OsString>,
    links: usize,
}

enum WalkStop {
    Missing,
    /// A link to `/dev/null`, with which administrators disable a file.
    Masked,
    Leaves,
    Circles,
    Kernel(Errno),
}

impl PathWalk<'_> {
    fn enter_name(&mut self, next: OsString) -> Result<(), WalkStop> {
        if next == ".." {
            // The parent of `directory` may be another one on the host, even if the path leads back.
            return self.at.pop().then_some(()).ok_or(WalkStop::Leaves);
        }
        self.at.push(next);
        match rustix::fs::readlink(self.directory.join(&self.at), Vec::new()) {
            Ok(to) => self.follow_link(Path::new(OsStr::from_bytes(to.as_bytes()))),
            Err(Errno::INVAL) => Ok(()), // not a link
            Err(Errno::NOENT | Errno::NOTDIR) => Err(WalkStop::Missing),
            Err(cause) => Err(WalkStop::Kernel(cause)),
        }
    }

    /// Continues at a link's target, which is relative to its own directory or, if absolute, to `directory`.
    fn follow_link(&mut self, to: &Path) -> Result<(), WalkStop> {
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(WalkStop::Circles);
        }
        if to == Path::new("/dev/null") {
            return Err(WalkStop::Masked);
        }
        self.at.pop();
        let to = if to.is_absolute() {
            self.at.clear();
            self.relative_target(to).ok_or(WalkStop::Leaves)?
        } else {
            to.to_owned()
        };
        let names = to.components().filter(|part| *part != Component::CurDir);
        self.ahead.extend(names.rev().map(|part| part.as_os_str().to_owned()));
        Ok(())
    }

    fn relative_target(&self, to: &Path) -> Option<PathBuf> {
        let within = |directory: &Path| to.strip_prefix(directory).map(Path::to_owned).ok();
        within(self.directory).or_else(|| within(&fs::canonicalize(self.directory).ok()?))
    }
}
