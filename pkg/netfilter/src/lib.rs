//! The firewall tables of a network namespace: which backend it uses, what its tables hold, and how they are changed: those of
//! nf_tables by the engine (`nftables`), legacy ones by one restore of the host's iptables tools per address family.
//!
//! Everything here looks at, and acts on, the network namespace of the calling thread; `netns` takes a thread
//! into one. Looking has no side effect: a legacy table is never listed before `/proc` shows that it exists,
//! because listing creates it.
//!
//! Called by `redirect` and by the agent. It decides nothing about rules; `rules` does.

mod backend;
mod builtin;
mod captured;
mod changes;
mod child;
mod error;
mod fingerprint;
mod firewall;
mod foreign;
#[doc(hidden)]
pub mod fuzzing;
mod glance;
mod inside;
mod legacy;
mod lock;
mod names;
mod presence;
mod tools;

pub use backend::{Backend, UnknownBackend};
pub use builtin::BuiltIn;
pub use captured::CapturedTraffic;
pub use changes::FamilyChanges;
pub use child::become_tool;
pub use error::Error;
pub use fingerprint::RulesFingerprint;
pub use firewall::{
    Firewall, FirewallOptions, NativeTables, NftAccess, ObservedTables, WaitingRestore, may_use_legacy,
};
pub use foreign::foreign;
pub use glance::RulesSnapshot;
pub use inside::inside;
pub use lock::XtablesLock;
pub use names::private_mounts;
pub use tools::available_backend;
