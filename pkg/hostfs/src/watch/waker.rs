//! Waker that ends a wait from another thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::Error;

/// Ends waits of its [`crate::DirectoryWatcher`], from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(super) fn new() -> Result<Self, Error> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        made.map(|fd| Self(Arc::new(fd))).map_err(Error::at("make an eventfd", Path::new("")))
    }

    /// Ends the current wait, or else the next one, immediately. Several wake-ups before a wait count as one.
    pub fn wake(&self) {
        // Fails only if 2^64 wake-ups are pending, so one is.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Whether somebody called; forgets it.
    pub(super) fn take_signal(&self) -> bool {
        rustix::io::read(&self.0, &mut [0_u8; 8]).is_ok()
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
