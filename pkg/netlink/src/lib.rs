//! Netlink: a codec that does no I/O, one blocking socket for requests, and one for notifications.
//!
//! For `hostnet` (links, addresses, routes, rules) and for whatever else speaks netlink to the kernel: nf_tables,
//! ipset. It knows the envelope only: message headers, attributes, acknowledgements, multi-part replies. What a
//! message means belongs to its caller.
//!
//! It must not enter namespaces (a socket belongs to the netns of the thread that opened it; see `netns`), must not
//! panic on any bytes, and stays synchronous and small, for it runs in the CNI plugin at every pod start.
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
pub use error::{Error, Malformed};
pub use list_bounds::ListBounds;
pub use message::{MessageFlags, NetlinkRequest};
pub use parse::{Attribute, Attributes, MessageIter, ReceivedMessage};
pub use socket::{
    DEFAULT_TIMEOUT, NetlinkProtocol, NotificationSocket, ParseReply, RepeatedRequests, ReplyMessages, Socket,
};

/// Size of `struct nlmsghdr`.
const MESSAGE_HEADER: usize = 16;
/// Size of `struct nlattr`.
const ATTRIBUTE_HEADER: usize = 4;

/// Rounds up to netlink's alignment of four bytes.
const fn align_length(length: usize) -> usize {
    length.saturating_add(3) & !3
}
