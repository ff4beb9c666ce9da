//! The socket for requests: one goes out, its replies come back, in order, or an error says why not. The other socket, for
//! notifications, is in `notifications`.

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
pub use repeated::RepeatedRequests;
pub use replies::{ParseReply, ReplyMessages};

/// How long the kernel may be silent before a request fails. It answers within microseconds, unless another holder
/// of its configuration lock (rtnl) keeps it; seconds of that happen on nodes with thousands of interfaces.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// The kernel fills dump datagrams up to what the reader offers, at most this (`netlink_recvmsg`).
const BUFFER: usize = 32 * 1024;
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
        let fd = open_fd(protocol, SocketFlags::CLOEXEC)?;
        options::enable_options(&fd, protocol).map_err(io_error("set up a netlink socket"))?;
        let limit = (!timeout.is_zero()).then_some(timeout);
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, limit)
            .map_err(io_error("set the timeout of a netlink socket"))?;
        Ok(Self { fd, sequence: 0, buffer: vec![0; BUFFER], timeout, bounds: ListBounds::NODE })
    }

    /// Sets other bounds for each list. Initially they are [`ListBounds::NODE`].
    #[must_use]
    pub fn with_bounds(self, bounds: ListBounds) -> Self {
        Self { bounds, ..self }
    }

    /// Sends a request that changes something, and waits until the kernel says that it is done.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if it refuses; others if the exchange fails.
    pub fn request(&mut self, message: NetlinkRequest) -> Result<(), Error> {
        self.send(message, MessageFlags::ACK)?;
        self.receive_replies(&mut |_| {})
    }

    /// Asks for one object; the replies are what the kernel sent before its acknowledgement.
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

    /// Asks for one object without an acknowledgement, for whoever asks very often: the first reply is taken for all of them. A
    /// request to which the kernel replies nothing ends at the timeout.
    ///
    /// # Errors
    ///
    /// As [`Socket::request`].
    pub fn get_first(&mut self, message: NetlinkRequest) -> Result<ReplyMessages, Error> {
        self.send(message, MessageFlags::NONE)?;
        let mut replies = ReplyMessages::default();
        let mut exchange = Exchange::new(self.sequence);
        while replies.iter().next().is_none() {
            let length = self.receive_datagram()?;
            let datagram = self.buffer.get(..length).unwrap_or_default();
            if exchange.process_datagram(datagram, &mut |reply| replies.push(reply))?
                == ExchangeProgress::Ended
            {
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

    /// Numbers a request and puts it behind what is to be sent.
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

    /// Hands over the replies to the newest request until the message that ends them.
    fn receive_replies(&mut self, each: &mut dyn FnMut(&ReceivedMessage<'_>)) -> Result<(), Error> {
        let mut exchange = Exchange::new(self.sequence);
        loop {
            let length = self.receive_datagram()?;
            let datagram = self.buffer.get(..length).unwrap_or_default();
            if exchange.process_datagram(datagram, each)? == ExchangeProgress::Ended {
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
            if !is_kernel(sender) {
                continue;
            }
            if length > received {
                return Err(Error::Truncated { received, length });
            }
            return Ok(length);
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

/// Whether the kernel sent a datagram, and no process.
fn is_kernel(sender: Option<SocketAddrAny>) -> bool {
    sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok()).is_some_and(|sender| sender.pid() == 0)
}

fn io_error(step: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::Io { step, source: io::Error::from(errno) }
}

#[cfg(test)]
mod tests;
