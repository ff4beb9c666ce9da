//! Socket for notifications, which the kernel sends to the members of a multicast group.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SocketFlags, sockopt};

use super::{NetlinkProtocol, io_error, is_kernel, open_fd, options};
use crate::{Error, MessageIter};

/// A netlink socket that receives notifications and never blocks. It is bound to the netns in which it was opened, on
/// any thread, and keeps that netns alive.
#[derive(Debug)]
pub struct NotificationSocket {
    fd: OwnedFd,
}

impl NotificationSocket {
    /// Opens a socket in the calling thread's netns and joins `groups`: bit n - 1 is group n, as in `nl_groups`. With
    /// `only`, the kernel drops messages of every other type. The kernel queues up to twice `receive_buffer` bytes of
    /// datagrams, its own overhead included.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] with the step that failed: joining groups of netfilter fails without CAP_NET_ADMIN.
    pub fn open(
        protocol: NetlinkProtocol,
        groups: u32,
        only: Option<u16>,
        receive_buffer: usize,
    ) -> Result<Self, Error> {
        let fd = open_fd(protocol, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        sockopt::set_socket_recv_buffer_size(&fd, receive_buffer)
            .map_err(io_error("set the receive buffer of a netlink socket"))?;
        if let Some(message_type) = only {
            // Before joining, so that no other messages are ever queued.
            options::let_only_through(&fd, message_type)
                .map_err(io_error("attach a filter to a netlink socket"))?;
        }
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))
            .map_err(io_error("join multicast groups of netlink"))?;
        Ok(Self { fd })
    }

    /// Receives the messages of the next datagram into `buffer`; `None`: nothing is pending. A datagram of another
    /// process counts as one without messages.
    ///
    /// # Errors
    ///
    /// After any error, notifications may be lost: [`Error::Io`] with `ENOBUFS` after an overflow, and
    /// [`Error::Truncated`]. After an overflow the kernel queues nothing, and reports no further overflow, until the
    /// queue has been empty once (`NETLINK_S_CONGESTED` in net/netlink/af_netlink.c), so receive until nothing is
    /// pending.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> Result<Option<MessageIter<'a>>, Error> {
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recvfrom(&self.fd, &mut *buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC)
        });
        let (received, length, sender) = match received {
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(io_error("receive notifications of netlink")(errno)),
            Ok(received) => received,
        };
        if !is_kernel(sender) {
            return Ok(Some(MessageIter::new(&[])));
        }
        let bytes = buffer.get(..length).ok_or(Error::Truncated { received, length })?;
        Ok(Some(MessageIter::new(bytes)))
    }
}

impl AsFd for NotificationSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
