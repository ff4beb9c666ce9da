//! What can go wrong with sets.

use std::net::IpAddr;

use crate::{IpsetCause, SetName};

/// Which operation failed, on which set, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No connection to the kernel.
    #[error("cannot open a handle on IP sets: {0}")]
    Open(#[source] IpsetCause),
    /// The kernel knows nothing of IP sets.
    #[error("the kernel has no IP sets (is the module ip_set loaded?): {0}")]
    NoIpset(#[source] IpsetCause),
    /// The kernel's protocol is not one that we speak (6 or 7).
    #[error("the kernel speaks versions {oldest} to {newest} of ipset's protocol, not 6 or 7")]
    Protocol {
        /// Oldest version that the kernel speaks.
        oldest: u8,
        /// Newest version that the kernel speaks.
        newest: u8,
    },
    /// A set was not made.
    #[error("cannot create set {set}: {source}")]
    Create {
        /// The set.
        set: SetName,
        /// Why.
        source: IpsetCause,
    },
    /// A set of this name is there, but another one than was asked for; nothing was done.
    #[error("set {set} is {found}, not {desired}")]
    Different {
        /// Name of the set.
        set: SetName,
        /// Description of the set that was asked for.
        desired: String,
        /// Description of the set that is there.
        found: String,
    },
    /// A member was not added.
    #[error("cannot add {ip} to set {set}: {source}")]
    Add {
        /// The set.
        set: SetName,
        /// The member.
        ip: IpAddr,
        /// Why.
        source: IpsetCause,
    },
    /// The exchange broke while many members were added; any part of them may be in the set.
    #[error("cannot add {count} members to set {set}: {source}")]
    AddAll {
        /// The set.
        set: SetName,
        /// How many there are.
        count: usize,
        /// Why.
        source: IpsetCause,
    },
    /// A member was not removed.
    #[error("cannot remove {ip} from set {set}: {source}")]
    Remove {
        /// The set.
        set: SetName,
        /// The member.
        ip: IpAddr,
        /// Why.
        source: IpsetCause,
    },
    /// The members of a set could not be listed (that it does not exist is no error).
    #[error("cannot list set {set}: {source}")]
    List {
        /// The set.
        set: SetName,
        /// Why.
        source: IpsetCause,
    },
    /// The sets could not be listed.
    #[error("cannot list sets: {0}")]
    ListSets(#[source] IpsetCause),
    /// A set was not destroyed.
    #[error("cannot destroy set {set}: {source}")]
    Destroy {
        /// The set.
        set: SetName,
        /// Why.
        source: IpsetCause,
    },
}
