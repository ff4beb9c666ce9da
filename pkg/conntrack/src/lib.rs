//! Connections of a network namespace: its sockets ([`sockets`]), and those that survive the start of redirection.
//!
//! Rules of the `nat` table are evaluated once for each connection, at the first packet that connection tracking sees
//! of it. In a namespace without rules nothing is tracked, so when redirection starts, the next packet of each existing
//! connection counts as the first of a new one, is redirected to a proxy that does not know the connection, and is
//! answered with a reset. [`HeldConnections`] inserts those connections into connection tracking (`ctnetlink`) as ones
//! with packets in both directions: no rule of `nat` is evaluated, and they bypass the proxy until they close. Each
//! such entry has the mark [`OUTSIDE`], by which [`outside_connections`] finds them.
//!
//! Everything acts on the network namespace of the calling thread, and requires `CAP_NET_ADMIN` in it.
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
pub mod sockets;

pub use begin::{ConnectionsReport, apply_changes};
pub use direction::LocalPorts;
pub use entry::{FlowKey, TcpTuple, TrackedConnection};
pub use handle::ConntrackHandle;
pub use held::{HeldConnections, KeptConnections, outside_connections, reset_connections};

use model::Mark;

/// Mark of the entries of connections that bypass the proxy: bits that no redirection of Istio uses.
pub const OUTSIDE: Mark = Mark { value: 0x4d52_0000, mask: 0xffff_0000 };

/// Reason why connections were not kept.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Sockets cannot be listed.
    #[error("cannot list TCP sockets: {0}")]
    Sockets(#[source] netlink::Error),
    /// Connection tracking cannot be queried or changed.
    #[error("cannot {step}: {source}")]
    Tracking {
        /// The operation that failed.
        step: &'static str,
        /// The kernel's error.
        source: netlink::Error,
    },
}
