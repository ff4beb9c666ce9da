//! The place of a connection, until it ends; and its closing in favour of another one.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use tracing::warn;

use crate::Hub;
use crate::notices::Notice;
use crate::peer::{PeerNetns, PeerStanding, ZtunnelPeer};
use crate::places::{Admission, Claim, PlaceHolder, Progress};

/// A place that is held until this is dropped.
pub(crate) struct HeldPlace {
    hub: Hub,
    id: u64,
    /// Network namespace from which the peer connected.
    pub(crate) netns: PeerNetns,
}

fn peer_claim(peer: &ZtunnelPeer) -> Claim {
    Claim { standing: peer.standing, pod: peer.pod.as_ref().map(|pod| pod.uid.clone()) }
}

impl Hub {
    /// Claims a place for a connection, which may close another one; `None`: no place is available, which was logged.
    pub(crate) fn claim_place(&self, socket: &Arc<OwnedFd>) -> Option<HeldPlace> {
        let now = Instant::now();
        let netns = self.locate_peer(socket, now);
        let peer = self.identify_peer(netns.clone());
        let admitted = {
            let mut places = self.lock_places();
            // Knowledge of the node's ztunnel pods may have changed since these connected.
            places.update_claims(|holder| peer_claim(&self.identify_peer(holder.netns.clone())));
            let holder = PlaceHolder { netns: netns.clone(), socket: Arc::downgrade(socket) };
            places.admit_connection(peer_claim(&peer), holder, now)
        };
        let Some(Admission { id, evicted }) = admitted else {
            if self.may_log(Notice::NoPlace, peer.is_unknown_peer()) {
                warn!(target: "zds", known_by = %peer.standing, "connection of a ztunnel refused: connection limit reached");
            }
            return None;
        };
        evicted.iter().for_each(PlaceHolder::close_connection);
        Some(HeldPlace { hub: self.clone(), id, netns })
    }
}

impl HeldPlace {
    /// Returns whether the peer runs in no ztunnel pod, as far as these are known now.
    pub(crate) fn has_unknown_peer(&self) -> bool {
        self.hub.identify_peer(self.netns.clone()).standing == PeerStanding::Unknown
    }

    /// Returns whether the place was given to another connection.
    pub(crate) fn is_evicted(&self) -> bool {
        !self.hub.lock_places().is_held(self.id)
    }

    /// Records the progress of the connection.
    pub(crate) fn record_progress(&self, progress: Progress) {
        self.hub.lock_places().record_progress(self.id, progress);
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        let delay = self.hub.deadlines().unknown_peer_delay;
        self.hub.lock_places().release_place(self.id, Instant::now(), delay);
    }
}
