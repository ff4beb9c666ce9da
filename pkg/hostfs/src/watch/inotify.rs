//! Directory events of the kernel.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// Flags of a watch on a directory. Its events report that a file was created, replaced, renamed, removed or written, or that its
/// mode or owner changed, and that the directory itself was removed. Not MODIFY: a write is reported once, when the file is closed.
const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);
/// Events after which a watch may no longer belong to the path.
const ENDS: ReadFlags = ReadFlags::DELETE_SELF
    .union(ReadFlags::MOVE_SELF)
    .union(ReadFlags::IGNORED)
    .union(ReadFlags::UNMOUNT)
    .union(ReadFlags::QUEUE_OVERFLOW);
/// Size of a read in bytes, some hundred events.
const BUFFER: usize = 16 * 1024;
/// Maximum number of events per drain, so that a flood of them cannot keep us busy.
const MOST: usize = 16 * 1024;

/// Result of reading the pending events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PendingEvents {
    pub(super) changed: bool,
    /// Whether watches may have ended.
    pub(super) unsure: bool,
}

#[derive(Debug)]
pub(super) struct Inotify(OwnedFd);

impl Inotify {
    /// Returns an instance; `None`: the kernel has none left.
    pub(super) fn new() -> Option<Self> {
        inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok().map(Self)
    }

    /// Watches the directory that is at `path` now; the descriptor is the same as before exactly if the directory is. `None`: there
    /// is no directory, or the limit of watches is reached.
    pub(super) fn add_watch(&self, path: &Path) -> Option<i32> {
        inotify::add_watch(&self.0, path, EVENTS).ok()
    }

    /// Removes a watch, which may have ended with its directory.
    pub(super) fn remove_watch(&self, watch: i32) {
        let _ = inotify::remove_watch(&self.0, watch);
    }

    /// Reads pending events, and evaluates those of `watches`. Lost ones count as a change. `None`: they cannot be read.
    pub(super) fn drain_events(&self, watches: &[i32]) -> Option<PendingEvents> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(&self.0, &mut buffer);
        let mut pending = PendingEvents::default();
        let mut count = 0;
        while count < MOST || !reader.is_buffer_empty() {
            let (flags, watch) = match reader.next() {
                Ok(event) => (event.events(), event.wd()),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(_) => return None,
            };
            count += 1;
            let ours = flags.contains(ReadFlags::QUEUE_OVERFLOW) || watches.contains(&watch);
            pending.changed |= ours;
            pending.unsure |= ours && flags.intersects(ENDS);
        }
        Some(pending)
    }
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
