//! Route lookups: the link that leads to an address, and the source address of packets to it.

use std::net::IpAddr;

use netlink::ParseReply;

use super::message;
use crate::{Error, LinkIndex, Mark, Route, RtnetlinkHandle, error::kernel_error};

impl RtnetlinkHandle {
    /// Looks up, by policy rules and all tables, the link on which an unmarked packet to this address would leave.
    /// `None`: the address is not on that link, because it is local, behind a gateway, without a route, or rejected.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the exchange fails.
    pub fn direct_link(&mut self, ip: IpAddr) -> Result<Option<LinkIndex>, Error> {
        self.look_up(ip, None, message::parse_direct_link)
    }

    /// Looks up the source address of an unmarked packet of this host to this address, unless its socket has another
    /// one. `None`: the packet would not be sent.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the exchange fails.
    pub fn source_to(&mut self, ip: IpAddr) -> Result<Option<IpAddr>, Error> {
        self.look_up(ip, None, message::parse_source)
    }

    /// Looks up, by policy rules and all tables, the route of a packet with this mark between these addresses, of which
    /// `from` is one of this host. The returned destination is the address itself, and the table is the one that has
    /// the route. `None`: the packet would not be sent.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the exchange fails.
    pub fn marked_route(&mut self, from: IpAddr, to: IpAddr, mark: Mark) -> Result<Option<Route>, Error> {
        self.look_up(to, Some((from, mark)), message::parse_answer)
    }

    fn look_up<T>(
        &mut self,
        ip: IpAddr,
        marked: Option<(IpAddr, Mark)>,
        parse: ParseReply<T>,
    ) -> Result<Option<T>, Error> {
        let failed = |source| kernel_error(format_args!("look up the route to {ip}"), source);
        match self.socket.get(message::look_up(ip, marked)) {
            Ok(replies) => replies.parse_first(parse).map_err(failed),
            // Unreachable, prohibited, a blackhole, no such family: each has its own error number.
            Err(refused) if refused.errno().is_some() => Ok(None),
            Err(other) => Err(failed(other)),
        }
    }
}
