//! Whether a ztunnel is there that serves the node's pods.

use std::time::{Duration, Instant};

use tracing::warn;

/// A node without ztunnel for so long opens the pods that ask for it: longer than a ztunnel takes to connect again.
const OPEN_AFTER: Duration = Duration::from_secs(5);

/// The connections of ztunnels.
#[derive(Debug)]
pub(super) struct ZtunnelPresence {
    /// Ztunnels that are connected.
    pub(super) connections: usize,
    /// When the last one disconnected.
    disconnected: Option<Instant>,
    /// Since when no ztunnel has acknowledged its snapshot; `None`: one has.
    unavailable_since: Option<Instant>,
}

impl ZtunnelPresence {
    pub(super) fn new(now: Instant) -> ZtunnelPresence {
        ZtunnelPresence { connections: 0, disconnected: None, unavailable_since: Some(now) }
    }

    /// Takes in how many are connected, and how many of these have acknowledged their snapshot.
    pub(super) fn set_connections(&mut self, number: usize, synced: usize) {
        if number == 0 && self.connections > 0 {
            self.disconnected = Some(Instant::now());
            warn!(target: "ambient", effect = "new connections of captured pods fail", "no ztunnel is connected");
        }
        // One without its snapshot serves no pod: to be connected is not enough.
        self.unavailable_since =
            if synced > 0 { None } else { self.unavailable_since.or_else(|| Some(Instant::now())) };
        self.connections = number;
    }

    /// When one was last connected: now, if one is.
    pub(super) fn last_connected(&self) -> Option<Instant> {
        if self.connections > 0 { Some(Instant::now()) } else { self.disconnected }
    }

    /// No ztunnel has been there for longer than pods wait for one.
    pub(super) fn is_unavailable(&self) -> bool {
        self.unavailable_since.is_some_and(|since| since.elapsed() >= OPEN_AFTER)
    }

    /// When pods that ask for it are opened; `None`: a ztunnel is there, or they were.
    pub(super) fn next_opening(&self) -> Option<Instant> {
        self.unavailable_since.map(|since| since + OPEN_AFTER).filter(|due| *due > Instant::now())
    }
}
