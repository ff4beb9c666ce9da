//! The agent's side of ZDS, the protocol by which ztunnel receives the network namespaces of the pods on its node.
//!
//! ztunnel connects to a Unix socket (`SOCK_SEQPACKET`, one protobuf message per packet), sends a hello, and gets
//! requests one at a time: each is answered before the next one is sent. The first requests are a snapshot of all
//! workloads, the following ones are changes.
//!
//! Every ztunnel gets a snapshot. Which one is the newest, and so gets later changes, follows from the ztunnel pods,
//! which the agent announces. Any process of root can connect: connection places are reserved for those pods
//! (`places`).
//!
//! The [`Hub`] holds the desired workloads, and what each connected ztunnel has acknowledged. Requests are always the
//! difference, never a queue of changes: memory is bounded by the node's pods, and a ztunnel that reconnects, or that
//! takes over from one that has ended, gets what it lacks. ztunnel exits when requests arrive in a wrong order, so the
//! order is decided in one place (`plan`).
//!
//! Called by the agent, which sets and removes workloads and receives events about them. This crate must not decide
//! which pods are in the mesh, enter a namespace, or keep one open that is no longer desired.

mod connection_state;
mod conversation;
mod deadlines;
mod error;
mod hub;
mod ledger;
pub mod message;
mod notices;
mod packet;
mod peer;
mod place_guard;
mod places;
mod plan;
mod server;
mod state;
mod unsynced;
mod workload;

pub use deadlines::ZdsDeadlines;
pub use hub::{Hub, PeerLocator, ZdsEvent};
pub use peer::{PeerStanding, ZtunnelPod};
pub use places::{MAX_CONNECTIONS, MAX_PER_POD, MAX_UNKNOWN_PEERS};
pub use server::ZdsServer;
pub use socketfile::SocketError;
pub use state::ConnectionState;
pub use workload::Workload;
