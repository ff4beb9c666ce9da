//! Packets of a connection, each with a deadline; received file descriptors are never accepted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, recvmsg};
use socketfile::send_with_descriptor;

use crate::error::ConversationEnd;

/// Longest packet for which ztunnel has a buffer, in bytes.
pub(crate) const MAX_SENT: usize = 1024;
/// Longest packet for which we have a buffer, in bytes: the error in an answer may be long.
const MAX_RECEIVED: usize = 16 * 1024;

/// Sends a packet, with this file descriptor if given.
pub(crate) fn send(
    socket: &OwnedFd,
    bytes: &[u8],
    fd: Option<BorrowedFd<'_>>,
    limit: Duration,
) -> Result<(), ConversationEnd> {
    let deadline = Instant::now() + limit;
    loop {
        match send_with_descriptor(socket, bytes, fd, SendFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                if !is_ready(socket, PollFlags::OUT, deadline)? {
                    return Err(ConversationEnd::NotAccepted(limit));
                }
            }
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(ConversationEnd::Closed),
            // A packet is sent as a whole or not at all.
            sent => return sent.map(drop).map_err(ConversationEnd::Send),
        }
    }
}

/// Receives a packet; `None` if none arrives in time.
pub(crate) fn receive(socket: &OwnedFd, limit: Duration) -> Result<Option<Vec<u8>>, ConversationEnd> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(bytes) = try_receive(socket)? {
            return Ok(Some(bytes));
        }
        if !is_ready(socket, PollFlags::IN, deadline)? {
            return Ok(None);
        }
    }
}

/// Receives a packet that has arrived. An empty one cannot be distinguished from the end of the connection.
fn try_receive(socket: &OwnedFd) -> Result<Option<Vec<u8>>, ConversationEnd> {
    let mut bytes = [0; MAX_RECEIVED];
    // Without a buffer for them, the kernel closes the file descriptors of a packet, and sets a flag.
    let mut no_control = RecvAncillaryBuffer::default();
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut no_control, flags) {
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(Errno::CONNRESET) => return Err(ConversationEnd::Closed),
        received => received.map_err(ConversationEnd::Receive)?,
    };
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(ConversationEnd::Descriptors);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(ConversationEnd::TooLong(MAX_RECEIVED));
    }
    if received.bytes == 0 {
        return Err(ConversationEnd::Closed);
    }
    Ok(bytes.get(..received.bytes).map(<[u8]>::to_vec))
}

/// Fails if a packet has arrived without a request.
pub(crate) fn expect_silence(socket: &OwnedFd) -> Result<(), ConversationEnd> {
    try_receive(socket)?.map_or(Ok(()), |_| Err(ConversationEnd::Unasked))
}

/// Waits until the event is signalled, the peer sends something, or the time has come.
pub(crate) fn wait_for_activity(
    socket: &OwnedFd,
    event: &OwnedFd,
    until: Option<Instant>,
) -> Result<(), ConversationEnd> {
    let mut both = [PollFd::new(socket, PollFlags::IN), PollFd::new(event, PollFlags::IN)];
    wait_for(&mut both, until)?;
    // Cleared before the changes are read, so that none is missed.
    let _ = rustix::io::read(event, &mut [0_u8; 8]);
    Ok(())
}

fn is_ready(socket: &OwnedFd, what: PollFlags, deadline: Instant) -> Result<bool, ConversationEnd> {
    if Instant::now() >= deadline {
        return Ok(false);
    }
    wait_for(&mut [PollFd::from_borrowed_fd(socket.as_fd(), what)], Some(deadline))?;
    Ok(true)
}

fn wait_for(sources: &mut [PollFd<'_>], until: Option<Instant>) -> Result<(), ConversationEnd> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.map(Timespec::try_from).transpose();
    let left = left.map_err(|error| ConversationEnd::Wait(std::io::Error::other(error)))?;
    match poll(sources, left.as_ref()) {
        // The caller checks again in any case.
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(ConversationEnd::Wait(error.into())),
    }
}
