//! Which link the kernel would send a packet to.

use std::net::IpAddr;

use netlink::NetlinkRequest;

use super::message;
use crate::{Error, LinkIndex, RtnetlinkHandle};

/// Where a packet of this namespace to an address would go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The link on which it leaves.
    pub oif: LinkIndex,
    /// Through a gateway, so the address itself is not on that link.
    pub gateway: bool,
    /// To this namespace itself.
    pub local: bool,
}

impl RtnetlinkHandle {
    /// Asks the kernel where an unmarked packet to this address would go, by policy rules and all tables. `None`: nowhere;
    /// it has no route, or rejects the packet.
    ///
    /// # Errors
    ///
    /// [`Error::LookUpRoute`] if the exchange fails.
    pub fn next_hop(&mut self, ip: IpAddr) -> Result<Option<NextHop>, Error> {
        self.look_up(message::look_up(ip)).map_err(|source| Error::LookUpRoute { ip, source })
    }

    fn look_up(&mut self, request: NetlinkRequest) -> Result<Option<NextHop>, netlink::Error> {
        match self.socket.get(request) {
            Ok(replies) => {
                let found = replies.iter().find_map(|reply| message::parse_next_hop(&reply).transpose());
                Ok(found.transpose()?)
            }
            // Unreachable, prohibited, a blackhole, no such family: the kernel answers each with a number of its own.
            Err(refused) if refused.errno().is_some() => Ok(None),
            Err(other) => Err(other),
        }
    }
}
