//! The handle, and its operations on whole sets.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::PodUid;
use netlink::{
    Errno, Malformed, NetlinkProtocol, NetlinkRequest, ReceivedMessage, ReplyMessages, Socket, allow_missing,
};

use crate::error::kernel_error;
use crate::message::RequestBuilder;
use crate::own_members::{MemberSum, OwnMembers};
use crate::{Error, IpsetCause, SetInfo, SetName, SetSpec, reply, set::HASH_IP};

/// Protocol versions that we support: 7 since Linux 4.20, 6 since 2.6.39.
const PROTOCOLS: (u8, u8) = (6, 7);
/// Maximum number of attempts to create a set that other components create and destroy meanwhile.
const CREATE_ATTEMPTS: u32 = 8;

const OPENING: &str = "open a handle on IP sets";

/// A connection to the kernel's sets in one netns.
#[derive(Debug)]
pub struct IpsetHandle {
    pub(crate) socket: Socket,
    pub(crate) requests: RequestBuilder,
}

impl IpsetHandle {
    /// Opens a handle in the calling thread's netns, to which it stays bound on any thread.
    ///
    /// # Errors
    ///
    /// [`Error::NoIpset`] if the kernel was built without ipset or its module is missing, [`Error::Protocol`] if it
    /// supports only other versions, [`Error::Kernel`].
    pub fn open() -> Result<Self, Error> {
        let mut socket = Socket::open(NetlinkProtocol::Netfilter).map_err(open_error)?;
        let asking = RequestBuilder { protocol: PROTOCOLS.1 };
        let replies = socket.get(asking.protocol_versions()).map_err(open_error)?;
        let (oldest, newest) = version_range(&replies).map_err(|error| kernel_error(OPENING, error))?;
        let protocol =
            newest_common(PROTOCOLS, (oldest, newest)).ok_or(Error::Protocol { oldest, newest })?;
        Ok(Self { socket, requests: RequestBuilder { protocol } })
    }

    /// Creates a set, unless one with this name, type, family and comment support exists.
    ///
    /// # Errors
    ///
    /// [`Error::Different`] if another set has the name, [`Error::Kernel`].
    pub fn create_set(&mut self, spec: &SetSpec) -> Result<(), Error> {
        let failed = |source: IpsetCause| kernel_error(format_args!("create set {}", spec.name), source);
        for _ in 0..CREATE_ATTEMPTS {
            match self.socket.request(self.requests.create(spec)) {
                Ok(()) => return Ok(()),
                Err(refused) if refused.errno() == Some(Errno::EXIST) => {}
                Err(other) => return Err(failed(other.into())),
            }
            match self.find_header(&spec.name).map_err(failed)? {
                Some(found) if spec.is_served_by(&found) => return Ok(()),
                Some(found) => {
                    let desired = format!("{HASH_IP} {} with comments", spec.family);
                    return Err(different_error(&spec.name, desired, &found));
                }
                None => {} // destroyed meanwhile
            }
        }
        Err(failed(netlink::Error::Interrupted(CREATE_ATTEMPTS).into()))
    }

    /// Returns the request for a set without its members. The kernel replies with a list of one, and walks all sets only
    /// for a list of all.
    pub fn header_request(&self, set: &SetName) -> NetlinkRequest {
        self.requests.header(set)
    }

    /// Returns the number of members of each set, without those that this process has added, and with those that it has
    /// removed. The number is negative if other components removed members; a missing set has none. While the number is
    /// unchanged, most probably no other component has changed the set.
    ///
    /// Costs one small request for each. Useful only if a process changes sets of a single network namespace.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn foreign_member_counts(&mut self, sets: &[SetName]) -> Result<Vec<i64>, Error> {
        let own = OwnMembers::lock();
        sets.iter()
            .map(|set| Ok(i64::from(self.count_members(set)?).saturating_sub(own.member_sum(set).number)))
            .collect()
    }

    fn count_members(&mut self, set: &SetName) -> Result<u32, Error> {
        let found = self.find_header(set).map_err(|source| list_error(set, source))?;
        Ok(found.and_then(|found| found.elements).unwrap_or_default())
    }

    /// Like [`IpsetHandle::foreign_member_counts`], but returns a hash of these members, which also shows a replaced
    /// member. Lists the set.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`].
    pub fn foreign_member_hash(&mut self, set: &SetName) -> Result<u64, Error> {
        let own = OwnMembers::lock();
        let mut all = MemberSum::default();
        let mut malformed = None;
        let mut add = |part: &ReceivedMessage<'_>| {
            malformed = reply::parse_addresses(part, |ip| all.add(ip)).err().or(malformed);
        };
        let listed = self.socket.dump_each(&self.requests.list(set), &mut add);
        allow_missing(listed, Errno::NOENT).map_err(|error| list_error(set, error))?;
        if let Some(malformed) = malformed {
            return Err(list_error(set, malformed));
        }
        Ok(all.hashes.wrapping_sub(own.member_sum(set).hashes))
    }

    /// Returns the members of a set with their owners; `None` if the set does not exist.
    ///
    /// A member that exists all the time is listed, whatever other members are added or removed meanwhile. One that is
    /// being removed may be listed without its owner, which the kernel frees first.
    ///
    /// # Errors
    ///
    /// [`Error::Different`] if the set is not of type `hash:ip`, [`Error::Kernel`].
    pub fn member_owners(
        &mut self,
        set: &SetName,
    ) -> Result<Option<BTreeMap<IpAddr, Option<PodUid>>>, Error> {
        let found = self.dump_one(&self.requests.list(set)).map_err(|error| list_error(set, error))?;
        let Some(replies) = found else { return Ok(None) };
        let failed = |malformed: Malformed| list_error(set, malformed);
        let mut members = BTreeMap::new();
        for part in replies.iter() {
            let header = reply::parse_header(&part).map_err(failed)?;
            if let Some(found) = header.filter(|found| found.kind != HASH_IP) {
                return Err(different_error(set, HASH_IP.to_owned(), &found));
            }
            members.extend(reply::parse_members(&part).map_err(failed)?);
        }
        Ok(Some(members))
    }

    /// Destroys a set with its members. Returns false if it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::Kernel`], also if rules refer to the set; then nothing was changed.
    pub fn destroy_set(&mut self, set: &SetName) -> Result<bool, Error> {
        let mut own = OwnMembers::lock();
        let destroyed = allow_missing(self.socket.request(self.requests.destroy(set)), Errno::NOENT);
        let destroyed = destroyed.map_err(|error| kernel_error(format_args!("destroy set {set}"), error))?;
        let Some(()) = destroyed else { return Ok(false) };
        own.record_destroy(set);
        Ok(true)
    }

    fn find_header(&mut self, set: &SetName) -> Result<Option<SetInfo>, IpsetCause> {
        let Some(replies) = self.dump_one(&self.requests.header(set))? else { return Ok(None) };
        Ok(replies.parse_first(reply::parse_header)?)
    }

    fn dump_one(&mut self, message: &NetlinkRequest) -> Result<Option<ReplyMessages>, IpsetCause> {
        Ok(allow_missing(self.socket.dump(message), Errno::NOENT)?)
    }
}

/// Maps an error to [`Error::NoIpset`]: nfnetlink returns EINVAL for a missing subsystem, the socket layer
/// EPROTONOSUPPORT if nfnetlink is missing.
fn open_error(error: netlink::Error) -> Error {
    let missing = match &error {
        netlink::Error::Io { source, .. } => {
            source.raw_os_error() == Some(i32::from(Errno::PROTONOSUPPORT.0))
        }
        other => matches!(other.errno(), Some(Errno::INVAL | Errno::OPNOTSUPP)),
    };
    if missing { Error::NoIpset(error.into()) } else { kernel_error(OPENING, error) }
}

fn list_error(set: &SetName, source: impl Into<IpsetCause>) -> Error {
    kernel_error(format_args!("list set {set}"), source)
}

fn different_error(set: &SetName, desired: String, found: &SetInfo) -> Error {
    Error::Different { set: set.clone(), desired, found: found.to_string() }
}

fn version_range(replies: &ReplyMessages) -> Result<(u8, u8), netlink::Error> {
    let found = replies.parse_first(reply::parse_version_range)?;
    Ok(found.ok_or(Malformed("no answer to a question for versions"))?)
}

/// Returns the newest version in both ranges.
fn newest_common(ours: (u8, u8), theirs: (u8, u8)) -> Option<u8> {
    let newest = ours.1.min(theirs.1);
    (newest >= ours.0.max(theirs.0)).then_some(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_spoken() {
        assert_eq!(newest_common((6, 7), (6, 7)), Some(7));
        assert_eq!(newest_common((6, 7), (6, 6)), Some(6));
        assert_eq!(newest_common((6, 7), (7, 9)), Some(7));
        assert_eq!(newest_common((6, 7), (8, 9)), None);
        assert_eq!(newest_common((6, 7), (4, 5)), None);
    }

    #[test]
    fn a_kernel_without_sets_is_told_from_a_refusal() {
        let kernel = |errno| netlink::Error::Kernel { errno, message: None };
        assert!(matches!(open_error(kernel(Errno::INVAL)), Error::NoIpset(_)));
        assert!(matches!(open_error(kernel(Errno::PERM)), Error::Kernel { .. }));
        let io = |number| netlink::Error::Io { step: "x", source: std::io::Error::from_raw_os_error(number) };
        assert!(matches!(open_error(io(93)), Error::NoIpset(_)));
        assert!(matches!(open_error(io(24)), Error::Kernel { .. }));
    }
}
