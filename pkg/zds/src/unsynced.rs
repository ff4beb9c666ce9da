//! Which ztunnels have connected without acknowledging a snapshot, and since when.
//!
//! A ztunnel that does not acknowledge is disconnected and dials again, so the time is kept across its connections.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use model::PodUid;

use crate::peer::ZtunnelPeer;

/// A ztunnel that dialled again after this time is not the one that left: its longest back-off is 15 s.
const FORGOTTEN: Duration = Duration::from_secs(20);

/// By a ztunnel's addresses; those that are not known share one entry.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedZtunnels(BTreeMap<Vec<IpAddr>, UnsyncedEntry>);

#[derive(Debug)]
struct UnsyncedEntry {
    since: Instant,
    /// UID of its pod, as far as it was known when it left.
    pod: Option<PodUid>,
    /// When it left; `None`: it is connected.
    left: Option<Instant>,
}

impl UnsyncedZtunnels {
    /// Snapshots are sent from now on.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.0.values_mut().for_each(|entry| entry.since = now);
    }

    pub(crate) fn joined(&mut self, peer: &ZtunnelPeer, now: Instant) {
        self.forget(now);
        self.0.entry(key(peer)).or_insert(UnsyncedEntry { since: now, pod: None, left: None }).left = None;
    }

    pub(crate) fn synced(&mut self, peer: &ZtunnelPeer) {
        self.0.remove(&key(peer));
    }

    pub(crate) fn left(&mut self, peer: &ZtunnelPeer, now: Instant) {
        if let Some(entry) = self.0.get_mut(&key(peer)) {
            entry.left = Some(now);
            entry.pod = peer.pod.as_ref().map(|pod| pod.uid.clone()).or(entry.pod.take());
        }
    }

    /// The one that waits longest: since when, and the UID of its pod, by those who are connected or as it was known before.
    pub(crate) fn longest<'a>(
        &mut self,
        now: Instant,
        mut connected: impl Iterator<Item = &'a ZtunnelPeer>,
    ) -> Option<(Instant, Option<PodUid>)> {
        self.forget(now);
        let (addresses, entry) = self.0.iter().min_by_key(|(_, entry)| entry.since)?;
        let peer = connected.find(|peer| key(peer) == *addresses);
        let pod = peer.and_then(|peer| peer.pod.as_ref()).map(|pod| pod.uid.clone());
        Some((entry.since, pod.or_else(|| entry.pod.clone())))
    }

    fn forget(&mut self, now: Instant) {
        let is_old = |left: Instant| now.saturating_duration_since(left) > FORGOTTEN;
        self.0.retain(|_, entry| !entry.left.is_some_and(is_old));
    }
}

fn key(peer: &ZtunnelPeer) -> Vec<IpAddr> {
    peer.addresses.iter().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_kept_while_it_dials_again_and_forgotten_when_it_stays_away() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let peer = ZtunnelPeer::default();
        let mut unsynced = UnsyncedZtunnels::default();
        let since = |unsynced: &mut UnsyncedZtunnels, now| {
            unsynced.longest(now, [].into_iter()).map(|(since, _)| since)
        };
        assert_eq!(since(&mut unsynced, at(0)), None);
        unsynced.joined(&peer, at(0));
        for again in [5, 10, 15] {
            unsynced.left(&peer, at(again));
            unsynced.joined(&peer, at(again + 1));
            assert_eq!(since(&mut unsynced, at(again + 2)), Some(at(0)));
        }
        unsynced.left(&peer, at(20));
        assert_eq!(since(&mut unsynced, at(40)), Some(at(0)));
        assert_eq!(since(&mut unsynced, at(41)), None);
        unsynced.joined(&peer, at(50));
        unsynced.synced(&peer);
        assert_eq!(since(&mut unsynced, at(51)), None);
    }
}
