//! Presence of a ztunnel that serves the node's pods.

use std::time::{Duration, Instant};

use tracing::warn;

/// Time without ztunnel after which pods that request it are opened: longer than a ztunnel takes to reconnect.
const OPEN_AFTER: Duration = Duration::from_secs(5);
/// Time without ztunnel since the agent's start after which they are: one that could not connect meanwhile dials again after up to
/// 15 s.
const OPEN_AFTER_START: Duration = Duration::from_secs(20);

/// The connections of ztunnels.
#[derive(Debug)]
pub(super) struct ZtunnelPresence {
    /// Number of connected ztunnels.
    pub(super) connections: usize,
    /// When the last one disconnected.
    disconnected: Option<Instant>,
    /// When pods that request it are opened unless a ztunnel acknowledges its snapshot; `None`: one has.
    opening: Option<Instant>,
}

impl ZtunnelPresence {
    pub(super) fn new(now: Instant) -> ZtunnelPresence {
        ZtunnelPresence { connections: 0, disconnected: None, opening: Some(now + OPEN_AFTER_START) }
    }

    /// Records how many ztunnels are connected, and how many of these have acknowledged their snapshot.
    pub(super) fn set_connections(&mut self, number: usize, synced: usize) {
        if number == 0 && self.connections > 0 {
            self.disconnected = Some(Instant::now());
            warn!(target: "ambient", effect = "new connections of captured pods fail", "no ztunnel is connected");
        }
        // A ztunnel without its snapshot serves no pod: a connection alone is not enough.
        self.opening =
            if synced > 0 { None } else { self.opening.or_else(|| Some(Instant::now() + OPEN_AFTER)) };
        self.connections = number;
    }

    /// Returns when a ztunnel was last connected: now, if one is.
    pub(super) fn last_connected(&self) -> Option<Instant> {
        if self.connections > 0 { Some(Instant::now()) } else { self.disconnected }
    }

    /// Returns whether ztunnel has been unavailable for longer than pods wait for it.
    pub(super) fn is_unavailable(&self) -> bool {
        self.opening.is_some_and(|opening| opening <= Instant::now())
    }

    /// Returns when pods that request it are opened; `None`: a ztunnel is available, or they were opened already.
    pub(super) fn next_opening(&self) -> Option<Instant> {
        self.opening.filter(|opening| *opening > Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ztunnel_that_is_there_at_the_start_of_the_agent_has_time_to_dial_again() {
        let now = Instant::now();
        let is_unavailable = |age| ZtunnelPresence::new(now - Duration::from_secs(age)).is_unavailable();
        assert_eq!([10, 15, 20].map(is_unavailable), [false, false, true]);
        let mut presence = ZtunnelPresence::new(now);
        presence.set_connections(1, 0);
        let is_late = |opening: Instant| opening > now + Duration::from_secs(15);
        assert!(presence.next_opening().is_some_and(is_late), "it serves no pod yet");
        presence.set_connections(1, 1);
        assert_eq!(presence.next_opening(), None);
        presence.set_connections(0, 0);
        assert!(presence.next_opening().is_some_and(|opening| !is_late(opening)), "it dials at once");
    }
}
