//! One watcher of directories for one thread.

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

/// A burst of changes is over when nothing happened for so long,
const QUIET: Duration = Duration::from_millis(20);
/// or it has lasted so long.
const BURST: Duration = Duration::from_millis(200);
/// How often directories that give no events are compared with what they were.
const POLL: Duration = Duration::from_millis(250);
/// How often inotify is tried again where it could not be had.
const RETRY: Duration = Duration::from_secs(60);

/// Why a wait ended. Neither: the timeout passed. Both can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeReason {
    /// Something in a watched directory may have changed.
    pub changed: bool,
    /// Somebody called [`Waker::wake`].
    pub woken: bool,
}

impl BitOrAssign for WakeReason {
    fn bitor_assign(&mut self, other: Self) {
        self.changed |= other.changed;
        self.woken |= other.woken;
    }
}

/// Tells when something happens in directories; not what, nor below their subdirectories.
///
/// The caller's own changes wake it too, once. There is no way to drop what is pending, because that would also drop
/// what another component did since the caller looked. It need not be dear: [`crate::write()`] and its like touch nothing
/// that is already right, so the pass that follows changes nothing and the next wait is quiet.
#[derive(Debug)]
pub struct DirectoryWatcher {
    waker: Waker,
    /// Or why there is none.
    inotify: Result<Inotify, String>,
    directories: Vec<WatchedDirectory>,
    /// Something changed that no wait has told yet.
    changed: bool,
    /// Watches may have ended, so all are to be made sure of.
    unsure: bool,
    next_poll: Instant,
    next_retry: Instant,
    /// [`QUIET`] and [`BURST`], but in tests.
    settling: (Duration, Duration),
}

impl DirectoryWatcher {
    /// A watcher of no directory yet. Without inotify it polls, see [`DirectoryWatcher::polled`].
    ///
    /// # Errors
    ///
    /// Only if the eventfd of its waker cannot be had.
    pub fn new() -> Result<Self, Error> {
        Self::with_inotify(Inotify::new())
    }

    fn with_inotify(inotify: Result<Inotify, String>) -> Result<Self, Error> {
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

    /// The directories to watch from now on, to be told before every wait: one made anew at the same path is found
    /// out here. Costs one system call for each that is as before.
    ///
    /// A directory that is new in the list, or another one than before, counts as a change: what happened there before
    /// is not known. A missing one is waited for.
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

    /// Waits for a change, a wake-up or the timeout. A burst of changes is one: this goes on until 20 ms were quiet,
    /// at most 200 ms, also beyond the timeout; a wake-up ends that too. What happened since the last wait counts.
    ///
    /// # Errors
    ///
    /// If the kernel cannot poll, for want of memory.
    pub fn wait_for_change(&mut self, timeout: Duration) -> Result<WakeReason, Error> {
        let deadline = Instant::now().checked_add(timeout); // none: never
        let mut wake = WakeReason { changed: mem::take(&mut self.changed), woken: false };
        let mut passed = false;
        while wake == WakeReason::default() && !passed {
            passed = deadline.is_some_and(|deadline| deadline <= Instant::now()); // before a look, so there is one
            wake |= self.wait_once(deadline)?;
        }
        if wake.changed {
            self.wait_until_quiet(&mut wake);
        }
        if mem::take(&mut self.unsure) {
            // That one was replaced is part of what this wait tells: who looks now sees it.
            wake.changed |= self.attach_watches(&self.current_watches());
        }
        Ok(wake)
    }

    /// The directories that are only polled now, every 250 ms, and why: missing, or inotify cannot be had.
    pub fn polled(&self) -> Vec<(PathBuf, String)> {
        let polled = self
            .directories
            .iter()
            .filter_map(|one| Some((one.path.clone(), one.polling_reason()?.to_owned())));
        polled.collect()
    }

    /// Lets a burst pass. Where that fails, what was seen so far is told, and the next wait fails.
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

    /// Sleeps until something happens, at most until `until`, and takes in what did. It may be nothing.
    fn wait_once(&mut self, until: Option<Instant>) -> Result<WakeReason, Error> {
        let next_poll = self.any_polled().then_some(self.next_poll);
        self.sleep_until(until.into_iter().chain(next_poll).min())?;
        let woken = self.waker.take_signal();
        let mut changed = self.drain_events();
        if self.any_polled() && self.next_poll <= Instant::now() {
            changed |= self.retry_watches();
            changed |= self.compare_polled();
        }
        Ok(WakeReason { changed, woken })
    }

    fn sleep_until(&self, until: Option<Instant>) -> Result<(), Error> {
        let mut fds = vec![PollFd::new(&self.waker, PollFlags::IN)];
        if let Ok(inotify) = &self.inotify {
            fds.push(PollFd::new(inotify, PollFlags::IN));
        }
        let time = until.map(|until| until.saturating_duration_since(Instant::now()));
        // Too long for the kernel is as good as for ever.
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut fds, time.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(cause) => Err(Error::new("wait for changes", Path::new(""), cause)),
        }
    }

    /// Takes in the events that are pending; true if there was one of ours.
    fn drain_events(&mut self) -> bool {
        let Ok(inotify) = &self.inotify else { return false };
        let watches = self.current_watches();
        match inotify.drain_events(&watches) {
            Ok(events) => {
                self.unsure |= events.unsure;
                events.changed
            }
            Err(why) => {
                self.inotify = Err(why);
                self.attach_watches(&[])
            }
        }
    }

    /// Tries again what could not be had; true if that let a change be seen.
    fn retry_watches(&mut self) -> bool {
        let now = Instant::now();
        if self.next_retry <= now {
            self.next_retry = now + RETRY;
            if self.inotify.is_err() {
                self.inotify = Inotify::new();
            }
        }
        let mut changed = false;
        for directory in self.directories.iter_mut().filter(|directory| directory.polling_reason().is_some())
        {
            changed |= directory.attach_watch(&self.inotify);
        }
        changed
    }

    /// Compares the polled directories with what they were; true if one is not the same.
    fn compare_polled(&mut self) -> bool {
        self.next_poll = Instant::now() + POLL;
        let mut changed = false;
        for directory in &mut self.directories {
            changed |= directory.compare_listing();
        }
        changed
    }

    /// Makes sure of a watch on each directory, and ends those of `before` that are not needed any more.
    fn attach_watches(&mut self, before: &[i32]) -> bool {
        let mut changed = false;
        for directory in &mut self.directories {
            changed |= directory.attach_watch(&self.inotify);
        }
        let now = self.current_watches();
        if let Ok(inotify) = &self.inotify {
            before.iter().filter(|watch| !now.contains(watch)).for_each(|watch| inotify.remove_watch(*watch));
        }
        changed
    }

    fn current_watches(&self) -> Vec<i32> {
        self.directories.iter().filter_map(WatchedDirectory::watch_descriptor).collect()
    }

    fn any_polled(&self) -> bool {
        self.directories.iter().any(|directory| directory.polling_reason().is_some())
    }
}
