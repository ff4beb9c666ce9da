//! Watcher of directories for one thread.

mod directory;
mod inotify;
#[cfg(test)]
mod tests;
mod waker;

use std::mem;
use std::ops::BitOrAssign;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::Error;
use directory::WatchedDirectory;
use inotify::Inotify;
pub use waker::Waker;

/// A burst of changes ends after this time without any,
const QUIET: Duration = Duration::from_millis(20);
/// or after this time in all.
const BURST: Duration = Duration::from_millis(200);
/// Interval at which directories without events are compared with their last state.
const POLL: Duration = Duration::from_millis(250);
/// Interval at which inotify is retried after it failed.
const RETRY: Duration = Duration::from_secs(60);

/// Reasons why a wait ended; both can be true. Neither: the timeout passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeReason {
    /// Something in a watched directory may have changed.
    pub changed: bool,
    /// Another thread called [`Waker::wake`].
    pub woken: bool,
}

impl BitOrAssign for WakeReason {
    fn bitor_assign(&mut self, other: Self) {
        self.changed |= other.changed;
        self.woken |= other.woken;
    }
}

/// Reports that something changed in directories; not what, nor below their subdirectories.
///
/// The caller's own changes wake it too, once. Pending events cannot be discarded, because that would also discard changes by other
/// components since the caller's observation. The cost is small: [`crate::write()`] and its like touch nothing that already
/// matches, so the pass that follows changes nothing and the next wait is quiet.
#[derive(Debug)]
pub struct DirectoryWatcher {
    waker: Waker,
    /// `None`: inotify is unavailable.
    inotify: Option<Inotify>,
    directories: Vec<WatchedDirectory>,
    /// A change that no wait has reported yet.
    changed: bool,
    /// Watches may have ended, so all must be renewed.
    unsure: bool,
    next_poll: Instant,
    next_retry: Instant,
    /// [`QUIET`] and [`BURST`]; shorter in tests.
    settling: (Duration, Duration),
}

impl DirectoryWatcher {
    /// Returns a watcher without directories. Without inotify it polls, see [`DirectoryWatcher::count_polled`].
    ///
    /// # Errors
    ///
    /// Only if the eventfd of its waker cannot be created.
    pub fn new() -> Result<Self, Error> {
        Self::with_inotify(Inotify::new())
    }

    fn with_inotify(inotify: Option<Inotify>) -> Result<Self, Error> {
        let now = Instant::now();
        let (next_poll, next_retry) = (now + POLL, now + RETRY);
        let (waker, directories, settling) = (Waker::new()?, Vec::new(), (QUIET, BURST));
        Ok(Self {
            waker,
            inotify,
            directories,
            changed: false,
            unsure: false,
            next_poll,
            next_retry,
            settling,
        })
    }

    /// Returns a handle that ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Sets the directories to watch, to be called before every wait: it detects one recreated at the same path. Costs one system
    /// call for each unchanged one.
    ///
    /// A directory that is new in the list, or another one than before, counts as a change: earlier events in it are unknown. A
    /// missing one is waited for.
    pub fn set_directories(&mut self, directories: &[PathBuf]) {
        let before = self.current_watches();
        let mut old = mem::take(&mut self.directories);
        for path in directories {
            if self.directories.iter().any(|known| known.path == *path) {
                continue;
            }
            let known = old.iter().position(|known| known.path == *path);
            self.directories
                .push(known.map_or_else(|| WatchedDirectory::new(path), |at| old.swap_remove(at)));
        }
        self.changed |= self.attach_watches(&before);
    }

    /// Waits for a change, a wake-up or the timeout. A burst of changes counts as one: the wait continues until 20 ms were quiet,
    /// at most 200 ms, also beyond the timeout; a wake-up ends that too. Changes since the last wait are included.
    ///
    /// # Errors
    ///
    /// The kernel cannot poll, for lack of memory.
    pub fn wait_for_change(&mut self, timeout: Duration) -> Result<WakeReason, Error> {
        let deadline = Instant::now().checked_add(timeout); // `None`: never
        let mut wake = WakeReason { changed: mem::take(&mut self.changed), woken: false };
        let mut passed = false;
        while wake == WakeReason::default() && !passed {
            passed = deadline.is_some_and(|deadline| deadline <= Instant::now()); // checked first, to read events at least once
            wake |= self.wait_once(deadline)?;
        }
        if wake.changed {
            self.wait_until_quiet(&mut wake);
        }
        if mem::take(&mut self.unsure) {
            // A replaced directory counts as a change reported by this wait: the observation that follows includes it.
            wake.changed |= self.attach_watches(&self.current_watches());
        }
        Ok(wake)
    }

    /// Returns how many directories are currently only polled, every 250 ms: missing ones, and all if inotify is unavailable.
    pub fn count_polled(&self) -> usize {
        self.directories.iter().filter(|directory| directory.is_polled()).count()
    }

    /// Waits for a burst to end. On an error the changes so far are reported, and the next wait fails.
    fn wait_until_quiet(&mut self, wake: &mut WakeReason) {
        let (quiet_for, at_most) = self.settling;
        let end = Instant::now() + at_most;
        let mut quiet = Instant::now() + quiet_for;
        while !wake.woken {
            let Ok(events) = self.wait_once(Some(quiet.min(end))) else { break };
            *wake |= events;
            let now = Instant::now();
            if now >= end || (!events.changed && now >= quiet && !self.compare_polled()) {
                break;
            }
            if events.changed || now >= quiet {
                quiet = now + quiet_for;
            }
        }
    }

    /// Sleeps until an event, at most until `until`, and records it. There may be none.
    fn wait_once(&mut self, until: Option<Instant>) -> Result<WakeReason, Error> {
        let next_poll = (self.count_polled() > 0).then_some(self.next_poll);
        self.sleep_until(until.into_iter().chain(next_poll).min())?;
        let woken = self.waker.take_signal();
        let mut changed = self.drain_events();
        if self.count_polled() > 0 && self.next_poll <= Instant::now() {
            changed |= self.retry_watches();
            changed |= self.compare_polled();
        }
        Ok(WakeReason { changed, woken })
    }

    fn sleep_until(&self, until: Option<Instant>) -> Result<(), Error> {
        let mut fds = vec![PollFd::new(&self.waker, PollFlags::IN)];
        if let Some(inotify) = &self.inotify {
            fds.push(PollFd::new(inotify, PollFlags::IN));
        }
        let time = until.map(|until| until.saturating_duration_since(Instant::now()));
        // A timeout too long for the kernel counts as infinite.
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut fds, time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(cause) => Err(Error::new("wait for changes", Path::new(""), cause)),
        }
    }

    /// Reads pending events; true if one was ours.
    fn drain_events(&mut self) -> bool {
        let Some(inotify) = &self.inotify else { return false };
        let Some(events) = inotify.drain_events(&self.current_watches()) else {
            self.inotify = None;
            return self.attach_watches(&[]);
        };
        self.unsure |= events.unsure;
        events.changed
    }

    /// Retries failed watches; true if that revealed a change.
    fn retry_watches(&mut self) -> bool {
        let now = Instant::now();
        if self.next_retry <= now {
            self.next_retry = now + RETRY;
            if self.inotify.is_none() {
                self.inotify = Inotify::new();
            }
        }
        let mut changed = false;
        for directory in self.directories.iter_mut().filter(|directory| directory.is_polled()) {
            changed |= directory.attach_watch(self.inotify.as_ref());
        }
        changed
    }

    /// Compares the polled directories with their last state; true if one has changed.
    fn compare_polled(&mut self) -> bool {
        self.next_poll = Instant::now() + POLL;
        let mut changed = false;
        for directory in &mut self.directories {
            changed |= directory.compare_listing();
        }
        changed
    }

    /// Ensures a watch on each directory, and removes those of `before` that are no longer needed.
    fn attach_watches(&mut self, before: &[i32]) -> bool {
        let mut changed = false;
        for directory in &mut self.directories {
            changed |= directory.attach_watch(self.inotify.as_ref());
        }
        let now = self.current_watches();
        if let Some(inotify) = &self.inotify {
            before.iter().filter(|watch| !now.contains(watch)).for_each(|watch| inotify.remove_watch(*watch));
        }
        changed
    }

    fn current_watches(&self) -> Vec<i32> {
        self.directories.iter().filter_map(WatchedDirectory::watch_descriptor).collect()
    }
}
