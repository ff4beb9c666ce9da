//! The agent's side of ZDS, the protocol by which ztunnel is handed the network namespaces of the pods on its node.
//!
//! ztunnel dials a Unix socket (`SOCK_SEQPACKET`, one protobuf message per packet), says hello, and gets requests one
//! at a time: each is answered before the next one is sent. First a snapshot of all workloads, then changes.
//!
//! Every ztunnel gets a snapshot. Which of several is the newest, and so gets what comes after that, follows from their
//! pods; the agent tells which there are. Any process of root can dial: places are kept for those pods (`places`).
//!
//! The [`Hub`] holds what is desired, and what each connected ztunnel has acknowledged. What is sent is always the
//! difference, never a queue of changes: memory is bounded by the node's pods, and a ztunnel that reconnects, or that
//! takes over from one that left, gets what it lacks. ztunnel ends its process when requests come in a wrong order, so
//! the order is decided in one place (`plan`).
//!
//! Called by the agent, which puts and removes workloads and is told what became of them. It must not decide who is in
//! the mesh, enter a namespace, or keep one open that is not desired any more.

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
mod place_holders;
mod places;
mod plan;
mod server;
mod state;
mod unsynced;
mod workload;

pub use deadlines::ZdsDeadlines;
pub use error::Error;
pub use hub::{Hub, PeerLocator, ZdsEvent};
pub use peer::{PeerStanding, ZtunnelPod};
pub use places::{MAX_CONNECTIONS, MAX_PER_POD, MAX_UNKNOWN_PEERS};
pub use server::ZdsServer;
pub use state::{ConnectionState, WorkloadProgress, WorkloadState, ZdsState};
pub use workload::Workload;
