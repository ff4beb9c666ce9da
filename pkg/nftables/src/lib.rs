//! The engine: rules in the kernel's nf_tables without any tool, as `iptables-nft` would have put them there.
//!
//! [`read_tables`] reads what the calling thread's network namespace holds into the form of a save, and [`commit`] carries out
//! changes of both address families in one transaction: nobody ever sees a pod redirected in one family and not in the
//! other, and the kernel takes its lock and publishes a new generation once.
//!
//! The tables, chains and rules are those of `iptables-nft`, so its `iptables-save` prints them and its `iptables -D`
//! removes them. Where versions of iptables differ (ports, marks and NFLOG are expressions of nf_tables since 1.8.8, and
//! matches and targets of x_tables before), what is written is what all of them read, and every form is read.
//!
//! Whatever the kernel holds may have been put there by a pod with `CAP_NET_ADMIN`: nothing here can panic, an expression
//! that is not understood makes its rule foreign, and what is read has bounds.
//!
//! Sources: the kernel's `include/uapi/linux/netfilter/nf_tables.h`, `nf_tables_compat.h` and `xt_*.h`; what iptables 1.8.9
//! sends. Called by `firewall`, which decides who makes a change: this crate, or a tool for legacy tables.

mod commit;
mod decode;
mod encode;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod listing;
pub mod native;
mod sets;
pub mod uapi;
mod xt;

pub use commit::{Unsupported, commit, transaction_messages};
pub use decode::{DecodedRule, prefix_of};
pub use error::Error;
pub use listing::{GenerationReader, generation_request, read_generation, read_tables};
pub use xt::XtablesDecoder;
