//! Adding and removing members.

use std::net::IpAddr;

use crate::own_members::OwnMembers;
use crate::{Error, Family, IpsetHandle, SetEntry, SetName, SetSpec, cause};

/// Whether a member or set was removed, or was not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum RemoveOutcome {
    /// The member or set was removed.
    Yes,
    /// There was none.
    Missing,
}

/// Result of adding many members.
#[derive(Debug, Default)]
#[must_use]
pub struct BulkOutcome {
    /// How many were added.
    pub added: usize,
    /// How many were members already.
    pub existed: usize,
    /// Members that were not added, or did not get their comment, in the order in which they were given.
    pub failed: Vec<FailedMember>,
}

/// One of many members that was not added.
#[derive(Debug)]
pub struct FailedMember {
    /// Which one of those given, from 0.
    pub index: usize,
    /// Why.
    pub error: Error,
}

impl IpsetHandle {
    /// Adds many members, in few exchanges with the kernel. If an address is one already, its comment becomes the entry's, or
    /// stays if the entry has none. One that fails does not keep the others from being added.
    ///
    /// # Errors
    ///
    /// [`Error::AddAll`] if an exchange broke. Errors of single members are in [`BulkOutcome::failed`]: [`Error::WrongFamily`];
    /// [`Error::NoComments`] if there is a comment and the set was made without; [`Error::Add`], also if there is no such set
    /// or it is full.
    pub fn add_all(&mut self, set: &SetSpec, entries: &[SetEntry]) -> Result<BulkOutcome, Error> {
        let mut bulk = BulkOutcome::default();
        let mut fitting = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            match check_family(set, entry.ip) {
                Ok(()) => fitting.push((index, entry)),
                Err(error) => bulk.failed.push(FailedMember { index, error }),
            }
        }
        let mut own = OwnMembers::lock();
        let existing = self.add_fitting(&set.name, &fitting, &mut own, &mut bulk)?;
        drop(own);
        self.update_comments(&set.name, &existing, &mut bulk)?;
        bulk.failed.sort_by_key(|failed| failed.index);
        Ok(bulk)
    }

    /// Removes a member, if it is one.
    ///
    /// # Errors
    ///
    /// [`Error::WrongFamily`]; [`Error::Remove`], also if there is no such set.
    pub fn remove_member(&mut self, set: &SetSpec, ip: IpAddr) -> Result<RemoveOutcome, Error> {
        check_family(set, ip)?;
        let mut own = OwnMembers::lock();
        match self.socket.request(self.requests.remove(&set.name, ip)) {
            Ok(()) => {
                own.record_remove(&set.name, ip);
                Ok(RemoveOutcome::Yes)
            }
            Err(refused) if refused.errno() == Some(cause::MEMBER) => Ok(RemoveOutcome::Missing),
            Err(other) => Err(Error::Remove { set: set.name.clone(), ip, source: other.into() }),
        }
    }

    /// Adds what is not there, and answers with what is.
    fn add_fitting<'a>(
        &mut self,
        set: &SetName,
        entries: &[(usize, &'a SetEntry)],
        own: &mut OwnMembers,
        bulk: &mut BulkOutcome,
    ) -> Result<Vec<(usize, &'a SetEntry)>, Error> {
        let requests = self.requests;
        let sent = self.socket.send_batch(entries.iter().map(|(_, entry)| requests.add(set, entry)));
        let outcomes = sent.map_err(|source| batch_error(set, entries.len(), source))?;
        let mut existing = Vec::new();
        for (&(index, entry), outcome) in entries.iter().zip(outcomes) {
            match outcome {
                Ok(()) => {
                    bulk.added += 1;
                    own.record_add(set, entry.ip);
                }
                Err(refused) if refused.errno() == Some(cause::MEMBER) => existing.push((index, entry)),
                Err(other) => bulk.failed.push(FailedMember { index, error: not_added(set, entry, other) }),
            }
        }
        Ok(existing)
    }

    /// Gives members that are there their comments.
    fn update_comments(
        &mut self,
        set: &SetName,
        entries: &[(usize, &SetEntry)],
        bulk: &mut BulkOutcome,
    ) -> Result<(), Error> {
        let (with, without): (Vec<_>, Vec<_>) =
            entries.iter().copied().partition(|(_, entry)| entry.comment.is_some());
        bulk.existed += without.len();
        let requests = self.requests;
        let sent = self.socket.send_batch(with.iter().map(|(_, entry)| requests.add_or_update(set, entry)));
        let outcomes = sent.map_err(|source| batch_error(set, entries.len(), source))?;
        for ((index, entry), outcome) in with.into_iter().zip(outcomes) {
            match outcome {
                Ok(()) => bulk.existed += 1,
                Err(source) => bulk.failed.push(FailedMember { index, error: not_added(set, entry, source) }),
            }
        }
        Ok(())
    }
}

fn check_family(set: &SetSpec, ip: IpAddr) -> Result<(), Error> {
    if Family::of_ip(ip) == set.family {
        return Ok(());
    }
    Err(Error::WrongFamily { ip, set: set.name.clone(), family: set.family })
}

fn not_added(set: &SetName, entry: &SetEntry, source: netlink::Error) -> Error {
    if source.errno() == Some(cause::COMMENT) {
        return Error::NoComments { set: set.clone() };
    }
    Error::Add { set: set.clone(), ip: entry.ip, source: source.into() }
}

fn batch_error(set: &SetName, count: usize, source: netlink::Error) -> Error {
    Error::AddAll { set: set.clone(), count, source: source.into() }
}
