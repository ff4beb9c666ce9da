//! Adding and removing members with their owners.

use std::net::IpAddr;

use model::PodUid;
use netlink::{MessageFlags, allow_missing};

use crate::error::kernel_error;
use crate::own_members::OwnMembers;
use crate::{Error, IpsetHandle, SetName, cause};

/// A member with its owner, and the kernel's reply about it.
type MemberAnswer<'a> = ((IpAddr, &'a PodUid), Result<(), netlink::Error>);

impl IpsetHandle {
    /// Adds addresses of the set's family, each with its owner, in few exchanges with the kernel; existing ones get the
    /// given owner. A refused address does not keep the others from being added.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`] for the first address that was refused, also if the set does not exist or is full, and if an
    /// exchange failed.
    pub fn add_owned<'a>(
        &mut self,
        set: &SetName,
        members: impl IntoIterator<Item = (IpAddr, &'a PodUid)>,
    ) -> Result<(), Error> {
        let members: Vec<_> = members.into_iter().collect();
        let (mut existing, mut first_refusal) = (Vec::new(), Ok(()));
        let mut own = OwnMembers::lock();
        for ((ip, owner), outcome) in self.send_members(MessageFlags::EXCLUSIVE, set, &members)? {
            match outcome {
                Ok(()) => own.record_add(set, ip),
                Err(error) if error.errno() == Some(cause::MEMBER) => existing.push((ip, owner)),
                Err(error) => first_refusal = first_refusal.and(Err(add_error(set, ip, error))),
            }
        }
        drop(own);
        for ((ip, _), outcome) in self.send_members(MessageFlags::NONE, set, &existing)? {
            first_refusal = first_refusal.and(outcome.map_err(|error| add_error(set, ip, error)));
        }
        first_refusal
    }

    /// Removes a member. Returns false if it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], also if the set does not exist.
    pub fn remove_member(&mut self, set: &SetName, ip: IpAddr) -> Result<bool, Error> {
        let mut own = OwnMembers::lock();
        let removed = allow_missing(self.socket.request(self.requests.remove(set, ip)), cause::MEMBER);
        let failed = |error| kernel_error(format_args!("remove {ip} from set {set}"), error);
        let Some(()) = removed.map_err(failed)? else { return Ok(false) };
        own.record_remove(set, ip);
        Ok(true)
    }

    /// Returns the kernel's reply for each of these members.
    fn send_members<'a>(
        &mut self,
        flags: MessageFlags,
        set: &SetName,
        members: &[(IpAddr, &'a PodUid)],
    ) -> Result<impl Iterator<Item = MemberAnswer<'a>>, Error> {
        let requests = self.requests;
        let sent = members.iter().map(|(ip, owner)| requests.add(flags, set, *ip, owner));
        let step = format_args!("add {} members to set {set}", members.len());
        let outcomes = self.socket.send_batch(sent).map_err(|source| kernel_error(step, source))?;
        Ok(members.iter().copied().zip(outcomes))
    }
}

fn add_error(set: &SetName, ip: IpAddr, source: netlink::Error) -> Error {
    kernel_error(format_args!("add {ip} to set {set}"), source)
}
