//! Socket for requests: each is sent, and its replies are received in order, or an error with the reason. The socket
//! for notifications is in `notifications`.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, netlink, sockopt,
};

use crate::exchange::{Exchange, ExchangeProgress};
use crate::parse::ReceivedMessage;
use crate::{Error, ListBounds, MessageFlags, NetlinkRequest};

mod changes;
mod list;
mod notifications;
mod options;
mod repeated;
mod replies;

pub use notifications::NotificationSocket;
pub use options::OptionSocket;
pub use repeated::{ChangedReplies, RepeatedRequests};
pub use replies::{ParseReply, ReplyMessages};

/// Time without a reply after which a request fails. The kernel replies within microseconds, unless its configuration
/// lock (rtnl) is held by another task; seconds of that occur on nodes with thousands of interfaces.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Size of the receive buffer. The kernel fills dump datagrams up to the buffer's size, at most this
/// (`netlink_recvmsg`).
const BUFFER: usize = 32 * 1024;

/// Netlink protocol, which selects a subsystem of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetlinkProtocol {
    /// Links, addresses, routes, rules (`NETLINK_ROUTE`).
    Route,
    /// nf_tables, ipset, conntrack (`NETLINK_NETFILTER`).
    Netfilter,
    /// Sockets of the netns (`NETLINK_SOCK_DIAG`).
    Sockets,
}

/// A blocking netlink socket, bound to the netns in which it was opened, on any thread.
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
    /// [`Error::Io`] if the kernel does not open one.
    pub fn open(protocol: NetlinkProtocol) -> Result<Self, Error> {
        Self::open_with_timeout(protocol, DEFAULT_TIMEOUT)
    }

    /// Opens a socket whose requests fail after `timeout` without a reply (zero: wait without limit).
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the kernel does not open one.
    pub fn open_with_timeout(protocol: NetlinkProtocol, timeout: Duration) -> Result<Self, Error> {
        let fd = open_fd(protocol, SocketFlags::CLOEXEC)?;
        options::enable_options(&fd, protocol).map_err(io_error("set up a netlink socket"))?;
        let limit = (!timeout.is_zero()).then_some(timeout);
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, limit)
            .map_err(io_error("set the timeout of a netlink socket"))?;
        Ok(Self { fd, sequence: 0, buffer: vec![0; BUFFER], timeout, bounds: ListBounds::NODE })
    }

    /// Sets other limits for each list. The default is [`ListBounds::NODE`].
    #[must_use]
    pub fn with_bounds(self, bounds: ListBounds) -> Self {
        Self { bounds, ..self }
    }

    /// Sends a request for a change, and waits for the kernel's acknowledgement.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the kernel refuses; others if the exchange fails.
    pub fn request(&mut self, message: NetlinkRequest) -> Result<(), Error> {
        self.send(message, MessageFlags::ACK)?;
        self.receive_replies(&mut |_| {})
    }

    /// Requests one object; returns the replies before the kernel's acknowledgement.
    ///
    /// # Errors
    ///
    /// As [`Socket::request`].
    pub fn get(&mut self, message: NetlinkRequest) -> Result<ReplyMessages, Error> {
        self.send(message, MessageFlags::ACK)?;
        let mut replies = ReplyMessages::default();
        self.receive_replies(&mut |reply| replies.push(reply))?;
        Ok(replies)
    }

    /// Requests one object without an acknowledgement, for frequent callers: the first reply is assumed to be the only
    /// one. A request without a reply ends at the timeout.
    ///
    /// # Errors
    ///
    /// As [`Socket::request`].
    pub fn get_first(&mut self, message: NetlinkRequest) -> Result<ReplyMessages, Error> {
        self.send(message, MessageFlags::NONE)?;
        let mut replies = ReplyMessages::default();
        let mut exchange = Exchange::new(self.sequence);
        while replies.is_empty() {
            let datagram = self.receive_datagram()?;
            let progress = exchange.process_datagram(datagram, &mut |reply| replies.push(reply))?;
            if progress == ExchangeProgress::Ended {
                break;
            }
        }
        Ok(replies)
    }

    fn send(&mut self, message: NetlinkRequest, added: MessageFlags) -> Result<(), Error> {
        let mut bytes = Vec::new();
        self.append_request(message, added, &mut bytes)?;
        self.send_bytes(&bytes)
    }

    /// Assigns a sequence number to a request and appends it to the bytes to send.
    fn append_request(
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

    /// Passes on the replies to the newest request until the message that ends them.
    fn receive_replies(&mut self, each: &mut dyn FnMut(&ReceivedMessage<'_>)) -> Result<(), Error> {
        let mut exchange = Exchange::new(self.sequence);
        while exchange.process_datagram(self.receive_datagram()?, each)? == ExchangeProgress::More {}
        Ok(())
    }

    /// Receives one datagram of the kernel itself; datagrams of other processes are dropped.
    fn receive_datagram(&mut self) -> Result<&[u8], Error> {
        self.receive_datagram_with(RecvFlags::TRUNC)
    }

    fn receive_datagram_with(&mut self, flags: RecvFlags) -> Result<&[u8], Error> {
        loop {
            let received = rustix::io::retry_on_intr(|| {
                rustix::net::recvfrom(&self.fd, self.buffer.as_mut_slice(), flags)
            });
            let (received, length, sender) = match received {
                Err(Errno::AGAIN) => return Err(Error::Timeout(self.timeout)),
                other => other.map_err(io_error("receive from a netlink socket"))?,
            };
            if !is_kernel(sender) {
                continue;
            }
            return self.buffer.get(..length).ok_or(Error::Truncated { received, length });
        }
    }
}

fn open_fd(protocol: NetlinkProtocol, flags: SocketFlags) -> Result<OwnedFd, Error> {
    let number = match protocol {
        NetlinkProtocol::Route => None, // NETLINK_ROUTE is 0, which rustix writes as None
        NetlinkProtocol::Netfilter => Some(netlink::NETFILTER),
        NetlinkProtocol::Sockets => Some(netlink::SOCK_DIAG),
    };
    rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, number)
        .map_err(io_error("open a netlink socket"))
}

/// Returns whether the kernel sent a datagram, rather than a process.
fn is_kernel(sender: Option<SocketAddrAny>) -> bool {
    sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok()).is_some_and(|sender| sender.pid() == 0)
}

fn io_error(step: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::Io { step, source: io::Error::from(errno) }
}

#[cfg(test)]
mod tests;
