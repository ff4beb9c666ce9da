//! Which link leads to an address.

use std::net::IpAddr;

use netlink::NetlinkRequest;

use super::message;
use crate::{Error, LinkIndex, RtnetlinkHandle};

impl RtnetlinkHandle {
    /// Asks the kernel on which link an unmarked packet to this address would leave, by policy rules and all tables. `None`: on
    /// none that the address itself is on. The address is local, a gateway is in between, no route leads there, or one rejects
    /// the packet.
    ///
    /// # Errors
    ///
    /// [`Error::LookUpRoute`] if the exchange fails.
    pub fn direct_link(&mut self, ip: IpAddr) -> Result<Option<LinkIndex>, Error> {
        self.look_up(message::look_up(ip)).map_err(|source| Error::LookUpRoute { ip, source })
    }

    fn look_up(&mut self, request: NetlinkRequest) -> Result<Option<LinkIndex>, netlink::Error> {
        match self.socket.get(request) {
            Ok(replies) => {
                let found = replies.iter().find_map(|reply| message::parse_direct_link(&reply).transpose());
                Ok(found.transpose()?)
            }
            // Unreachable, prohibited, a blackhole, no such family: the kernel answers each with a number of its own.
            Err(refused) if refused.errno().is_some() => Ok(None),
            Err(other) => Err(other),
        }
    }
}
