//! The one socket: a request goes out, its replies come back, in order, or an error says why not.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt};

use crate::exchange::{Batch, Exchange, ExchangeProgress};
use crate::parse::ReceivedMessage;
use crate::{Error, ListBounds, MessageFlags, NetlinkRequest};

mod options;

/// How long the kernel may be silent before a request fails. It answers within microseconds, unless another holder
/// of its configuration lock (rtnl) keeps it; seconds of that happen on nodes with thousands of interfaces.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// The kernel fills dump datagrams up to what the reader offers, at most this (`netlink_recvmsg`).
const BUFFER: usize = 32 * 1024;
/// How often a list is asked for again when its objects changed meanwhile.
const DUMP_ATTEMPTS: u32 = 8;
/// Changes that go out together. Should the kernel refuse each, it needs about 1 KiB of the receive buffer to say so,
/// and that holds 208 KiB.
const BATCH: usize = 64;

/// What surely fits into one message: a socket's send buffer has 208 KiB (`net.core.wmem_default`), less on small machines.
const SEND_BUFFER: usize = 64 << 10;

/// Which part of the kernel to talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetlinkProtocol {
    /// Links, addresses, routes, rules (`NETLINK_ROUTE`).
    Route,
    /// nf_tables, ipset, conntrack (`NETLINK_NETFILTER`).
    Netfilter,
    /// Sockets of the netns (`NETLINK_SOCK_DIAG`).
    Sockets,
}

/// A blocking netlink socket, in the netns in which it was opened, wherever it is used from later.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
    timeout: Duration,
    bounds: ListBounds,
}

impl Socket {
    /// Opens a socket in the calling thread's netns, with [`DEFAULT_TIMEOUT`].
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the kernel does not give one.
    pub fn open(protocol: NetlinkProtocol) -> Result<Self, Error> {
        Self::open_with_timeout(protocol, DEFAULT_TIMEOUT)
    }

    /// Opens a socket whose requests fail when the kernel is silent for `timeout` (zero: wait without limit).
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the kernel does not give one.
    pub fn open_with_timeout(protocol: NetlinkProtocol, timeout: Duration) -> Result<Self, Error> {
        let number = match protocol {
            NetlinkProtocol::Route => None, // NETLINK_ROUTE is 0, which rustix writes as None
            NetlinkProtocol::Netfilter => Some(netlink::NETFILTER),
            NetlinkProtocol::Sockets => Some(netlink::SOCK_DIAG),
        };
        let fd =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, number)
                .map_err(io_error("open a netlink socket"))?;
        options::set(&fd, protocol).map_err(io_error("set up a netlink socket"))?;
        let limit = (!timeout.is_zero()).then_some(timeout);
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, limit)
            .map_err(io_error("set the timeout of a netlink socket"))?;
        Ok(Self { fd, sequence: 0, buffer: vec![0; BUFFER], timeout, bounds: ListBounds::NODE })
    }

    /// The same with other bounds for each list; they are [`ListBounds::NODE`] at first.
    #[must_use]
    pub fn bounded(self, bounds: ListBounds) -> Self {
        Self { bounds, ..self }
    }

    /// Sends a request that changes something, and waits until the kernel says that it is done.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if it refuses; others if the exchange fails.
    pub fn request(&mut self, message: NetlinkRequest) -> Result<(), Error> {
        self.send(message, MessageFlags::ACK)?;
        self.receive(&mut |_| {})
    }

    /// Asks for one object; the replies are what the kernel sent before its acknowledgement.
    ///
    /// # Errors
    ///
    /// As [`Socket::request`].
    pub fn get(&mut self, message: NetlinkRequest) -> Result<ReplyMessages, Error> {
        self.send(message, MessageFlags::ACK)?;
        let mut replies = ReplyMessages::default();
        self.receive(&mut |reply| replies.push(reply))?;
        Ok(replies)
    }

    /// Asks for a list; asks again, up to eight times, if the kernel says that it changed while it was read.
    ///
    /// # Errors
    ///
    /// As [`Socket::request`], [`Error::Interrupted`] and [`Error::Bounds`]; after the last, open a new socket before asking
    /// again.
    pub fn dump(&mut self, message: &NetlinkRequest) -> Result<ReplyMessages, Error> {
        match self.dump_until(message, self.bounds)? {
            (replies, true) => Ok(replies),
            (_, false) => Err(Error::Bounds(self.bounds)),
        }
    }

    /// Asks for a list once, and hands over its messages as they come: no more of it is held than one datagram.
    ///
    /// # Errors
    ///
    /// As [`Socket::dump`]. After [`Error::Interrupted`], what was handed over is not the whole list; it may be asked for again.
    pub fn dump_each(
        &mut self,
        message: &NetlinkRequest,
        each: &mut dyn FnMut(&ReceivedMessage<'_>),
    ) -> Result<(), Error> {
        let (bytes, deadline) = (self.bounds.bytes, Instant::now() + self.bounds.time);
        self.send(message.clone(), MessageFlags::DUMP)?;
        self.receive_list(each, bytes, deadline)
    }

    /// Asks for the beginning of a list: what comes before it has more than `bytes`. True in the second place: that is all
    /// of it. The socket ends with the question, for the kernel would go on with the list.
    ///
    /// # Errors
    ///
    /// As [`Socket::dump`].
    pub fn head(mut self, message: &NetlinkRequest, bytes: usize) -> Result<(ReplyMessages, bool), Error> {
        self.dump_until(message, ListBounds { bytes, ..self.bounds })
    }

    fn dump_until(
        &mut self,
        message: &NetlinkRequest,
        bounds: ListBounds,
    ) -> Result<(ReplyMessages, bool), Error> {
        let deadline = Instant::now() + bounds.time;
        for _ in 0..DUMP_ATTEMPTS {
            self.send(message.clone(), MessageFlags::DUMP)?;
            let mut replies = ReplyMessages::default();
            match self.receive_list(&mut |reply| replies.push(reply), bounds.bytes, deadline) {
                Err(Error::Interrupted(_)) => {}
                Err(Error::Bounds(_)) if Instant::now() >= deadline => return Err(Error::Bounds(bounds)),
                Err(Error::Bounds(_)) => return Ok((replies, false)),
                Err(other) => return Err(other),
                Ok(()) => return Ok((replies, true)),
            }
        }
        Err(Error::Interrupted(DUMP_ATTEMPTS))
    }

    fn receive_list(
        &mut self,
        each: &mut dyn FnMut(&ReceivedMessage<'_>),
        bytes: usize,
        deadline: Instant,
    ) -> Result<(), Error> {
        let (mut exchange, mut received) = (Exchange::new(self.sequence), 0);
        loop {
            let length = self.receive_datagram()?;
            let datagram = self.buffer.get(..length).unwrap_or_default();
            let mut counted = |reply: &ReceivedMessage<'_>| {
                received += reply.payload.len();
                each(reply);
            };
            if exchange.datagram(datagram, &mut counted)? == ExchangeProgress::Ended {
                return Ok(());
            }
            if received > bytes || Instant::now() >= deadline {
                return Err(Error::Bounds(self.bounds));
            }
        }
    }

    /// Sends many small changes, 64 with one system call, and waits for each such group. They are carried out in this
    /// order, each for itself: what the kernel said to each of them comes back.
    ///
    /// # Errors
    ///
    /// If an exchange fails, with [`Error`]s other than [`Error::Kernel`]; any part of the changes may have been made.
    pub fn batch(
        &mut self,
        messages: impl IntoIterator<Item = NetlinkRequest>,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let (mut messages, mut outcomes) = (messages.into_iter(), Vec::new());
        loop {
            let group: Vec<NetlinkRequest> = messages.by_ref().take(BATCH).collect();
            if group.is_empty() {
                return Ok(outcomes);
            }
            outcomes.extend(self.send_group(group)?);
        }
    }

    /// Sends changes between the messages that begin and end a transaction: all are made, or none (`NFNL_MSG_BATCH_BEGIN`).
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] with what the kernel said to the first that it refused, or to the whole; others if the exchange
    /// fails, and then it is not known what was made.
    pub fn transaction(
        &mut self,
        begin: NetlinkRequest,
        changes: Vec<NetlinkRequest>,
        end: NetlinkRequest,
    ) -> Result<(), Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::transaction(self.sequence.wrapping_add(1), changes.len());
        let mut bytes = Vec::new();
        self.put(begin, MessageFlags::NONE, &mut bytes)?;
        self.put_group(changes, &mut bytes)?;
        self.put(end, MessageFlags::NONE, &mut bytes)?;
        if bytes.len() > SEND_BUFFER {
            // Beyond `net.core.wmem_max` if need be, as whoever may change rules may (`CAP_NET_ADMIN`).
            sockopt::set_socket_send_buffer_size_force(&self.fd, bytes.len())
                .map_err(io_error("make room for a netlink request"))?;
        }
        self.send_bytes(&bytes)?;
        self.receive_outcomes(&mut batch)?;
        batch.outcomes().into_iter().collect()
    }

    fn send_group(&mut self, group: Vec<NetlinkRequest>) -> Result<Vec<Result<(), Error>>, Error> {
        let mut batch = Batch::new(self.sequence.wrapping_add(1), group.len());
        let mut bytes = Vec::new();
        self.put_group(group, &mut bytes)?;
        self.send_bytes(&bytes)?;
        self.receive_outcomes(&mut batch)?;
        Ok(batch.outcomes())
    }

    /// Only the last of the group asks for an acknowledgement: to the others the kernel answers when it refuses them.
    fn put_group(&mut self, group: Vec<NetlinkRequest>, bytes: &mut Vec<u8>) -> Result<(), Error> {
        let count = group.len();
        (1..).zip(group).try_for_each(|(number, message)| {
            let added = if number == count { MessageFlags::ACK } else { MessageFlags::NONE };
            self.put(message, added, bytes)
        })
    }

    fn receive_outcomes(&mut self, batch: &mut Batch) -> Result<(), Error> {
        loop {
            let length = self.receive_datagram()?;
            if batch.datagram(self.buffer.get(..length).unwrap_or_default())? == ExchangeProgress::Ended {
                return Ok(());
            }
        }
    }

    fn send(&mut self, message: NetlinkRequest, added: MessageFlags) -> Result<(), Error> {
        let mut bytes = Vec::new();
        self.put(message, added, &mut bytes)?;
        self.send_bytes(&bytes)
    }

    /// Numbers a request and puts it behind what is to be sent.
    fn put(
        &mut self,
        mut message: NetlinkRequest,
        added: MessageFlags,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.sequence = self.sequence.wrapping_add(1);
        bytes.extend_from_slice(message.finish(self.sequence, MessageFlags::REQUEST | added)?);
        Ok(())
    }

    fn send_bytes(&self, bytes: &[u8]) -> Result<(), Error> {
        rustix::io::retry_on_intr(|| rustix::net::send(&self.fd, bytes, SendFlags::empty()))
            .map_err(io_error("send a netlink request"))?;
        Ok(())
    }

    /// Hands over the replies to the newest request until the message that ends them.
    fn receive(&mut self, each: &mut dyn FnMut(&ReceivedMessage<'_>)) -> Result<(), Error> {
        let mut exchange = Exchange::new(self.sequence);
        loop {
            let length = self.receive_datagram()?;
            let datagram = self.buffer.get(..length).unwrap_or_default();
            if exchange.datagram(datagram, each)? == ExchangeProgress::Ended {
                return Ok(());
            }
        }
    }

    /// Reads one datagram from the kernel itself into the buffer; what other processes send is dropped.
    fn receive_datagram(&mut self) -> Result<usize, Error> {
        loop {
            let received = rustix::io::retry_on_intr(|| {
                rustix::net::recvfrom(&self.fd, self.buffer.as_mut_slice(), RecvFlags::TRUNC)
            });
            let (received, length, sender) = match received {
                Err(Errno::AGAIN) => return Err(Error::Timeout(self.timeout)),
                other => other.map_err(io_error("receive from a netlink socket"))?,
            };
            let from_kernel = sender
                .and_then(|sender| SocketAddrNetlink::try_from(sender).ok())
                .is_some_and(|sender| sender.pid() == 0);
            if !from_kernel {
                continue;
            }
            if length > received {
                return Err(Error::Truncated { received, length });
            }
            return Ok(length);
        }
    }
}

/// The messages that answered a request, in the kernel's order.
#[derive(Clone, Debug, Default)]
pub struct ReplyMessages {
    messages: Vec<(u16, MessageFlags, usize)>,
    payloads: Vec<u8>,
}

impl ReplyMessages {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The messages. (`sequence` is 0: it has done its work.)
    pub fn iter(&self) -> impl Iterator<Item = ReceivedMessage<'_>> {
        let mut rest = self.payloads.as_slice();
        self.messages.iter().map_while(move |&(kind, flags, length)| {
            let (payload, after) = rest.split_at_checked(length)?;
            rest = after;
            Some(ReceivedMessage { kind, flags, sequence: 0, payload })
        })
    }

    fn push(&mut self, message: &ReceivedMessage<'_>) {
        self.messages.push((message.kind, message.flags, message.payload.len()));
        self.payloads.extend_from_slice(message.payload);
    }
}

fn io_error(step: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::Io { step, source: io::Error::from(errno) }
}

#[cfg(test)]
mod tests;
