//! The engine: writes rules into the kernel's nf_tables without any tool, as `iptables-nft` would.
//!
//! [`read_tables`] reads the tables of the calling thread's network namespace into the form of a save, and [`commit`]
//! applies changes of both address families in one transaction: no pod is ever redirected in one family only, and the
//! kernel takes its lock and publishes a new generation once.
//!
//! Tables, chains and rules are those of `iptables-nft`, so its `iptables-save` prints them and its `iptables -D`
//! removes them. Where versions of iptables differ (ports, marks and NFLOG are expressions of nf_tables since 1.8.8,
//! and matches and targets of x_tables before), the form that all of them read is written, and every form is read.
//!
//! Any object in the kernel may come from a pod with `CAP_NET_ADMIN`: nothing here can panic, an expression that is not
//! understood makes its rule foreign, and reading is limited.
//!
//! Sources: the kernel's `include/uapi/linux/netfilter/nf_tables.h`, `nf_tables_compat.h` and `xt_*.h`; messages of
//! iptables 1.8.9. Called by `firewall`, which decides whether this crate applies a change, or a tool for legacy
//! tables.

mod commit;
mod decode;
mod encode;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod listing;
mod maps;
pub mod native;
mod sets;
pub mod uapi;
mod xt;

pub use commit::{Unsupported, commit, transaction_messages};
pub use decode::{decode_network, prefix_length, saved_rule};
pub use error::Error;
pub use listing::{generation_request, read_generation, read_tables, request_generation};
pub use maps::read_map_jumps;
pub use xt::XtablesDecoder;
