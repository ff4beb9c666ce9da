//! Repeated requests, of which only changed replies are relevant.

use super::{NetlinkProtocol, Socket};
use crate::exchange::{Exchange, ExchangeProgress};
use crate::{Error, ListBounds, MessageFlags, NetlinkRequest};

/// Requests to the kernel that are sent with one system call, and their last replies. Detecting that nothing has
/// changed needs hardly any parsing, which matters for a caller that polls ten times a second: its code has left the
/// processor's cache in between.
#[derive(Debug)]
pub struct RepeatedRequests {
    socket: Socket,
    requests: Vec<u8>,
    replies: Vec<u8>,
    before: Vec<u8>,
}

impl RepeatedRequests {
    /// Opens a socket in the calling thread's netns for requests to which the kernel replies in this order: `first`
    /// with one message, and `list` with a list.
    ///
    /// # Errors
    ///
    /// As [`Socket::open`], and if a request is too long for a message.
    pub fn open(
        protocol: NetlinkProtocol,
        mut first: NetlinkRequest,
        mut list: NetlinkRequest,
    ) -> Result<Self, Error> {
        let socket = Socket::open(protocol)?.with_bounds(ListBounds::POD);
        let mut requests = first.finish(FIRST, MessageFlags::REQUEST)?.to_vec();
        requests.extend_from_slice(list.finish(LIST, MessageFlags::REQUEST | MessageFlags::DUMP)?);
        Ok(Self { socket, requests, replies: Vec::new(), before: Vec::new() })
    }

    /// Sends the requests, and returns whether the replies have the same bytes as before; false the first time.
    ///
    /// # Errors
    ///
    /// As [`Socket::dump`]; afterwards, open a new socket before the next attempt.
    pub fn are_replies_unchanged(&mut self) -> Result<bool, Error> {
        std::mem::swap(&mut self.replies, &mut self.before);
        self.replies.clear();
        self.socket.send_bytes(&self.requests)?;
        self.receive_replies()?;
        Ok(self.replies == self.before)
    }

    fn receive_replies(&mut self) -> Result<(), Error> {
        let mut exchange = Exchange::new(LIST);
        loop {
            let length = self.socket.receive_datagram()?;
            let datagram = self.socket.buffer.get(..length).unwrap_or_default();
            self.replies.extend_from_slice(datagram);
            if exchange.process_datagram(datagram, &mut |_| {})? == ExchangeProgress::Ended {
                return Ok(());
            }
            if self.replies.len() > self.socket.bounds.bytes {
                return Err(Error::Bounds(self.socket.bounds));
            }
        }
    }
}

/// Sequence numbers of the requests. They are constant, so that equal replies have equal bytes.
const FIRST: u32 = 1;
const LIST: u32 = 2;
