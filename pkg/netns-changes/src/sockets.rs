//! The two sockets in a watched namespace.

use std::io;
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use netlink::{NetlinkProtocol, NotificationSocket};
use netns::Netns;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::Error;
use crate::notification::{NEW_GENERATION, Observed};

/// Receive buffer of each socket. The kernel doubles it, so that a namespace can use 128 KiB of kernel memory with
/// both; 64 KiB hold some 80 notifications.
const RECEIVE_BUFFER: usize = 32 * 1024;
/// Maximum number of datagrams per read, so that a busy namespace does not delay others for longer.
const DATAGRAMS_AT_A_TIME: usize = 32;
/// Exceeds the capacity of the queue.
const DATAGRAMS_AFTER_LOSS: usize = 1024;

/// `NFNLGRP_NFTABLES`.
const FIREWALL_GROUPS: u32 = group_mask(7);
/// `RTNLGRP_LINK`, `_IPV4_IFADDR`, `_IPV4_ROUTE`, `_IPV4_RULE`, `_IPV6_IFADDR`, `_IPV6_ROUTE`, `_IPV6_RULE`.
const NETWORK_GROUPS: u32 = group_mask(1)
    | group_mask(5)
    | group_mask(7)
    | group_mask(8)
    | group_mask(9)
    | group_mask(11)
    | group_mask(19);

const fn group_mask(number: u32) -> u32 {
    1 << (number - 1)
}

impl Drop for Sockets {
    fn drop(&mut self) {
        OPEN.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

/// One of the two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Transactions of nf_tables.
    Firewall,
    /// Links, addresses, routes and policy rules.
    Network,
}

impl Source {
    pub(crate) const ALL: [Self; 2] = [Self::Firewall, Self::Network];

    fn open_socket(self) -> Result<NotificationSocket, Error> {
        let (objects, protocol, groups, only) = match self {
            Self::Firewall => {
                ("nf_tables", NetlinkProtocol::Netfilter, FIREWALL_GROUPS, Some(NEW_GENERATION))
            }
            Self::Network => ("links, addresses and routes", NetlinkProtocol::Route, NETWORK_GROUPS, None),
        };
        NotificationSocket::open(protocol, groups, only, RECEIVE_BUFFER)
            .map_err(|source| Error::Listen { objects, source })
    }
}

/// Number of sockets of all watches of the process: all watchers share its descriptors.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Sockets of one watch, which keep the namespace alive.
#[derive(Debug)]
pub(crate) struct Sockets(Vec<(Source, NotificationSocket)>);

impl Sockets {
    pub(crate) fn open_in(netns: &Netns, sources: &[Source]) -> Result<Self, Error> {
        let open = |source: &Source| Ok((*source, source.open_socket()?));
        let sockets = netns.run_in(|| sources.iter().map(open).collect::<Result<Vec<_>, Error>>())??;
        OPEN.fetch_add(sockets.len(), Ordering::Relaxed);
        Ok(Self(sockets))
    }

    /// Returns the number of sockets of all watches of the process.
    pub(crate) fn open_count() -> usize {
        OPEN.load(Ordering::Relaxed)
    }

    /// Adds all sockets to an epoll set, each with its value of `data`.
    pub(crate) fn register(&self, epoll: BorrowedFd<'_>, data: impl Fn(Source) -> u64) -> Result<(), Error> {
        self.0.iter().try_for_each(|(source, socket)| {
            epoll::add(epoll, socket, EventData::new_u64(data(*source)), EventFlags::IN)
                .map_err(|errno| Error::Epoll(io::Error::from(errno)))
        })
    }

    /// Removes all sockets from an epoll set, which closing does not do while a child process has a copy and has not
    /// yet called exec.
    pub(crate) fn deregister(&self, epoll: BorrowedFd<'_>) {
        for (_, socket) in &self.0 {
            let _ = epoll::delete(epoll, socket); // fails only if it is not in the set
        }
    }

    /// Reads a limited number of pending notifications of one socket. After a loss it reads all of them, because after
    /// an overflow the kernel queues nothing before the queue has been empty once: a caller that observes the namespace
    /// before that would never learn of a change after the observation.
    pub(crate) fn read_notifications(&self, source: Source, buffer: &mut [u8], observed: &mut Observed) {
        let Some((_, socket)) = self.0.iter().find(|(of, _)| *of == source) else { return };
        let (mut left, mut is_complete) = (DATAGRAMS_AT_A_TIME, true);
        while left > 0 {
            left -= 1;
            match socket.receive(buffer) {
                Ok(None) => return,
                Ok(Some(datagram)) => observed.add_messages(datagram),
                // The error has no further information, and the socket remains usable.
                Err(_) => {
                    observed.add_loss();
                    if mem::take(&mut is_complete) {
                        left = DATAGRAMS_AFTER_LOSS;
                    }
                }
            }
        }
    }
}
