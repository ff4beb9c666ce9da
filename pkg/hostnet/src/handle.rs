//! The handle, and the parts that all changes through it share. The operations are in the modules of their objects.

use netlink::{Errno, ListBounds, NetlinkProtocol, NetlinkRequest, Socket};

use crate::{Error, LinkIndex, error::kernel_error};

/// Outcome of an idempotent change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ChangeOutcome {
    /// The object was changed.
    Yes,
    /// Nothing was changed: the object was already as requested.
    No,
}

impl ChangeOutcome {
    /// Returns whether the object was changed.
    pub const fn is_yes(self) -> bool {
        matches!(self, Self::Yes)
    }
}

/// A connection to the kernel's network configuration in one netns.
#[derive(Debug)]
pub struct RtnetlinkHandle {
    pub(crate) socket: Socket,
    pub(crate) in_pod: bool,
}

impl RtnetlinkHandle {
    /// Opens a handle in the calling thread's netns, to which it stays bound on any thread.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(NetlinkProtocol::Route).map_err(open_error)?, in_pod: false })
    }

    /// Like [`RtnetlinkHandle::open`], but for a pod's namespace: reading a list that is longer than any pod's fails or
    /// is truncated. The socket is then reopened, so the handle has to be used in that namespace.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn open_in_pod() -> Result<Self, Error> {
        let socket = Socket::open(NetlinkProtocol::Route).map_err(open_error)?;
        Ok(Self { socket: socket.with_bounds(ListBounds::POD), in_pod: true })
    }

    /// Sends a change; `already` are the error numbers by which the kernel reports that there is nothing to change.
    pub(crate) fn send_change(
        &mut self,
        message: NetlinkRequest,
        already: &[Errno],
    ) -> Result<ChangeOutcome, netlink::Error> {
        match self.socket.request(message) {
            Ok(()) => Ok(ChangeOutcome::Yes),
            Err(refused) if refused.errno().is_some_and(|errno| already.contains(&errno)) => {
                Ok(ChangeOutcome::No)
            }
            Err(other) => Err(other),
        }
    }

    /// Returns the name of a link for an error message, or its number if it no longer exists.
    pub(crate) fn link_name(&mut self, index: LinkIndex) -> String {
        let found = self.link_by_index(index).ok().flatten();
        found.map_or_else(|| format!("#{}", index.0), |link| link.name)
    }
}

fn open_error(error: netlink::Error) -> Error {
    kernel_error("open a handle on the network", error)
}
