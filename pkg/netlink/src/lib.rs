//! Netlink: a codec without I/O, a blocking socket for requests, and a socket for notifications. Also a socket for
//! netfilter's older interface.
//!
//! Used by `hostnet` (links, addresses, routes, rules) and by all others that send netlink messages to the kernel:
//! nf_tables, ipset. Handles only the envelope: message headers, attributes, acknowledgements, multi-part replies. The
//! meaning of a message is up to its caller.
//!
//! This crate must not enter namespaces (a socket belongs to the netns of the thread that opened it; see `netns`), must
//! not panic on any input, and stays synchronous and small, because it runs in the CNI plugin at every pod start.
//!
//! Sources: the kernel's `Documentation/userspace-api/netlink/intro.rst` and `include/uapi/linux/netlink.h`.

mod errno;
mod error;
mod exchange;
#[doc(hidden)]
pub mod fuzzing;
mod list_bounds;
mod message;
mod parse;
mod socket;

pub use errno::Errno;
pub use error::{Error, Malformed, allow_missing};
pub use list_bounds::ListBounds;
pub use message::{MessageFlags, NetlinkRequest};
pub use parse::{Attribute, Attributes, MessageIter, ReceivedMessage};
pub use socket::{
    ChangedReplies, DEFAULT_TIMEOUT, NetlinkProtocol, NotificationSocket, OptionSocket, ParseReply,
    RepeatedRequests, ReplyMessages, Socket,
};

/// Size of `struct nlmsghdr`.
const MESSAGE_HEADER: usize = 16;
/// Size of `struct nlattr`.
const ATTRIBUTE_HEADER: usize = 4;

/// Rounds up to netlink's alignment of four bytes.
const fn align_length(length: usize) -> usize {
    length.saturating_add(3) & !3
}
