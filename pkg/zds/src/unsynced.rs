//! Ztunnels that have connected without acknowledging a snapshot, and since when.
//!
//! A ztunnel that does not acknowledge is disconnected and reconnects, so the time is kept across its connections.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use model::PodUid;

use crate::peer::{PeerNetns, ZtunnelPeer};

/// Time after which a ztunnel that connects is not the one that disconnected: ztunnel's longest back-off is 15 s.
const FORGOTTEN: Duration = Duration::from_secs(20);

/// Entries by a ztunnel's network namespace ([`PeerNetns::key`]); ztunnels whose namespace is not known share one
/// entry.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedZtunnels(BTreeMap<PeerNetns, UnsyncedEntry>);

#[derive(Debug)]
struct UnsyncedEntry {
    since: Instant,
    /// UID of its pod, as far as known when it disconnected.
    pod: Option<PodUid>,
    /// Whether it was an unknown peer when it disconnected.
    is_unknown_peer: bool,
    /// When it disconnected; `None`: it is connected.
    left: Option<Instant>,
}

impl UnsyncedZtunnels {
    /// Restarts all waiting times, because snapshots are sent from now on.
    pub(crate) fn begin_snapshots(&mut self, now: Instant) {
        self.0.values_mut().for_each(|entry| entry.since = now);
    }

    pub(crate) fn record_connect(&mut self, peer: &ZtunnelPeer, now: Instant) {
        self.drop_expired(now);
        let fresh = UnsyncedEntry { since: now, pod: None, is_unknown_peer: false, left: None };
        self.0.entry(peer.netns.key()).or_insert(fresh).left = None;
    }

    pub(crate) fn record_sync(&mut self, peer: &ZtunnelPeer) {
        self.0.remove(&peer.netns.key());
    }

    pub(crate) fn record_disconnect(&mut self, peer: &ZtunnelPeer, now: Instant) {
        if let Some(entry) = self.0.get_mut(&peer.netns.key()) {
            entry.left = Some(now);
            entry.is_unknown_peer = peer.is_unknown_peer();
            entry.pod = peer.pod.as_ref().map(|pod| pod.uid.clone()).or(entry.pod.take());
        }
    }

    /// Returns the ztunnel that waits longest, of all or of those that are no unknown peers: since when, and the UID of
    /// its pod, by the connected peers or as known before.
    pub(crate) fn longest_waiting(
        &mut self,
        now: Instant,
        connected: &[&ZtunnelPeer],
        without_unknown: bool,
    ) -> Option<(Instant, Option<PodUid>)> {
        self.drop_expired(now);
        let of = |netns: &PeerNetns| connected.iter().find(|peer| peer.netns.key() == *netns);
        let counts = |(netns, entry): &(&PeerNetns, &UnsyncedEntry)| {
            !without_unknown || !of(netns).map_or(entry.is_unknown_peer, |peer| peer.is_unknown_peer())
        };
        let (netns, entry) = self.0.iter().filter(counts).min_by_key(|(_, entry)| entry.since)?;
        let peer = of(netns);
        let pod = peer.and_then(|peer| peer.pod.as_ref()).map(|pod| pod.uid.clone());
        Some((entry.since, pod.or_else(|| entry.pod.clone())))
    }

    fn drop_expired(&mut self, now: Instant) {
        let is_old = |left: Instant| now.saturating_duration_since(left) > FORGOTTEN;
        self.0.retain(|_, entry| !entry.left.is_some_and(is_old));
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, net::IpAddr};

    use super::*;

    #[test]
    fn the_time_is_kept_while_it_dials_again_and_forgotten_when_it_stays_away() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let peer = ZtunnelPeer::new(PeerNetns::default(), &[]);
        let mut unsynced = UnsyncedZtunnels::default();
        let since = |unsynced: &mut UnsyncedZtunnels, now| {
            unsynced.longest_waiting(now, &[], false).map(|(since, _)| since)
        };
        assert_eq!(since(&mut unsynced, at(0)), None);
        unsynced.record_connect(&peer, at(0));
        for again in [5, 10, 15] {
            unsynced.record_disconnect(&peer, at(again));
            unsynced.record_connect(&peer, at(again + 1));
            assert_eq!(since(&mut unsynced, at(again + 2)), Some(at(0)));
        }
        unsynced.record_disconnect(&peer, at(20));
        assert_eq!(since(&mut unsynced, at(40)), Some(at(0)));
        assert_eq!(since(&mut unsynced, at(41)), None);
        unsynced.record_connect(&peer, at(50));
        assert_eq!(unsynced.longest_waiting(at(50), &[&peer], true), None, "a stranger");
        unsynced.record_sync(&peer);
        assert_eq!(since(&mut unsynced, at(51)), None);
    }

    #[test]
    fn the_namespace_counts_and_not_which_addresses_were_seen_there() {
        let (start, mut unsynced) = (Instant::now(), UnsyncedZtunnels::default());
        let id = Some(netns::NetnsId { dev: 4, ino: 7 });
        let addresses = [IpAddr::from([10, 0, 0, 1])].into();
        let [first, again] =
            [addresses, BTreeSet::new()].map(|addresses| ZtunnelPeer::new(PeerNetns { id, addresses }, &[]));
        unsynced.record_connect(&first, start);
        unsynced.record_disconnect(&first, start);
        unsynced.record_connect(&again, start + FORGOTTEN / 2);
        assert_eq!(unsynced.longest_waiting(start + FORGOTTEN, &[&again], false), Some((start, None)));
        unsynced.record_sync(&again);
        assert_eq!(unsynced.longest_waiting(start + FORGOTTEN, &[&again], false), None);
    }
}
