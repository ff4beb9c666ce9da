//! Sets of IP addresses in the kernel (ipset, type `hash:ip`) of one network namespace: creating, filling and listing
//! them.
//!
//! Used by the agent, which keeps the addresses of enrolled pods in two sets, one per family, for matches in firewall
//! rules. The comment of a member is the UID of its pod. An [`IpsetHandle`] works in the netns in which it was opened
//! (enter one through `netns`). Every change is idempotent. This crate decides nothing.
//!
//! Sources: `include/uapi/linux/netfilter/ipset/{ip_set,ip_set_hash}.h` and, for details,
//! `net/netfilter/ipset/{ip_set_core,ip_set_hash_gen,ip_set_hash_ip}.c`.

mod cause;
mod error;
mod handle;
mod members;
mod message;
mod numbers;
mod own_members;
mod reply;
mod set;

pub use cause::IpsetCause;
pub use error::Error;
pub use handle::IpsetHandle;
pub use model::Family;
pub use numbers::{set_name, set_number};
pub use reply::{parse_header, parse_members};
pub use set::{InvalidSetName, SetInfo, SetName, SetSpec};
