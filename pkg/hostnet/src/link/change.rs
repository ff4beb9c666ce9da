//! Changes of links.

use netlink::{Errno, MessageFlags, NetlinkRequest};

use super::{IFF_UP, NewVeth, RTM_NEWLINK, link_header, new::VETH};
use crate::{ChangeOutcome, Error, LinkIndex, RtnetlinkHandle, error::kernel_error};

const RTM_DELLINK: u16 = 17;

impl RtnetlinkHandle {
    /// Creates both links, initially down. [`ChangeOutcome::No`] means that a veth link of the first name exists; its
    /// peer, and the netns of the peer, are not checked.
    ///
    /// The kernel also reports "exists" if a link has the peer's name. That is an error.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`]; [`Error::UnsuitableLink`] for a name that is empty or a pattern.
    pub fn create_veth(&mut self, link: &NewVeth<'_>) -> Result<ChangeOutcome, Error> {
        link.check_names()?;
        let refused = match self.socket.request(link.creation_request()) {
            Ok(()) => return Ok(ChangeOutcome::Yes),
            Err(refused) => refused,
        };
        if refused.errno() == Some(Errno::EXIST) && self.has_veth(link.name)? {
            return Ok(ChangeOutcome::No);
        }
        Err(kernel_error(format_args!("create link {link}"), refused))
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

    fn has_veth(&mut self, name: &str) -> Result<bool, Error> {
        Ok(self.link_by_name(name)?.is_some_and(|link| link.kind.as_deref() == Some(VETH)))
    }
}
