//! Tables of the kernel's ip_tables ("legacy" tables), read without tools; and the host's iptables tools, which change them, and
//! those of nf_tables where the engine cannot.
//!
//! Reading has no side effect: a table is never asked for before `/proc` shows that it exists, because asking makes it. Everything
//! here looks at, and acts on, the network namespace of the calling thread. It decides nothing: `firewall` chooses the tables,
//! and `rules` what is in them.
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
    LONGEST, LONGEST_OF_NODE, LegacyRule, PlainVerdict, read_listing, read_rules, table_names,
    tables_fingerprint,
};
pub use tools::{IptablesTools, ToolKind, ToolVerb};
