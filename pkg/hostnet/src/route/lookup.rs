//! Which link leads to an address, and which source packets to it have.

use std::net::IpAddr;

use netlink::{NetlinkRequest, ParseReply};

use super::message;
use crate::{Error, LinkIndex, Mark, Route, RtnetlinkHandle, error::kernel_error};

impl RtnetlinkHandle {
    /// Asks the kernel on which link an unmarked packet to this address would leave, by policy rules and all tables. `None`: on
    /// none that the address itself is on. The address is local, a gateway is in between, no route leads there, or one rejects
    /// the packet.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the exchange fails.
    pub fn direct_link(&mut self, ip: IpAddr) -> Result<Option<LinkIndex>, Error> {
        self.look_up(ip, message::parse_direct_link)
    }

    /// Asks the kernel which source address an unmarked packet of this host to this address would have, unless its socket has
    /// another one. `None`: it would not be sent.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the exchange fails.
    pub fn source_to(&mut self, ip: IpAddr) -> Result<Option<IpAddr>, Error> {
        self.look_up(ip, message::parse_source)
    }

    /// Asks the kernel for the route of a packet with this mark between these addresses, of which `from` is one of this host, by
    /// policy rules and all tables. Its destination is the address, and its table the one that has it. `None`: it would not be sent.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] if the exchange fails.
    pub fn marked_route(&mut self, from: IpAddr, to: IpAddr, mark: Mark) -> Result<Option<Route>, Error> {
        self.ask_for_route(to, message::look_up_marked(from, to, mark.value), message::parse_answer)
    }

    fn look_up<T>(&mut self, ip: IpAddr, parse: ParseReply<T>) -> Result<Option<T>, Error> {
        self.ask_for_route(ip, message::look_up(ip), parse)
    }

    fn ask_for_route<T>(
        &mut self,
        ip: IpAddr,
        request: NetlinkRequest,
        parse: ParseReply<T>,
    ) -> Result<Option<T>, Error> {
        let failed = |source| kernel_error(format_args!("look up the route to {ip}"), source);
        match self.socket.get(request) {
            Ok(replies) => replies.parse_first(parse).map_err(failed),
            // Unreachable, prohibited, a blackhole, no such family: the kernel answers each with a number of its own.
            Err(refused) if refused.errno().is_some() => Ok(None),
            Err(other) => Err(failed(other)),
        }
    }
}
