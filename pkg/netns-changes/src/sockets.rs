//! The two sockets in a watched namespace.

use std::io;
use std::os::fd::BorrowedFd;

use netlink::{NetlinkProtocol, NotificationSocket};
use netns::Netns;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::Error;
use crate::notification::{NEW_GENERATION, Observed};

/// For each socket. The kernel doubles it, so that a namespace can bind 128 KiB of the kernel's memory with both; 64 KiB hold
/// some 80 notifications.
const RECEIVE_BUFFER: usize = 32 * 1024;
/// One busy namespace does not keep others waiting for longer than this takes.
const DATAGRAMS_AT_A_TIME: usize = 32;

/// `NFNLGRP_NFTABLES`.
const FIREWALL_GROUPS: u32 = group(7);
/// `RTNLGRP_LINK`, `_IPV4_IFADDR`, `_IPV4_ROUTE`, `_IPV4_RULE`, `_IPV6_IFADDR`, `_IPV6_ROUTE`, `_IPV6_RULE`.
const NETWORK_GROUPS: u32 = group(1) | group(5) | group(7) | group(8) | group(9) | group(11) | group(19);

const fn group(number: u32) -> u32 {
    1 << (number - 1)
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
}

/// Both sockets. They keep the namespace alive.
#[derive(Debug)]
pub(crate) struct Sockets {
    firewall: NotificationSocket,
    network: NotificationSocket,
}

impl Sockets {
    pub(crate) fn open_in(netns: &Netns) -> Result<Self, Error> {
        netns.run_in(Self::open)?
    }

    fn open() -> Result<Self, Error> {
        let failed = |objects| move |source| Error::Listen { objects, source };
        let open = NotificationSocket::open;
        let only = Some(NEW_GENERATION);
        Ok(Self {
            firewall: open(NetlinkProtocol::Netfilter, FIREWALL_GROUPS, only, RECEIVE_BUFFER)
                .map_err(failed("nf_tables"))?,
            network: open(NetlinkProtocol::Route, NETWORK_GROUPS, None, RECEIVE_BUFFER)
                .map_err(failed("links, addresses and routes"))?,
        })
    }

    /// Adds both to an epoll set, each with the value that `data` gives for it.
    pub(crate) fn register(&self, epoll: BorrowedFd<'_>, data: impl Fn(Source) -> u64) -> Result<(), Error> {
        Source::ALL.into_iter().try_for_each(|source| {
            epoll::add(epoll, self.of(source), EventData::new_u64(data(source)), EventFlags::IN)
                .map_err(|errno| Error::Epoll(io::Error::from(errno)))
        })
    }

    /// Removes both from an epoll set, which closing does not do while a child process that has yet to call exec holds a copy.
    pub(crate) fn deregister(&self, epoll: BorrowedFd<'_>) {
        for source in Source::ALL {
            let _ = epoll::delete(epoll, self.of(source)); // fails only if it is not there
        }
    }

    /// Reads pending notifications of one socket: a bounded number of them, and those after a loss another time.
    pub(crate) fn read(&self, source: Source, buffer: &mut [u8], observed: &mut Observed) {
        for _ in 0..DATAGRAMS_AT_A_TIME {
            match self.of(source).receive(buffer) {
                Ok(None) => return,
                Ok(Some(messages)) => observed.add(messages),
                // The error itself says no more than this, and the socket goes on.
                Err(_) => return observed.add_loss(),
            }
        }
    }

    fn of(&self, source: Source) -> &NotificationSocket {
        match source {
            Source::Firewall => &self.firewall,
            Source::Network => &self.network,
        }
    }
}
