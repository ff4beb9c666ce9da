//! Changes of links.

use netlink::{Errno, MessageFlags, NetlinkRequest};

use super::{IFF_UP, NewVeth, RTM_NEWLINK, link_header};
use crate::{ChangeOutcome, Error, LinkIndex, RtnetlinkHandle, error::kernel_error};

const RTM_DELLINK: u16 = 17;

impl RtnetlinkHandle {
    /// Creates both links, initially down.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], also if a link has one of the names.
    pub fn create_veth(&mut self, link: &NewVeth<'_>) -> Result<(), Error> {
        let created = self.socket.request(link.creation_request());
        created.map_err(|error| kernel_error(format_args!("create link {link}"), error))
    }

    /// Deletes a link, if it exists; of a veth, the other end, too.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn delete_link(&mut self, index: LinkIndex) -> Result<ChangeOutcome, Error> {
        let request = NetlinkRequest::new(RTM_DELLINK, MessageFlags::NONE, &link_header(index, 0));
        let deleted = self.send_change(request, &[Errno::NODEV]);
        deleted.map_err(|error| kernel_error(format_args!("delete link {}", self.link_name(index)), error))
    }

    /// Sets a link up, unless it is up.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn set_link_up(&mut self, index: LinkIndex) -> Result<ChangeOutcome, Error> {
        if self.link_by_index(index)?.is_some_and(|link| link.is_up) {
            return Ok(ChangeOutcome::No);
        }
        let request = NetlinkRequest::new(RTM_NEWLINK, MessageFlags::NONE, &link_header(index, IFF_UP));
        let changed = self.send_change(request, &[]);
        changed.map_err(|error| kernel_error(format_args!("set link {} up", self.link_name(index)), error))
    }
}
