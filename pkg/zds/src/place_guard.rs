//! The place of a connection, for as long as it lives; and how it is closed for another one.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use tracing::warn;

use crate::Hub;
use crate::notices::Notice;
use crate::peer::{PeerNetns, PeerStanding, ZtunnelPeer};
use crate::place_holders::{PlaceHolder, PlaceHolders};
use crate::places::{Admission, Claim, Progress};

/// A place that is taken until this is dropped.
pub(crate) struct HeldPlace {
    hub: Hub,
    id: u64,
    /// Where its peer dialled.
    pub(crate) netns: PeerNetns,
}

fn peer_claim(peer: &ZtunnelPeer) -> Claim {
    Claim { standing: peer.standing, pod: peer.pod.as_ref().map(|pod| pod.uid.clone()) }
}

impl Hub {
    /// A place for a connection, whose thread may find another one closed for it; `None`: there is none, which was logged.
    pub(crate) fn claim_place(&self, socket: &Arc<OwnedFd>) -> Option<HeldPlace> {
        let now = Instant::now();
        let netns = self.locate_peer(socket, now);
        let peer = self.identify_peer(netns.clone());
        let admission = {
            let PlaceHolders { table, holders } = &mut *self.lock_holders();
            // What is known of the node's ztunnel pods may have changed since these connected.
            table.update_claims(|id| {
                holders.get(&id).map(|holder| peer_claim(&self.identify_peer(holder.netns.clone())))
            });
            let admission = table.admit_connection(peer_claim(&peer), now);
            if let Admission::Admitted { id, evicted } = admission {
                evicted
                    .and_then(|evicted| holders.remove(&evicted))
                    .iter()
                    .for_each(PlaceHolder::close_connection);
                holders.insert(id, PlaceHolder { netns: netns.clone(), socket: Arc::downgrade(socket) });
            }
            admission
        };
        match admission {
            Admission::Admitted { id, .. } => Some(HeldPlace { hub: self.clone(), id, netns }),
            Admission::Refused => {
                if self.may_log(Notice::NoPlace, peer.is_unknown_peer()) {
                    warn!(target: "zds", known_by = %peer.standing, "connection of a ztunnel refused: connection limit reached");
                }
                None
            }
        }
    }
}

impl HeldPlace {
    /// Whether its peer runs in no ztunnel pod, as far as these are known now.
    pub(crate) fn has_unknown_peer(&self) -> bool {
        self.hub.identify_peer(self.netns.clone()).standing == PeerStanding::Unknown
    }

    /// Whether it was given to another one.
    pub(crate) fn is_evicted(&self) -> bool {
        !self.hub.lock_holders().holders.contains_key(&self.id)
    }

    /// Notes how far the connection is.
    pub(crate) fn record_progress(&self, progress: Progress) {
        self.hub.lock_holders().table.record_progress(self.id, progress);
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        let delay = self.hub.deadlines().unknown_peer_delay;
        let PlaceHolders { table, holders } = &mut *self.hub.lock_holders();
        holders.remove(&self.id);
        table.release_place(self.id, Instant::now(), delay);
    }
}
