//! Matches and targets of x_tables, as the kernel's structures lay them out (`include/uapi/linux/netfilter/xt_*.h`).
//!
//! Numbers are in host byte order unless a comment says otherwise. A structure is followed by zeros up to a multiple of
//! eight bytes (`XT_ALIGN`); the kernel may leave out pointers of its own at the end when it shows one.

mod layout;
mod matches;
mod targets;

pub(crate) use matches::{decode_match, encode_match};
pub(crate) use targets::{decode_target, encode_target};

/// A match or target: its name, its revision, and its structure.
pub(crate) type XtInfo = (&'static str, u32, Vec<u8>);
