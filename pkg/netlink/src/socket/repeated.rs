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
    has_list: bool,
    /// Bytes of the first reply, and of the list.
    replies: [Vec<u8>; 2],
    before: [Vec<u8>; 2],
}

/// Which replies have other bytes than before; both the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedReplies {
    /// Whether the reply to the first request changed. A refusal is a reply, too.
    pub first: bool,
    /// Whether the list changed; `false` if none was requested.
    pub list: bool,
}

impl RepeatedRequests {
    /// Opens a socket in the calling thread's netns for requests to which the kernel replies in this order: `first`
    /// with one message, and `list` with a list of messages of at most 4 KiB each.
    ///
    /// # Errors
    ///
    /// As [`Socket::open`], and if a request is too long for a message.
    pub fn open(
        protocol: NetlinkProtocol,
        mut first: NetlinkRequest,
        list: Option<NetlinkRequest>,
    ) -> Result<Self, Error> {
        let mut socket = Socket::open(protocol)?.with_bounds(ListBounds::POD);
        socket.buffer = vec![0; BUFFER];
        let mut requests = first.finish(FIRST, MessageFlags::REQUEST)?.to_vec();
        let has_list = list.is_some();
        if let Some(mut list) = list {
            requests.extend_from_slice(list.finish(LIST, MessageFlags::REQUEST | MessageFlags::DUMP)?);
        }
        Ok(Self { socket, requests, has_list, replies: Default::default(), before: Default::default() })
    }

    /// Sends the requests, and returns which replies changed.
    ///
    /// # Errors
    ///
    /// As [`Socket::dump`]; afterwards, open a new socket before the next attempt.
    pub fn request_changes(&mut self) -> Result<ChangedReplies, Error> {
        std::mem::swap(&mut self.replies, &mut self.before);
        self.replies.iter_mut().for_each(Vec::clear);
        self.socket.send_bytes(&self.requests)?;
        self.receive_replies()?;
        let ([first, list], [first_before, list_before]) = (&self.replies, &self.before);
        Ok(ChangedReplies { first: first != first_before, list: list != list_before })
    }

    fn receive_replies(&mut self) -> Result<(), Error> {
        let [first, list] = &mut self.replies;
        first.extend_from_slice(self.socket.receive_datagram()?);
        let mut exchange = Exchange::new(LIST);
        let mut progress = if self.has_list { ExchangeProgress::More } else { ExchangeProgress::Ended };
        while progress == ExchangeProgress::More {
            let datagram = self.socket.receive_datagram()?;
            list.extend_from_slice(datagram);
            progress = exchange.process_datagram(datagram, &mut |_| {})?;
            if list.len() > self.socket.bounds.bytes {
                return Err(Error::Bounds(self.socket.bounds));
            }
        }
        Ok(())
    }
}

/// Size of the receive buffer. The kernel allocates as much for each datagram of a list, which is cheap up to here. Where
/// pages have more than 4 KiB, which x86 does not support, it fills 8 KiB whatever the size (`NLMSG_GOODSIZE`).
const BUFFER: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 8192 };
/// Sequence numbers of the requests. They are constant, so that equal replies have equal bytes.
const FIRST: u32 = 1;
const LIST: u32 = 2;
