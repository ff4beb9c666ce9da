//! Presence of a ztunnel that serves the node's pods.

use std::time::{Duration, Instant};

use tracing::warn;

/// Time without ztunnel after which pods that request it are opened: longer than a ztunnel takes to reconnect.
const OPEN_AFTER: Duration = Duration::from_secs(5);

/// The connections of ztunnels.
#[derive(Debug)]
pub(super) struct ZtunnelPresence {
    /// Number of connected ztunnels.
    pub(super) connections: usize,
    /// When the last one disconnected.
    disconnected: Option<Instant>,
    /// Time since which no ztunnel has acknowledged its snapshot; `None`: one has.
    unavailable_since: Option<Instant>,
}

impl ZtunnelPresence {
    pub(super) fn new(now: Instant) -> ZtunnelPresence {
        ZtunnelPresence { connections: 0, disconnected: None, unavailable_since: Some(now) }
    }

    /// Records how many ztunnels are connected, and how many of these have acknowledged their snapshot.
    pub(super) fn set_connections(&mut self, number: usize, synced: usize) {
        if number == 0 && self.connections > 0 {
            self.disconnected = Some(Instant::now());
            warn!(target: "ambient", effect = "new connections of captured pods fail", "no ztunnel is connected");
        }
        // A ztunnel without its snapshot serves no pod: a connection alone is not enough.
        self.unavailable_since =
            if synced > 0 { None } else { self.unavailable_since.or_else(|| Some(Instant::now())) };
        self.connections = number;
    }

    /// Returns when a ztunnel was last connected: now, if one is.
    pub(super) fn last_connected(&self) -> Option<Instant> {
        if self.connections > 0 { Some(Instant::now()) } else { self.disconnected }
    }

    /// Returns whether ztunnel has been unavailable for longer than pods wait for it.
    pub(super) fn is_unavailable(&self) -> bool {
        self.unavailable_since.is_some_and(|since| since.elapsed() >= OPEN_AFTER)
    }

    /// Returns when pods that request it are opened; `None`: a ztunnel is available, or they were opened already.
    pub(super) fn next_opening(&self) -> Option<Instant> {
        self.unavailable_since.map(|since| since + OPEN_AFTER).filter(|due| *due > Instant::now())
    }
}
