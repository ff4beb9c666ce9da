//! Tables of the kernel's ip_tables ("legacy" tables), read without tools; and the host's iptables tools, which change
//! them, and tables of nf_tables where the engine cannot.
//!
//! Reading has no side effect: a table is never requested before `/proc` shows that it exists, because a request would
//! create it. Everything here reads and changes the network namespace of the calling thread. This crate decides
//! nothing: `firewall` selects the tables, and `rules` their content.
//!
//! Sources: the kernel's `include/uapi/linux/netfilter_ipv4/ip_tables.h`, `netfilter_ipv6/ip6_tables.h`, `netfilter/x_tables.h`.

mod child;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod lock;
mod names;
mod read;
mod tools;

pub use child::{FinishedTool, RunningTool, ToolInput, become_tool};
pub use error::Error;
pub use lock::{LOCK_VARIABLE, XtablesLock};
pub use names::private_mounts;
pub use read::{
    LONGEST, LONGEST_OF_NODE, LegacyRule, read_listing, read_rules, table_names, tables_fingerprint,
};
pub use tools::{IptablesTools, ToolKind, ToolVerb};
