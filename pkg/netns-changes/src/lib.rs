//! Reports within milliseconds that firewall rules, routes, policy rules, addresses or links of a network namespace
//! changed.
//!
//! For components that keep our objects in pods' namespaces, and would otherwise have to observe them all the time. A
//! change reports that something happened, never what: the caller observes the namespace and compares. This crate must
//! not decide anything, and changes nothing in a namespace; it keeps two sockets there while the namespace is watched.
//!
//! The kernel reports no changes of legacy tables (`iptables-legacy`), of ipset's sets or of sysctls. Do not watch a
//! namespace in which other components write large transactions, such as the node's with kube-proxy: the kernel builds
//! a message for every rule if there is any listener, which makes such a transaction up to a third slower
//! (`benches/cost.rs`).
//!
//! Sources: the kernel's `net/netfilter/nf_tables_api.c` (`nf_tables_gen_notify`), `include/uapi/linux/rtnetlink.h`,
//! `net/netlink/af_netlink.c`.

mod change;
mod disturbance;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod notification;
mod reporter;
mod rest;
mod sockets;
mod watcher;

pub use change::{Change, ChangeKinds, Writer};
pub use disturbance::NetnsDisturbance;
pub use error::Error;
pub use reporter::ChangeReporter;
pub use watcher::{ChangeWatcher, NetnsWatch, WatchId};
