//! A watched directory.

use std::ffi::OsString;
use std::fs;
use std::mem;
use std::path::{Path, PathBuf};

use super::inotify::Inotify;
use crate::FileFingerprint;

#[derive(Debug)]
pub(super) struct WatchedDirectory {
    pub(super) path: PathBuf,
    state: WatchState,
}

#[derive(Debug)]
enum WatchState {
    New,
    Watched(i32),
    Polled(DirectoryListing),
}

impl WatchedDirectory {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), state: WatchState::New }
    }

    pub(super) const fn watch_descriptor(&self) -> Option<i32> {
        if let WatchState::Watched(watch) = self.state { Some(watch) } else { None }
    }

    /// Whether the directory is only polled.
    pub(super) const fn is_polled(&self) -> bool {
        matches!(self.state, WatchState::Polled(_))
    }

    /// Watches the directory that is at the path now, or falls back to polling. Returns true unless it is known to be unchanged.
    pub(super) fn attach_watch(&mut self, inotify: Option<&Inotify>) -> bool {
        let watch = inotify.and_then(|inotify| inotify.add_watch(&self.path));
        match (watch, &mut self.state) {
            (None, WatchState::Polled(_)) => false,
            (None, state) => {
                *state = WatchState::Polled(DirectoryListing::read_directory(&self.path));
                true
            }
            (Some(watch), state) => match mem::replace(state, WatchState::Watched(watch)) {
                WatchState::New => true,
                WatchState::Watched(before) => before != watch,
                // Compared after the watch was added, so that no change is missed.
                WatchState::Polled(listing) => listing != DirectoryListing::read_directory(&self.path),
            },
        }
    }

    /// Whether a polled directory has changed since the last comparison.
    pub(super) fn compare_listing(&mut self) -> bool {
        let WatchState::Polled(listing) = &mut self.state else { return false };
        let now = DirectoryListing::read_directory(&self.path);
        now != mem::replace(listing, now.clone())
    }
}

/// State of a directory for polling: its own fingerprint, and those of its entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DirectoryListing {
    /// Includes the times, because a recreated directory may get the same inode number. `None`: missing.
    directory: Option<FileFingerprint>,
    /// Sorted by name.
    entries: Vec<(OsString, FileFingerprint)>,
}

impl DirectoryListing {
    fn read_directory(path: &Path) -> Self {
        let directory = fs::metadata(path).map(|meta| FileFingerprint::from_metadata(&meta)).ok();
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        // An entry removed since the listing is omitted.
        let entries = entries.filter_map(|entry| {
            Some((entry.file_name(), FileFingerprint::from_metadata(&entry.metadata().ok()?)))
        });
        let mut entries: Vec<_> = entries.collect();
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Self { directory, entries }
    }
}
