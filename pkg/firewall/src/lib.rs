//! Firewall tables of a network namespace: the backend, the content of the tables, and changes: of nf_tables by the
//! engine (`nftables`), of legacy tables by one restore of the host's iptables tools per address family
//! (`iptables-legacy`). Reading needs no tool.
//!
//! Everything here reads and changes the network namespace of the calling thread; `netns` enters one. Reading has no
//! side effect.
//!
//! Called by `redirect` and by the agent. This crate decides nothing about rules; `rules` does.

mod backend;
mod builtin;
mod captured;
mod changes;
mod error;
mod fingerprint;
mod firewall;
mod foreign;
#[doc(hidden)]
pub mod fuzzing;
mod generation;
mod in_use;
mod inactive;
mod inside;
mod owned;
mod presence;

pub use backend::{Backend, UnknownBackend, available_backend};
pub use builtin::BuiltIn;
pub use captured::CapturedTraffic;
pub use changes::FamilyChanges;
pub use error::Error;
pub use fingerprint::RulesFingerprint;
pub use firewall::{Firewall, FirewallOptions, NativeTables, ObservedTables, WaitingRestore, may_use_legacy};
pub use foreign::{foreign_effects, foreign_marks, inactive_rules};
pub use generation::RulesGeneration;
pub use in_use::{has_legacy_tool, legacy_chains, nft_names};
pub use inside::run_inside;
pub use iptables_legacy::{XtablesLock, become_tool};
pub use owned::describe_owned_tables;
