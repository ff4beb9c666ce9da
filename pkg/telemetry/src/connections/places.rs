//! Connection slots of a server, and the choice of the connection to evict when all are taken.
//!
//! A server that only waits for a free slot can be starved by clients that hold all of them and send nothing. One that any client
//! can reach therefore always accepts a new client: connections with a request in flight keep their slots, and of the idle ones the
//! oldest is closed, first among those of the address with the most connections.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use tokio::task::{AbortHandle, Id};

use super::ConnectionPeer;

/// Counter of one connection's requests in flight: held by the connection, and once more by each request.
pub(super) type InFlight = Arc<()>;

/// Connections of a server, in the order in which they were accepted.
#[derive(Debug, Default)]
pub(super) struct ConnectionTable(Vec<ConnectionEntry>);

#[derive(Debug)]
struct ConnectionEntry {
    address: Option<IpAddr>,
    in_flight: Weak<()>,
    task: AbortHandle,
}

impl ConnectionEntry {
    fn is_idle(&self) -> bool {
        self.in_flight.strong_count() <= 1
    }
}

impl ConnectionTable {
    pub(super) fn insert(&mut self, peer: ConnectionPeer, in_flight: Weak<()>, task: AbortHandle) {
        let address = match peer {
            ConnectionPeer::Socket => None,
            ConnectionPeer::Address(address) | ConnectionPeer::Local { address, .. } => {
                Some(address.ip().to_canonical())
            }
        };
        self.0.push(ConnectionEntry { address, in_flight, task });
    }

    pub(super) fn release(&mut self, task: Id) {
        self.0.retain(|place| place.task.id() != task);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether any connection can be evicted.
    pub(super) fn has_idle(&self) -> bool {
        self.0.iter().any(ConnectionEntry::is_idle)
    }

    /// Closes one idle connection, if any.
    pub(super) fn evict_idle(&mut self) {
        let count = |address| self.0.iter().filter(|place| place.address == address).count();
        let idle = self.0.iter().enumerate().filter(|(_, place)| place.is_idle());
        // Among equals the first, which is the oldest.
        let victim = idle.rev().max_by_key(|(_, place)| count(place.address)).map(|(index, _)| index);
        if let Some(index) = victim {
            self.0.remove(index).task.abort();
        }
    }
}
