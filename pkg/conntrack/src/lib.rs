//! Connections that survive the beginning of redirection.
//!
//! A rule of the `nat` table is asked once for each connection, at the first packet that connection tracking sees of it. In a
//! namespace without rules nothing is tracked, so when redirection begins, the next packet of each existing connection counts as
//! the first of a new one, goes to a proxy that knows nothing of it, and is answered with a reset. [`HeldConnections`] enters
//! those connections into the tracking (`ctnetlink`) as ones that were seen in both directions: no rule of `nat` is asked, and
//! they go on past the proxy until they close. Each such entry has the mark [`OUTSIDE`], by which [`outside_connections`] finds them.
//!
//! Everything acts on the network namespace of the calling thread, and needs `CAP_NET_ADMIN` in it.
//!
//! Sources: the kernel's `include/uapi/linux/netfilter/nfnetlink_conntrack.h`, `nf_conntrack_common.h` and
//! `nf_conntrack_tcp.h`; `net/netfilter/nf_conntrack_netlink.c`, `nf_nat_core.c` and `nf_conntrack_proto.c`.

mod begin;
mod direction;
mod entry;
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod held;
mod message;

pub use begin::{ConnectionsReport, apply_changes};
pub use direction::LocalPorts;
pub use entry::{FlowKey, TcpTuple, TrackedConnection, TrackedProtocol};
pub use handle::ConntrackHandle;
pub use held::{HeldConnections, KeptConnections, outside_connections, reset_connections};

use model::Mark;

/// Mark of the entries of connections that stay outside: bits that no redirection of Istio uses.
pub const OUTSIDE: Mark = Mark { value: 0x4d52_0000, mask: 0xffff_0000 };

/// Why connections were not kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Sockets cannot be listed.
    #[error("cannot list TCP sockets: {0}")]
    Sockets(#[source] netlink::Error),
    /// The tracking cannot be asked, or changed.
    #[error("cannot {step}: {source}")]
    Tracking {
        /// The operation that failed.
        step: &'static str,
        /// The kernel's error.
        source: netlink::Error,
    },
}
