//! Numbers of other network namespaces.

use std::os::fd::{AsRawFd, BorrowedFd};

use netlink::{Malformed, MessageFlags, NetlinkRequest, ReceivedMessage};

use crate::{Error, RtnetlinkHandle, error::kernel_error};

const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;

const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;

impl RtnetlinkHandle {
    /// Returns the number of another netns, given as its open file (`netns::Netns`), in the handle's netns; `None` if
    /// it has no number. The kernel assigns one on first use: a netns that holds the [peer](crate::Link::peer_netns) of
    /// a link here has one as soon as that link is read.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], also if the file is no netns.
    pub fn netns_number(&mut self, netns: BorrowedFd<'_>) -> Result<Option<i32>, Error> {
        let number = self.request_number(netns);
        number.map_err(|error| kernel_error("query the number of a network namespace", error))
    }

    fn request_number(&mut self, netns: BorrowedFd<'_>) -> Result<Option<i32>, netlink::Error> {
        // struct rtgenmsg: family
        let mut request = NetlinkRequest::new(RTM_GETNSID, MessageFlags::NONE, &[0]);
        request.put_u32(NETNSA_FD, netns.as_raw_fd().cast_unsigned());
        let replies = self.socket.get(request)?;
        let number = replies.parse_first(parse_netns_number)?;
        let number = number.ok_or(Malformed("no answer on the number of a netns"))?;
        Ok((number >= 0).then_some(number))
    }
}

fn parse_netns_number(reply: &ReceivedMessage<'_>) -> Result<Option<i32>, Malformed> {
    let Some((_, attributes)) = reply.split_kind::<1>(RTM_NEWNSID)? else { return Ok(None) };
    attributes.find(NETNSA_NSID).map(|number| number.read_array().map(i32::from_ne_bytes)).transpose()
}
