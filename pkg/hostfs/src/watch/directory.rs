//! One watched directory.

use std::ffi::OsString;
use std::fs;
use std::mem;
use std::path::{Path, PathBuf};

use super::inotify::Inotify;
use crate::Fingerprint;

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    state: State,
}

#[derive(Debug)]
enum State {
    New,
    Watched(i32),
    Polled { why: String, seen: Listing },
}

impl Directory {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), state: State::New }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) const fn watch(&self) -> Option<i32> {
        if let State::Watched(watch) = self.state { Some(watch) } else { None }
    }

    /// Why it is only polled, if it is.
    pub(super) fn polled(&self) -> Option<&str> {
        if let State::Polled { why, .. } = &self.state { Some(why) } else { None }
    }

    /// Watches what is at the path now, or has it polled. True if that is not known to be what it was.
    pub(super) fn attach(&mut self, inotify: &Result<Inotify, String>) -> bool {
        let watch = inotify.as_ref().map_err(Clone::clone).and_then(|inotify| inotify.add(&self.path));
        match (watch, &mut self.state) {
            (Err(now), State::Polled { why, .. }) => {
                *why = now;
                false
            }
            (Err(why), State::New | State::Watched(_)) => {
                self.state = State::Polled { why, seen: Listing::of(&self.path) };
                true
            }
            (Ok(watch), state) => match mem::replace(state, State::Watched(watch)) {
                State::New => true,
                State::Watched(before) => before != watch,
                // Compared after the watch is there, so nothing falls between.
                State::Polled { seen, .. } => seen != Listing::of(&self.path),
            },
        }
    }

    /// If it is polled: whether it is not what it was.
    pub(super) fn compare(&mut self) -> bool {
        let State::Polled { seen, .. } = &mut self.state else { return false };
        let now = Listing::of(&self.path);
        now != mem::replace(seen, now.clone())
    }
}

/// What can be told of a directory without events: which one it is, and what of its entries would change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Listing {
    /// With its times, because one made anew may get the same inode number. `None`: missing.
    directory: Option<Fingerprint>,
    /// Sorted by name.
    entries: Vec<(OsString, Fingerprint)>,
}

impl Listing {
    fn of(path: &Path) -> Self {
        let directory = fs::metadata(path).map(|meta| Fingerprint::of(&meta)).ok();
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        // An entry that is gone when it is looked at is gone.
        let entries =
            entries.filter_map(|entry| Some((entry.file_name(), Fingerprint::of(&entry.metadata().ok()?))));
        let mut entries: Vec<_> = entries.collect();
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Self { directory, entries }
    }
}
