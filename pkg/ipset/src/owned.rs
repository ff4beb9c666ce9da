//! Members with an owner: the comment of an address is the UID of the pod that has it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::PodUid;

use crate::{Comment, Error, IpsetHandle, SetEntry, SetName, SetSpec};

impl IpsetHandle {
    /// Adds addresses of one family, each with its owner; those that are there get the owner that is given. An owner
    /// that could be no comment is left out: it is a hint for people, and for who comes after us.
    ///
    /// # Errors
    ///
    /// The first refusal, of the first address that was refused; others were added.
    pub fn add_owned<'a>(
        &mut self,
        set: &SetSpec,
        members: impl IntoIterator<Item = (IpAddr, &'a PodUid)>,
    ) -> Result<(), Error> {
        let entries: Vec<SetEntry> = members.into_iter().map(|(ip, owner)| owned_entry(ip, owner)).collect();
        if entries.is_empty() {
            return Ok(());
        }
        let bulk = self.add_all(set, &entries)?;
        bulk.failed.into_iter().next().map_or(Ok(()), |failed| Err(failed.error))
    }

    /// The members of a set with their owners; none if there is no set.
    ///
    /// # Errors
    ///
    /// As [`IpsetHandle::list_members`].
    pub fn member_owners(
        &mut self,
        set: &SetName,
    ) -> Result<Option<BTreeMap<IpAddr, Option<PodUid>>>, Error> {
        let owner = |entry: SetEntry| (entry.ip, entry.comment.map(|comment| comment.as_str().into()));
        Ok(self.list_members(set)?.map(|members| members.into_iter().map(owner).collect()))
    }
}

fn owned_entry(ip: IpAddr, owner: &PodUid) -> SetEntry {
    Comment::new(owner.as_str())
        .map_or_else(|_| SetEntry::new(ip), |comment| SetEntry::with_comment(ip, comment))
}
