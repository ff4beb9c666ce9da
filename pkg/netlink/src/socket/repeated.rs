//! Repeated requests, of which only changed replies are relevant.

use super::{NetlinkProtocol, Socket};
use crate::exchange::{Exchange, ExchangeProgress};
use crate::{Errno, Error, ListBounds, MessageFlags, NetlinkRequest};

/// Requests to the kernel, and their last replies. Detecting that nothing has changed needs hardly any parsing, which
/// matters for a caller that polls ten times a second: its code has left the processor's cache in between.
#[derive(Debug)]
pub struct RepeatedRequests {
    socket: Socket,
    /// Bytes that are sent with one system call each: the first request and the first list; each other list, because a
    /// socket has one list at a time.
    requests: Vec<Vec<u8>>,
    has_lists: bool,
    /// Length of the first request; 0: it is no longer sent.
    first_length: usize,
    /// Bytes of the first reply, and of the lists.
    replies: [Vec<u8>; 2],
    before: [Vec<u8>; 2],
}

/// Which replies have other bytes than before; both the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedReplies {
    /// Whether the reply to the first request changed. A refusal is a reply, too, except that of a kernel without the
    /// subsystem: that request is not repeated, because each makes the kernel start `modprobe`.
    pub first: bool,
    /// Whether a list changed, or its refusal; `false` if none was requested.
    pub list: bool,
}

impl RepeatedRequests {
    /// Opens a socket in the calling thread's netns for requests to which the kernel replies in this order: `first`
    /// with one message, and each of the `lists` with messages of at most 4 KiB each.
    ///
    /// # Errors
    ///
    /// As [`Socket::open`], and if a request is too long for a message.
    pub fn open(
        protocol: NetlinkProtocol,
        mut first: NetlinkRequest,
        lists: impl IntoIterator<Item = NetlinkRequest>,
    ) -> Result<Self, Error> {
        let mut socket = Socket::open(protocol)?.with_bounds(ListBounds::POD);
        socket.buffer = vec![0; BUFFER];
        let mut requests = vec![first.finish(FIRST, MessageFlags::REQUEST)?.to_vec()];
        let first_length = requests.iter().map(Vec::len).sum();
        let mut has_lists = false;
        for mut list in lists {
            let list = list.finish(LIST, MessageFlags::REQUEST | MessageFlags::DUMP)?;
            match requests.first_mut().filter(|_| !has_lists) {
                Some(request) => request.extend_from_slice(list),
                None => requests.push(list.to_vec()),
            }
            has_lists = true;
        }
        let (replies, before) = Default::default();
        Ok(Self { socket, requests, has_lists, first_length, replies, before })
    }

    /// Sends the requests, and returns which replies changed.
    ///
    /// # Errors
    ///
    /// As [`Socket::dump`], except for a refusal; afterwards, open a new socket before the next attempt.
    pub fn request_changes(&mut self) -> Result<ChangedReplies, Error> {
        std::mem::swap(&mut self.replies, &mut self.before);
        self.replies.iter_mut().for_each(Vec::clear);
        let [first, lists] = &mut self.replies;
        let mut lacks_subsystem = false;
        for (number, request) in self.requests.iter().enumerate() {
            self.socket.send_bytes(request)?;
            if number == 0 && self.first_length > 0 {
                let datagram = self.socket.receive_datagram()?;
                lacks_subsystem = is_unknown(datagram);
                first.extend_from_slice(if lacks_subsystem { &[] } else { datagram });
            }
            if self.has_lists {
                receive_list(&mut self.socket, lists)?;
            }
        }
        if lacks_subsystem {
            let sent = std::mem::take(&mut self.first_length);
            self.requests.iter_mut().take(1).for_each(|request| drop(request.drain(..sent)));
            self.requests.retain(|request| !request.is_empty());
        }
        let ([first, list], [first_before, list_before]) = (&self.replies, &self.before);
        Ok(ChangedReplies { first: first != first_before, list: list != list_before })
    }
}

/// Returns whether the kernel does not know the subsystem of the first request (`nfnetlink_rcv_msg`).
fn is_unknown(datagram: &[u8]) -> bool {
    let refused = Exchange::new(FIRST).process_datagram(datagram, &mut |_| {});
    refused.is_err_and(|error| error.errno() == Some(Errno::INVAL))
}

/// Receives the datagrams of a list, or its refusal.
fn receive_list(socket: &mut Socket, replies: &mut Vec<u8>) -> Result<(), Error> {
    let (mut exchange, bounds) = (Exchange::new(LIST), socket.bounds);
    loop {
        let datagram = socket.receive_datagram()?;
        replies.extend_from_slice(datagram);
        match exchange.process_datagram(datagram, &mut |_| {}) {
            Ok(ExchangeProgress::Ended) | Err(Error::Kernel { .. }) => return Ok(()),
            Ok(ExchangeProgress::More) if replies.len() > bounds.bytes => return Err(Error::Bounds(bounds)),
            Ok(ExchangeProgress::More) => {}
            Err(other) => return Err(other),
        }
    }
}

/// Size of the receive buffer. The kernel allocates as much for each datagram of a list, which is cheap up to here. Where
/// pages have more than 4 KiB, which x86 does not support, it fills 8 KiB whatever the size (`NLMSG_GOODSIZE`).
const BUFFER: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 8192 };
/// Sequence numbers of the requests. They are constant, so that equal replies have equal bytes.
const FIRST: u32 = 1;
const LIST: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_the_kernel_does_not_know_is_not_repeated() {
        let unknown = NetlinkRequest::new(0x0f00, MessageFlags::NONE, &[0; 4]); // NFNL_SUBSYS_COUNT is 13
        // IPSET_CMD_LIST, without a version.
        let refused = NetlinkRequest::new(0x0607, MessageFlags::NONE, &[2, 0, 0, 0]);
        let asked = Socket::open(NetlinkProtocol::Netfilter).unwrap().get(unknown.clone());
        if asked.unwrap_err().errno() == Some(Errno::PERM) {
            return eprintln!("skipped: only root may send such requests");
        }
        for (lists, left) in [(vec![], 0), (vec![refused.clone(), refused], 2)] {
            let mut requests =
                RepeatedRequests::open(NetlinkProtocol::Netfilter, unknown.clone(), lists).unwrap();
            let changed = requests.request_changes().unwrap();
            assert!(!changed.first);
            assert_eq!((changed.list, requests.first_length, requests.requests.len()), (left > 0, 0, left));
            let unchanged = ChangedReplies { first: false, list: false };
            assert_eq!(requests.request_changes().unwrap(), unchanged);
        }
    }
}
